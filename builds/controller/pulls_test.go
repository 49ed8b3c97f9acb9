package controller_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/writeback"
	"github.com/armature-dev/armature/e2e/gitea"
	"github.com/armature-dev/armature/functions/api/keys"
)

// hookToken signs deliveries.
const hookToken = "a token of the tests"

// takesHooks lets the controller take webhooks, which begin when it starts, for the Secret hook.
func (w *world) takesHooks() (address string) {
	w.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	w.options.WebhookAddress = free.Addr().String()
	w.must(free.Close())
	w.must(w.Client.Create(w.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "hook"},
			StringData: map[string]string{"token": hookToken}}))
	return "http://" + w.options.WebhookAddress + "/hook/" + w.namespace + "/hook"
}

// deliver a webhook, once the controller takes it.
func (w *world) deliver(address string) {
	w.Helper()
	mac := hmac.New(sha256.New, []byte(hookToken))
	mac.Write([]byte("{}"))
	w.eventually("a webhook is taken", func() string {
		request, err := http.NewRequestWithContext(w.Context(), http.MethodPost, address,
			strings.NewReader("{}"))
		w.must(err)
		request.Header.Set("X-Gitea-Signature", hex.EncodeToString(mac.Sum(nil)))
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return err.Error()
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusAccepted {
			return answer.Status
		}
		return ""
	})
}

// derived are the builds that were derived from others, by their revision.
func (w *world) derived() map[string]*api.AgentBuild {
	w.Helper()
	var list api.AgentBuildList
	w.must(w.List(w.Context(), &list, client.InNamespace(w.namespace)))
	out := map[string]*api.AgentBuild{}
	for i := range list.Items {
		if b := &list.Items[i]; metav1.GetControllerOf(b) != nil && b.DeletionTimestamp == nil {
			out[b.Spec.Source.SourceRevision] = b
		}
	}
	return out
}

// isDerived waits for the build of a revision.
func (w *world) isDerived(revision string) (b *api.AgentBuild) {
	w.Helper()
	w.eventually("a build of "+revision, func() string {
		derived := w.derived()
		if b = derived[revision]; b == nil {
			return fmt.Sprintf("there are %d others", len(derived))
		}
		return ""
	})
	return b
}

// isGone waits until no build of a revision is there.
func (w *world) isGone(revision string) {
	w.Helper()
	w.eventually("no build of "+revision, func() string {
		if b := w.derived()[revision]; b != nil {
			return b.Name
		}
		return ""
	})
}

// runOfBuild waits for the run of a build that builds a commit.
func (w *world) runOfBuild(name, commit string) (run *tektonv1.PipelineRun) {
	w.Helper()
	w.eventually(fmt.Sprintf("build %s has a run of %s", name, commit), func() string {
		for _, r := range w.runs() {
			if r.Annotations[keys.AnnotationBuild] == name &&
				r.Annotations[keys.AnnotationCommit] == commit {
				run = &r
				return ""
			}
		}
		return "none"
	})
	return run
}

// Branches and tags are built beside the build's own branch, each by a build of its own, and
// that of the own branch does not notice.
func TestBranchesAndTags(t *testing.T) {
	w := newWorld(t)
	r := w.serveGit("")
	hook := w.takesHooks()
	w.start()
	parent := w.triggered("weather", r,
		&api.SourceTrigger{Poll: &metav1.Duration{Duration: time.Hour},
			Webhook: &corev1.LocalObjectReference{Name: "hook"},
			Push:    &api.PushTrigger{Branches: []string{"release/*"}, Tags: []string{"v*"}}})
	first := r.git("rev-parse", "main")
	w.runOfCommit(1, first)
	w.phase("weather", api.PhaseSucceeded)
	w.eventually("the tags that are there are remembered", func() string {
		w.deliver(hook)
		if tags := w.build("weather").Status.Tags; tags == nil ||
			!slices.Equal(tags.Seen, []string{"v1.0"}) {
			return fmt.Sprintf("%+v", tags)
		}
		return ""
	})
	before := w.build("weather")

	r.git("branch", "release/1")
	r.git("branch", "other/1")
	w.deliver(hook)
	release := w.isDerived("refs/heads/release/1")
	w.succeed(w.runOfBuild(release.Name, first))
	if b := w.phase(release.Name,
		api.PhaseSucceeded); b.Status.Source.Git.BranchName != "release/1" ||
		!strings.HasPrefix(b.Status.BuiltImage, "registry.local:5000/weather:release-1-") {
		t.Errorf("%+v", b.Status)
	}
	// A tag and a branch of one name are two.
	r.git("tag", "v1.1")
	r.git("tag", "x1")
	r.git("branch", "release/v1.1")
	w.deliver(hook)
	tag := w.isDerived("refs/tags/v1.1")
	w.isDerived("refs/heads/release/v1.1")
	w.succeed(w.runOfBuild(tag.Name, first))
	if b := w.phase(tag.Name, api.PhaseSucceeded); !strings.HasPrefix(b.Status.BuiltImage,
		"registry.local:5000/weather:v1.1@") {
		t.Errorf("%+v", b.Status)
	}
	if derived := w.derived(); len(derived) != 3 {
		t.Errorf("%d builds", len(derived))
	}

	// The branch moves, and its build follows.
	r.git("checkout", "-q", "release/1")
	second := r.commit("second")
	r.git("checkout", "-q", "main")
	w.deliver(hook)
	w.succeed(w.runOfBuild(release.Name, second))

	// An AgentBuild of somebody else is left as it is.
	hash := sha256.Sum256([]byte("refs/heads/release/taken"))
	taken := w.create("weather-release-taken-"+hex.EncodeToString(hash[:8]),
		func(b *api.AgentBuild) { b.Spec.Cancel = true })
	r.git("branch", "release/taken")
	w.deliver(hook)
	w.event(parent, "NameTaken", taken.Name)
	if now := w.build(taken.Name); now.Generation != taken.Generation {
		t.Errorf("it was changed: %+v", now.Spec)
	}
	r.git("branch", "-D", "release/taken")

	// A build of a tag that somebody deletes does not come back, and that of a branch does.
	w.must(w.Client.Delete(t.Context(), w.derived()["refs/tags/v1.1"]))
	w.must(w.Client.Delete(t.Context(), w.derived()["refs/heads/release/v1.1"]))
	w.isGone("refs/tags/v1.1")
	w.isGone("refs/heads/release/v1.1")
	w.eventually("the build of the branch is back", func() string {
		w.deliver(hook)
		if w.derived()["refs/heads/release/v1.1"] == nil {
			return "not yet"
		}
		return ""
	})
	if w.derived()["refs/tags/v1.1"] != nil {
		t.Error("the tag is built once more")
	}
	// Other patterns do not build the tags that are there.
	w.change(parent, func(b *api.AgentBuild) { b.Spec.Trigger.Push.Tags = []string{"v*", "x*"} })
	w.eventually("the patterns are remembered", func() string {
		w.deliver(hook)
		if tags := w.build("weather").Status.Tags; !slices.Equal(tags.Seen,
			[]string{"v1.0", "v1.1", "x1"}) {
			return fmt.Sprintf("%+v", tags)
		}
		return ""
	})
	if w.derived()["refs/tags/x1"] != nil {
		t.Error("an old tag is built")
	}

	// A server that has lost the build's own branch may have lost more: nothing is deleted.
	r.git("branch", "-m", "main", "lost")
	r.git("branch", "-m", "release/1", "lost-too")
	w.deliver(hook)
	w.never("a build is deleted", func() string {
		if w.derived()["refs/heads/release/1"] == nil {
			return "that of release/1"
		}
		return ""
	})
	r.git("branch", "-m", "lost", "main")
	w.deliver(hook)
	w.isGone("refs/heads/release/1")

	if now := w.build("weather"); now.Status.PipelineRunName != before.Status.PipelineRunName ||
		now.Status.RunNumber != 1 || now.Status.BuiltImage != before.Status.BuiltImage {
		t.Errorf("the build's own status has changed: %+v", now.Status)
	}
	// What is derived goes with the build.
	w.must(w.Client.Delete(t.Context(), w.build("weather")))
	w.eventually("the build is gone", func() string {
		if err := w.Get(t.Context(), client.ObjectKeyFromObject(parent),
			&api.AgentBuild{}); !apierrors.IsNotFound(err) {
			return fmt.Sprint(err)
		}
		return ""
	})
}

// proposals is a repository on Gitea, with a build of its pull requests.
type proposals struct {
	*world
	server *gitea.Server
	// tokens of the owner of the repository, of one who may push to it and of two who may not.
	owner, maintainer, author, stranger string
	hook                                string
}

const weather = "owner/weather"

// proposed starts all of that.
func proposed(t *testing.T) *proposals {
	p := &proposals{world: newWorld(t), server: gitea.Start(t, gitea.Options{})}
	s := p.server
	p.owner, p.maintainer, p.author, p.stranger =
		s.User("owner"), s.User("maintainer"), s.User("author"), s.User("stranger")
	s.Repository(p.owner, "weather")
	s.Must(p.owner, http.MethodPut, "/repos/"+weather+"/collaborators/maintainer",
		map[string]any{"permission": "write"}, nil)
	s.Write(p.owner, weather, "main", "main", "Dockerfile", "FROM scratch\n")
	p.hook = p.takesHooks()
	s.Must(p.owner, http.MethodPost, "/repos/"+weather+"/hooks",
		map[string]any{"type": "gitea", "active": true,
			"events": []string{"push", "create", "delete", "pull_request", "pull_request_sync",
				"issue_comment", "pull_request_comment"},
			"config": map[string]string{"url": p.hook, "content_type": "json", "secret": hookToken}}, nil)
	for name, token := range map[string]string{"forge": p.owner, "push": "a login", "npm": "a secret"} {
		p.must(p.Client.Create(t.Context(),
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: name,
				Annotations: hostsOfTests,
				Labels: map[string]string{
					keys.LabelCredentials: map[string]string{"forge": "git", "push": "registry",
						"npm": "build"}[name]}},
				StringData: map[string]string{"token": token, "npm": token,
					".dockerconfigjson": `{"auths":{}}`}}))
	}
	p.start()
	p.create("weather", func(b *api.AgentBuild) {
		keep := false
		b.Spec.CleanupAfterBuild, b.Spec.Mode = &keep, "prod"
		b.Spec.Source.SourceRepository, b.Spec.Source.SourceRevision = s.URL+"/"+weather, "main"
		b.Spec.Secrets = []api.BuildSecret{{ID: "npm", Name: "npm"}}
		b.Spec.Report = &api.Report{Kind: "gitea",
			Credentials: corev1.LocalObjectReference{Name: "forge"}}
		b.Spec.Trigger = &api.SourceTrigger{Poll: &metav1.Duration{Duration: time.Hour},
			Webhook: &corev1.LocalObjectReference{Name: "hook"},
			PullRequest: &api.PullRequestTrigger{Paths: []string{"**/*.go", "Dockerfile"},
				Forks: &api.ForkTrigger{Repository: "registry.local:5000/throwaway/weather"}}}
	})
	return p
}

// open a pull request, and give its number.
func (p *proposals) open(token, head string) (number int) {
	p.Helper()
	var made struct{ Number int }
	p.server.Must(token, http.MethodPost, "/repos/"+weather+"/pulls",
		map[string]any{"title": "A change", "head": head, "base": "main"}, &made)
	return made.Number
}

// comment on a pull request.
func (p *proposals) comment(token string, number int, body string) (id int) {
	p.Helper()
	var made struct{ ID int }
	p.server.Must(token, http.MethodPost, fmt.Sprintf("/repos/%s/issues/%d/comments", weather,
		number), map[string]any{"body": body}, &made)
	return made.ID
}

// shows waits until a commit has a status of the build, and returns its description.
func (p *proposals) shows(commit, state string) (says string) {
	p.Helper()
	p.eventually("the status of "+commit+" is "+state, func() string {
		var all []struct {
			ID                           int
			Context, Status, Description string
		}
		p.server.Must(p.owner, http.MethodGet, "/repos/"+weather+"/statuses/"+commit, nil, &all)
		slices.SortFunc(all, func(a, b struct {
			ID                           int
			Context, Status, Description string
		}) int {
			return b.ID - a.ID
		})
		if len(all) == 0 || all[0].Context != "armature/"+p.namespace+"/weather" ||
			all[0].Status != state {
			return fmt.Sprintf("%+v", all)
		}
		says = all[0].Description
		return ""
	})
	return says
}

// asks waits until the controller has written that many comments on a pull request, and returns the
// last one.
func (p *proposals) asks(number, comments int) (says string) {
	p.Helper()
	p.eventually(fmt.Sprintf("%d comments on %d", comments, number), func() string {
		var all []struct {
			Body string
			User struct{ Login string }
		}
		p.server.Must(p.owner, http.MethodGet,
			fmt.Sprintf("/repos/%s/issues/%d/comments", weather, number), nil, &all)
		n := 0
		for _, c := range all {
			if c.User.Login == "owner" {
				n, says = n+1, c.Body
			}
		}
		if n != comments {
			return fmt.Sprintf("%d", n)
		}
		return ""
	})
	return says
}

// notBuilt reports a build of a commit that must not be built, after what was done was seen.
func (p *proposals) notBuilt(what, commit string) {
	p.Helper()
	p.deliver(p.hook)
	p.never(what, func() string {
		if b := p.derived()[commit]; b != nil {
			return "AgentBuild " + b.Name + " builds it"
		}
		for _, run := range p.runs() {
			if run.Annotations[keys.AnnotationCommit] == commit {
				return "run " + run.Name + " builds it"
			}
		}
		return ""
	})
}

// A pull request of a fork on a real forge, and every way to have it built without the approval
// of exactly its commit.
func TestPullRequestOfAFork(t *testing.T) {
	p := proposed(t)
	s := p.server
	p.phase("weather", api.PhaseBuilding)
	s.Must(p.author, http.MethodPost, "/repos/"+weather+"/forks", map[string]any{}, nil)
	const fork = "author/weather"
	first := s.Write(p.author, fork, "main", "change", "main.go", "package main\n")
	// The fork has a definition of its own: a build, a template and a step.
	evil := s.Write(p.author, fork, "change", "change", "agentbuild.yaml",
		"apiVersion: agent.kagenti.dev/v1alpha1\nkind: AgentBuild\nmetadata: {name: weather}\n"+
			"spec: {mode: custom, serviceAccountName: cluster-admin}\n")
	number := p.open(p.author, "author:change")
	if first == evil {
		t.Fatal("one commit")
	}
	const command = "/ok-to-test "
	says := p.shows(evil, "pending")
	if !strings.Contains(says, "approval") {
		t.Errorf("%q", says)
	}
	if text := p.asks(number, 1); !strings.Contains(text, command+evil) {
		t.Errorf("%q", text)
	}
	p.notBuilt("nobody approved it", evil)

	p.comment(p.stranger, number, command+evil)
	p.comment(p.author, number, command+evil)
	p.notBuilt("a stranger and the author approved it", evil)
	p.comment(p.maintainer, number, "> "+command+evil)
	p.comment(p.maintainer, number, "```\n"+command+evil+"\n```")
	p.notBuilt("the command is quoted", evil)
	p.comment(p.maintainer, number, command+evil[:7])
	p.comment(p.maintainer, number, command+evil[:39])
	p.notBuilt("the commit is not named in full", evil)
	id := p.comment(p.maintainer, number, "Nice")
	time.Sleep(1100 * time.Millisecond) // Gitea counts seconds
	s.Must(p.maintainer, http.MethodPatch, fmt.Sprintf("/repos/%s/issues/comments/%d", weather, id),
		map[string]any{"body": command + evil}, nil)
	p.notBuilt("the comment was edited", evil)

	// One who loses the right meanwhile, who approves a commit before it is proposed.
	s.Must(p.owner, http.MethodPut, "/repos/"+weather+"/collaborators/stranger",
		map[string]any{"permission": "write"}, nil)
	next := s.Write(p.author, fork, "change", "next", "main.go", "package main // next\n")
	p.comment(p.stranger, number, command+next)
	s.Must(p.owner, http.MethodDelete, "/repos/"+weather+"/collaborators/stranger", nil, nil)
	// And a push after the approval of the commit before.
	p.comment(p.maintainer, number, "not a command")
	p.fastForward(fork, "next", "change")
	p.shows(next, "pending")
	p.notBuilt("who approved it may not push any more", next)
	p.comment(p.maintainer, number, command+evil)
	p.notBuilt("another commit was approved", next)
	if text := p.asks(number, 1); !strings.Contains(text, command+next) {
		t.Errorf("%q", text)
	}

	// This is how it has to be.
	p.comment(p.maintainer, number, command+next)
	b := p.isDerived(next)
	run := p.runOfBuild(b.Name, next)
	p.isolated(b, run)
	p.asks(number, 0)
	p.shows(next, "pending") // Gitea has no other word for one that runs

	// A push makes the run superfluous, and is not approved.
	last := s.Write(p.author, fork, "change", "change", "main.go", "package main // last\n")
	p.eventually("the run ends", func() string {
		for _, r := range p.runs() {
			if r.Name == run.Name && r.DeletionTimestamp == nil {
				return "it goes on"
			}
		}
		return ""
	})
	p.notBuilt("the commit before was approved", last)
	// The other way to approve.
	p.change(p.build("weather"), func(b *api.AgentBuild) {
		b.Annotations = map[string]string{keys.AnnotationApproved: evil + "," + last}
	})
	b = p.isDerived(last)
	run = p.runOfBuild(b.Name, last)
	p.succeed(run)
	done := p.phase(b.Name, api.PhaseSucceeded)
	if done.Status.Attestation != nil ||
		!strings.HasPrefix(done.Status.BuiltImage, "registry.local:5000/throwaway/weather:pr-") {
		t.Errorf("%+v", done.Status)
	}
	if _, ready := writeback.Of(done); ready {
		t.Error("an ImageUpdate would write it")
	}
	p.shows(last, "success")

	s.Must(p.author, http.MethodPatch, fmt.Sprintf("/repos/%s/pulls/%d", weather, number),
		map[string]any{"state": "closed"}, nil)
	p.isGone(last)
}

// fastForward a branch of a repository to another one.
func (p *proposals) fastForward(repository, from, to string) {
	p.Helper()
	r := &repositoryOf{p.world, p.TempDir()}
	r.git("clone", "-q", p.server.Remote(p.author, repository), ".")
	r.git("push", "-q", "origin", "origin/"+from+":refs/heads/"+to)
}

// repositoryOf is a clone.
type repositoryOf struct {
	*world
	dir string
}

func (r *repositoryOf) git(args ...string) string {
	return (&repository{world: r.world, dir: r.dir}).git(args...)
}

// isolated reports what a fork's build must not have.
func (p *proposals) isolated(b *api.AgentBuild, run *tektonv1.PipelineRun) {
	p.Helper()
	parent := p.build("weather")
	if s := b.Spec; s.Mode != parent.Spec.Mode || s.ServiceAccountName != "" || s.Secrets != nil ||
		s.Source.SourceCredentials != nil || s.BuildOutput.ImageRepoCredentials != nil ||
		s.Trigger != nil {
		p.Errorf("the definition is not the cluster's: %+v", s)
	}
	if run.Annotations[keys.AnnotationRunDigest] != "" ||
		run.Annotations[compose.ChainsSigned] == "" {
		p.Errorf("it would be attested: %v", run.Annotations)
	}
	if image := run.Annotations[keys.AnnotationImage]; !strings.HasPrefix(image,
		"registry.local:5000/throwaway/weather:pr-") {
		p.Errorf("it is pushed to %s", image)
	}
	for _, workspace := range run.Spec.Workspaces {
		if workspace.Secret != nil || workspace.PersistentVolumeClaim != nil {
			p.Errorf("it has %+v", workspace)
		}
	}
}

// A pull request of the repository itself is built without an approval, with the build's
// Secrets; one that changes nothing of interest is not, and the required check passes.
func TestPullRequestOfTheRepository(t *testing.T) {
	p := proposed(t)
	s := p.server
	p.phase("weather", api.PhaseBuilding)
	commit := s.Write(p.maintainer, weather, "main", "feature", "main.go", "package main\n")
	number := p.open(p.maintainer, "feature")
	b := p.isDerived(commit)
	if b.Name != fmt.Sprintf("weather-pr-%d", number) || len(b.Spec.Secrets) != 1 ||
		b.Spec.Source.PullRequest.Fork ||
		!strings.HasSuffix(compose.Image(b), fmt.Sprintf("weather:pr-%d", number)) {
		t.Errorf("%s %+v", b.Name, b.Spec)
	}
	run := p.runOfBuild(b.Name, commit)
	if run.Annotations[keys.AnnotationRunDigest] != "" {
		t.Error("it would be attested")
	}
	p.fail(run)
	if says := p.shows(commit, "failure"); says == "" {
		t.Error("the status does not say why")
	}
	docs := s.Write(p.maintainer, weather, "main", "docs", "README.txt", "text\n")
	other := p.open(p.maintainer, "docs")
	if says := p.shows(docs, "success"); !strings.Contains(says, "paths") {
		t.Errorf("%q", says)
	}
	p.notBuilt("no path of it is of interest", docs)
	p.asks(other, 0)

	// Without the trigger, nothing of it is left.
	p.change(p.build("weather"), func(b *api.AgentBuild) {
		b.Spec.Trigger.PullRequest = nil
		b.Spec.Trigger.Push = &api.PushTrigger{Branches: []string{"none"}}
	})
	p.eventually("the build is gone", func() string {
		p.deliver(p.hook)
		if b := p.derived()[commit]; b != nil {
			return b.Name
		}
		return ""
	})
}
