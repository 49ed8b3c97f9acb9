package trigger

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/deliver/forge"
)

const (
	approvedCommit = "0123456789abcdef0123456789abcdef01234567"
	// another one that begins with the same digits
	nextCommit = "0123456789abcdef0123456789abcdef00000000"
)

// approvals is a forge with comments, and users who may push at the moment.
type approvals struct {
	forge.Forge
	pushers  []string
	comments []forge.Comment
	failure  error
	asked    []string
}

func (a *approvals) MayPush(_ context.Context, user string) (bool, error) {
	a.asked = append(a.asked, user)
	if user == "nobody" {
		return false, forge.ErrNotFound
	}
	return slices.Contains(a.pushers, user), a.failure
}

func (a *approvals) Comments(context.Context, int) ([]forge.Comment, error) {
	return a.comments, nil
}

func approval(author, body string) forge.Comment {
	return forge.Comment{Author: author, Body: body}
}

// Who may start the build of a fork's commit, and every way around it that is known: each case
// is one attack, or the way that it has to be.
func TestMayStart(t *testing.T) {
	const good = "/ok-to-test " + approvedCommit
	edited := approval("maintainer", good)
	edited.Edited = true
	for name, c := range map[string]struct {
		author, commit, annotation string
		pushers                    []string
		comments                   []forge.Comment
		want                       bool
	}{
		"nobody says anything": {},
		"the author may push":  {author: "maintainer", want: true},
		"a maintainer approves": {
			comments: []forge.Comment{approval("maintainer", good)}, want: true},
		"with an end of line": {
			comments: []forge.Comment{approval("maintainer", good+" \r\n")}, want: true},
		"after others": {comments: []forge.Comment{approval("stranger", good),
			approval("stranger", "hm"), approval("maintainer", good)}, want: true},
		"a stranger approves":         {comments: []forge.Comment{approval("stranger", good)}},
		"the author approves":         {comments: []forge.Comment{approval("author", good)}},
		"a user who is gone approves": {comments: []forge.Comment{approval("nobody", good)}},
		"a comment without an author": {comments: []forge.Comment{approval("", good)}},
		"an approver who lost the right": {pushers: []string{"somebody-else"},
			comments: []forge.Comment{approval("maintainer", good)}},
		"an edited comment": {comments: []forge.Comment{edited}},
		"a quoted command": {
			comments: []forge.Comment{approval("maintainer", "> "+good)}},
		"a quoted command with an answer": {
			comments: []forge.Comment{approval("maintainer", "> "+good+"\n\nNo.")}},
		"in a block of code": {
			comments: []forge.Comment{approval("maintainer", "```\n"+good+"\n```")}},
		"in a block that is indented": {
			comments: []forge.Comment{approval("maintainer", "    "+good)}},
		"in code": {
			comments: []forge.Comment{approval("maintainer", "`"+good+"`")}},
		"in a comment of HTML": {
			comments: []forge.Comment{approval("maintainer", "<!-- "+good+" -->")}},
		"in a sentence": {
			comments: []forge.Comment{approval("maintainer", "Do not use "+good)}},
		"in a second line": {
			comments: []forge.Comment{approval("maintainer", "Never do\n"+good)}},
		"without a commit": {
			comments: []forge.Comment{approval("maintainer", "/ok-to-test")}},
		"a short commit": {
			comments: []forge.Comment{approval("maintainer", good[:len("/ok-to-test 0123456")])}},
		"a commit one digit too short": {
			comments: []forge.Comment{approval("maintainer", good[:len(good)-1])}},
		"two commits": {
			comments: []forge.Comment{approval("maintainer", good+" "+nextCommit)}},
		"a push between approval and look": {commit: nextCommit,
			comments: []forge.Comment{approval("maintainer", good)}},
		"approved in the cluster": {annotation: nextCommit + ", " + approvedCommit,
			want: true},
		"another one approved there":  {annotation: nextCommit},
		"a short one approved there":  {annotation: approvedCommit[:12]},
		"an empty one approved there": {annotation: " ,,"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &approvals{pushers: []string{"maintainer"}, comments: c.comments}
			if c.pushers != nil {
				f.pushers = c.pushers
			}
			p := forge.PullRequest{Number: 1, Author: "author", Commit: approvedCommit, Fork: true}
			if c.author != "" {
				p.Author = c.author
			}
			if c.commit != "" {
				p.Commit = c.commit
			}
			b := &api.AgentBuild{}
			b.Annotations = map[string]string{keys.AnnotationApproved: c.annotation}
			got, err := mayStart(t.Context(), f, b, p)
			if err != nil || got != c.want {
				t.Errorf("%v, %v", got, err)
			}
			for _, user := range f.asked {
				if user == "" {
					t.Error("a user without a name is asked for")
				}
			}
		})
	}
	// A forge that does not answer approves nothing.
	down := errors.New("no answer")
	f := &approvals{failure: down, comments: []forge.Comment{approval("maintainer", good)}}
	if got, err := mayStart(t.Context(), f, &api.AgentBuild{}, forge.PullRequest{Author: "author",
		Commit: approvedCommit}); got || !errors.Is(err, down) {
		t.Errorf("a forge that is down: %v, %v", got, err)
	}
	// The comment that asks for an approval does not approve, whoever its author is.
	if text := approvalText(&api.AgentBuild{},
		forge.PullRequest{Commit: approvedCommit}); approves(text, approvedCommit) ||
		!strings.Contains(text, "`"+good+"`") || strings.Contains(text, "\n/") {
		t.Errorf("%q", text)
	}
}

// The commit is the one that Git names, and only where the forge names the same one.
func TestHeadOf(t *testing.T) {
	one, two := plumbing.NewHash(approvedCommit), plumbing.NewHash(nextCommit)
	for name, c := range map[string]struct {
		refs map[string]plumbing.Hash
		pull forge.PullRequest
		want string
	}{
		"GitHub, Gitea, Forgejo": {map[string]plumbing.Hash{"refs/pull/7/head": one,
			"refs/heads/x": two}, forge.PullRequest{Number: 7, Head: "x"}, approvedCommit},
		"GitLab": {map[string]plumbing.Hash{"refs/merge-requests/7/head": one},
			forge.PullRequest{Number: 7, Fork: true}, approvedCommit},
		"of the repository": {map[string]plumbing.Hash{"refs/heads/x": one},
			forge.PullRequest{Number: 7, Head: "x"}, approvedCommit},
		"a fork's branch": {map[string]plumbing.Hash{"refs/heads/x": one},
			forge.PullRequest{Number: 7, Head: "x", Fork: true}, ""},
		"of another number": {map[string]plumbing.Hash{"refs/pull/70/head": one},
			forge.PullRequest{Number: 7, Fork: true}, ""},
		"a branch with such a name": {map[string]plumbing.Hash{"refs/heads/refs/pull/7/head": one},
			forge.PullRequest{Number: 7, Fork: true}, ""},
	} {
		if got := headOf(c.refs, c.pull); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// parent is a build with all that a fork's build must not have.
func parent() *api.AgentBuild {
	text, keep := "x", true
	b := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "weather", UID: "1",
		Labels: map[string]string{"kueue.x-k8s.io/queue-name": "builds",
			"app.kubernetes.io/instance": "apps"}}}
	b.Spec = api.AgentBuildSpec{
		Source: api.SourceSpec{SourceRepository: "https://git.example.com/acme/weather",
			SourceRevision: "main", RepoUser: "bot",
			SourceCredentials: &corev1.LocalObjectReference{Name: "git"}},
		BuildOutput: &api.BuildOutput{ImageRegistry: "ghcr.io/acme", Image: "weather",
			ImageTag: "v1", ImageRepoCredentials: &corev1.LocalObjectReference{Name: "push"}},
		Secrets:            []api.BuildSecret{{ID: "npm", Name: "npm"}},
		Cache:              &api.BuildCache{Registry: "ghcr.io/acme/cache"},
		ServiceAccountName: "deployer",
		Pod: &api.PodSettings{AutomountServiceAccountToken: true,
			NodeSelector: map[string]string{"a": "b"}},
		Workspace:         &api.Workspace{Keep: true},
		CleanupAfterBuild: &keep,
		OnChange:          api.ChangeQueue,
		Pipeline: &api.PipelineSpec{
			Parameters: []api.Parameter{{Name: "image", Value: &text},
				{Name: "SOURCE_REVISION", Value: &text}, {Name: "SOURCE_REPO_SECRET", Value: &text},
				{Name: "cache", Value: &text}, {Name: "other", Value: &text}},
			Steps: []api.Step{{Name: "build",
				Parameters: []api.Parameter{{Name: "revision", Value: &text},
					{Name: "image-cache", Value: &text}, {Name: "flag", Value: &text}}}},
			Workspaces: []api.WorkspaceBinding{{Name: "s", Secret: &corev1.LocalObjectReference{}},
				{Name: "p", PersistentVolumeClaim: &corev1.LocalObjectReference{}},
				{Name: "c", ConfigMap: &corev1.LocalObjectReference{}}},
		},
		Trigger: &api.SourceTrigger{
			Push: &api.PushTrigger{Branches: []string{"release/*"}, Tags: []string{"v*"},
				Paths: []string{"api/**"}},
			PullRequest: &api.PullRequestTrigger{
				Forks: &api.ForkTrigger{Repository: "registry.example.com:5000/throwaway/weather"}},
			Webhook: &corev1.LocalObjectReference{Name: "hook"},
		},
	}
	return b
}

// What is derived of a build for a fork has nothing that is secret or stays, and what is derived
// for people who may push has what the build has.
func TestDerived(t *testing.T) {
	const group = api.DefaultGroup
	b := parent()
	before := b.DeepCopy()

	fork := pullOf(group, b, forge.PullRequest{Number: 12, Commit: approvedCommit, Fork: true})
	s := fork.Spec
	if fork.Name != "weather-pr-12" || !metav1.IsControlledBy(fork, b) || len(fork.Labels) != 1 ||
		fork.Labels["kueue.x-k8s.io/queue-name"] != "builds" {
		t.Errorf("%+v", fork.ObjectMeta)
	}
	if s.Source.SourceRepository != b.Spec.Source.SourceRepository ||
		s.Source.SourceRevision != approvedCommit || s.Source.SourceCredentials != nil ||
		s.Source.RepoUser != "" ||
		*s.Source.PullRequest != (api.SourcePullRequest{Number: 12, Fork: true}) {
		t.Errorf("%+v", s.Source)
	}
	if o := s.BuildOutput; o.ImageRegistry != "registry.example.com:5000" ||
		o.Image != "throwaway/weather" || o.ImageTag != "pr-12" || o.ImageRepoCredentials != nil {
		t.Errorf("%+v", o)
	}
	if s.Secrets != nil || *s.Cache != (api.BuildCache{Mode: "off"}) ||
		s.ServiceAccountName != "" || s.Pod.AutomountServiceAccountToken || s.Workspace.Keep ||
		s.Trigger != nil || s.OnChange != api.ChangeCancel {
		t.Errorf("%+v", s)
	}
	if p := s.Pipeline; len(p.Parameters) != 1 || p.Parameters[0].Name != "other" ||
		len(p.Steps[0].Parameters) != 1 || p.Steps[0].Parameters[0].Name != "flag" ||
		len(p.Workspaces) != 1 || p.Workspaces[0].Name != "c" {
		t.Errorf("%+v", p)
	}
	// What the platform or the tenant decided otherwise stays.
	if s.Pod.NodeSelector["a"] != "b" {
		t.Errorf("%+v", s.Pod)
	}

	own := pullOf(group, b, forge.PullRequest{Number: 13, Commit: nextCommit})
	if s := own.Spec; s.Source.SourceCredentials == nil || s.BuildOutput.Image != "weather" ||
		s.BuildOutput.ImageTag != "pr-13" || s.Source.PullRequest.Fork || len(s.Secrets) != 1 ||
		s.Trigger != nil {
		t.Errorf("%+v", s)
	}

	branch := branchOf(group, b, "release/1.0")
	if s := branch.Spec; s.Source.SourceRevision != "refs/heads/release/1.0" ||
		!strings.HasPrefix(s.BuildOutput.ImageTag, "release-1.0-") || s.Source.PullRequest != nil ||
		derives(branch) || s.Trigger.Webhook.Name != "hook" ||
		!slices.Equal(s.Trigger.Push.Paths, []string{"api/**"}) || s.OnChange != api.ChangeQueue {
		t.Errorf("%+v", s)
	}
	// Names that differ only where an object's or an image's cannot are those of two builds.
	if other := branchOf(group, b, "release-1.0"); other.Name == branch.Name ||
		other.Spec.BuildOutput.ImageTag == branch.Spec.BuildOutput.ImageTag {
		t.Errorf("%s, %s", other.Name, other.Spec.BuildOutput.ImageTag)
	}
	// Whoever may push branches finds no other one whose build has the name, and so nobody
	// takes the name of a build in advance.
	if _, hash, ok := strings.Cut(branch.Name, "weather-release-1-0-"); !ok || len(hash) != 16 {
		t.Errorf("%s has not 64 bits of the ref's digest", branch.Name)
	}
	tag := tagOf(group, b, "release-1.0")
	if tag.Name == branchOf(group, b, "release-1.0").Name ||
		tag.Spec.BuildOutput.ImageTag != "release-1.0" ||
		tag.Spec.Source.SourceRevision != "refs/tags/release-1.0" || tag.Spec.Trigger != nil {
		t.Errorf("%s %+v", tag.Name, tag.Spec)
	}
	if tag := tagOf(group, b, "v1"); tag.Spec.BuildOutput.ImageTag == "v1" {
		t.Error("a tag replaces the image of the build's own branch")
	}
	long := b.DeepCopy()
	long.Name = strings.Repeat("x", 253)
	for _, d := range []*api.AgentBuild{tagOf(group, long, strings.Repeat("y", 200)),
		pullOf(group, long, forge.PullRequest{Number: 1 << 30})} {
		if len(d.Name) > 253 || len(d.Spec.BuildOutput.ImageTag) > 128 {
			t.Errorf("%d, %d", len(d.Name), len(d.Spec.BuildOutput.ImageTag))
		}
	}
	if !maps.Equal(b.Labels, before.Labels) || len(b.Spec.Secrets) != 1 ||
		len(b.Spec.Pipeline.Parameters) != 5 || b.Spec.BuildOutput.ImageTag != "v1" ||
		len(b.Spec.Pipeline.Steps[0].Parameters) != 3 {
		t.Errorf("the build itself was changed: %+v", b.Spec)
	}
}

// Names of refs that mean something to a path, a command or a substitution are not built.
func TestMatching(t *testing.T) {
	one := plumbing.NewHash(approvedCommit)
	r := &remote{refs: map[string]plumbing.Hash{}}
	for _, ref := range []string{"refs/heads/main", "refs/heads/../../x", "refs/heads/-o",
		"refs/heads/a b", "refs/heads/$(tasks.x.results.y)", "refs/heads/a\nb",
		"refs/heads/" + strings.Repeat("x", 300), "refs/heads/v1", "refs/tags/v1",
		"refs/tags/../v2", "refs/tags/v2^{}", "refs/pull/1/head", "refs/heads/team/x", "HEAD"} {
		r.refs[ref] = one
	}
	tr, b := &Triggers{}, &api.AgentBuild{}
	b.Spec.Trigger = &api.SourceTrigger{Push: &api.PushTrigger{Branches: []string{"**"},
		Tags: []string{"**"}}}
	branches, tags := tr.matching(b, r)
	if !slices.Equal(branches, []string{"team/x", "v1"}) || !slices.Equal(tags, []string{"v1"}) {
		t.Errorf("%q, %q", branches, tags)
	}
	b.Spec.Trigger.Push = &api.PushTrigger{Branches: []string{"*"}}
	if branches, tags := tr.matching(b, r); !slices.Equal(branches, []string{"v1"}) || tags != nil {
		t.Errorf("%q, %q", branches, tags)
	}
	b.Spec.Trigger.Push = &api.PushTrigger{Paths: []string{"**"}}
	if branches, tags := tr.matching(b, r); branches != nil || tags != nil {
		t.Errorf("without patterns: %q, %q", branches, tags)
	}
}

// The URL that is asked is the build's. One with a login in it, or of anything but a server, is not
// asked.
func TestQuestionOf(t *testing.T) {
	for url, want := range map[string]string{
		"https://github.com/acme/weather":           "https://github.com/acme/weather",
		"https://GitHub.com/acme/weather/":          "https://github.com/acme/weather",
		"git@github.com:acme/weather.git":           "git@github.com:acme/weather.git",
		"ssh://git@github.com/acme/weather":         "ssh://git@github.com/acme/weather",
		"https://user:password@github.com/acme/web": "",
		"file:///etc/passwd":                        "",
		"https://github.com/../x":                   "",
		"ext::sh -c id":                             "",
	} {
		b := parent()
		b.Spec.Source.SourceRepository = url
		if q, ok := questionOf(b); q.Repository != want || ok != (want != "") {
			t.Errorf("%s: %q, %v", url, q.Repository, ok)
		}
	}
}
