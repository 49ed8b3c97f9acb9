package controller_test

import (
	"fmt"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/api/keys"
)

// repository is a real Git repository behind git's own HTTP server.
type repository struct {
	*world
	dir   string
	url   string
	asked atomic.Int64 // for its references
}

// serveGit serves one repository; with a token it is private.
func (w *world) serveGit(token string) *repository {
	w.Helper()
	path, err := exec.LookPath("git")
	if err != nil {
		w.Skip("git is not installed\n  hint: apt-get install git")
	}
	r := &repository{world: w, dir: filepath.Join(w.TempDir(), "agent.git")}
	w.must(os.MkdirAll(r.dir, 0o755))
	r.git("init", "-q", "-b", "main")
	r.git("config", "http.receivepack", "false")
	r.commit("first")
	r.git("tag", "-a", "v1.0", "-m", "release")
	handler := &cgi.Handler{Path: path, Args: []string{"http-backend"},
		Env: []string{"GIT_PROJECT_ROOT=" + filepath.Dir(r.dir), "GIT_HTTP_EXPORT_ALL=1"}}
	server := httptest.NewServer(
		http.HandlerFunc(func(rw http.ResponseWriter, request *http.Request) {
			if _, password, _ := request.BasicAuth(); token != "" && password != token {
				rw.Header().Set("WWW-Authenticate", "Basic")
				rw.WriteHeader(http.StatusUnauthorized)
				return
			}
			if strings.HasSuffix(request.URL.Path, "/info/refs") {
				r.asked.Add(1)
			}
			handler.ServeHTTP(rw, request)
		}))
	w.Cleanup(server.Close)
	r.url = server.URL + "/agent.git/.git"
	return r
}

func (r *repository) git(args ...string) string {
	r.Helper()
	cmd := exec.CommandContext(r.Context(), "git", args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b", "GIT_CONFIG_GLOBAL=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func (r *repository) commit(message string) string {
	r.Helper()
	r.git("commit", "-q", "--allow-empty", "-m", message)
	return r.git("rev-parse", "HEAD")
}

func (r *repository) source(revision string) func(*api.AgentBuild) {
	return func(b *api.AgentBuild) {
		b.Spec.Source.SourceRepository, b.Spec.Source.SourceRevision = r.url, revision
	}
}

// A branch or a tag becomes a commit before the run. A branch that moves starts
// nothing by itself; a rerun builds where it points then.
func TestGitRevision(t *testing.T) {
	w := newWorld(t)
	r := w.serveGit("")
	first := r.git("rev-parse", "HEAD")
	w.start()
	keep := false
	b := w.create("branch", r.source("main"),
		func(b *api.AgentBuild) { b.Spec.CleanupAfterBuild = &keep })
	run := w.run(1)
	if got := run.Annotations[keys.AnnotationCommit]; got != first {
		t.Errorf("main became %q, want %s", got, first)
	}
	w.succeed(run)
	got := w.phase("branch", api.PhaseSucceeded)
	if git := got.Status.Source.Git; git.CommitSHA != first || git.BranchName != "main" {
		t.Errorf("status says %+v", git)
	}
	second := r.commit("second")
	w.never("a run because the branch moved", func() string {
		if len(w.runs()) != 1 {
			return "there is one"
		}
		return ""
	})
	w.create("tag", r.source("v1.0"))
	if got := w.run(2).Annotations[keys.AnnotationCommit]; got != first {
		t.Errorf("the annotated tag became %q, want its commit %s", got, first)
	}
	w.change(b, func(b *api.AgentBuild) {
		b.Annotations = map[string]string{"agent.kagenti.dev/rerun": "1"}
	})
	w.run(3)
	if got := w.phase("branch", api.PhaseBuilding); got.Status.Source.Git.CommitSHA != second ||
		got.Status.RunReason != api.TriggerCommit {
		t.Errorf("the rerun builds %s because of %s", got.Status.Source.Git.CommitSHA,
			got.Status.RunReason)
	}
}

// A step may be given a revision of its own: status records the commit that it
// cloned.
func TestGitCommitOfStep(t *testing.T) {
	w := newWorld(t)
	r := w.serveGit("")
	other := strings.Repeat("c", 40)
	w.start()
	w.create("own", r.source("main"))
	w.finish(w.run(1), corev1.ConditionTrue, "Succeeded", "done",
		func(s *tektonv1.PipelineRunStatus) {
			s.Results = []tektonv1.PipelineRunResult{{Name: "CHAINS-GIT_COMMIT",
				Value: *tektonv1.NewStructuredValues(other)}}
		})
	if git := w.phase("own", api.PhaseSucceeded).Status.Source.Git; git.CommitSHA != other ||
		git.BranchName != "" {
		t.Errorf("%s was cloned, and status says %+v", other, git)
	}
}

// Builds with the same question at once share the answer, but each status names its own build.
func TestGitRefusalNamesItsBuild(t *testing.T) {
	w := newWorld(t)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		time.Sleep(500 * time.Millisecond)
		rw.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(server.Close)
	const n = 6
	name := func(i int) string { return fmt.Sprintf("build%d", i) }
	for i := range n {
		w.create(name(i), func(b *api.AgentBuild) {
			b.Spec.Source.SourceRepository, b.Spec.Source.SourceRevision = server.URL, "main"
		})
	}
	w.start()
	for i := range n {
		if got := w.phase(name(i), api.PhaseFailed).Status.Message; !strings.Contains(got,
			"AgentBuild "+w.namespace+"/"+name(i)+": ") {
			t.Errorf("build %d reports: %s", i, got)
		}
	}
}

// A Git server that does not answer is asked again, which shows as Retrying, not
// as a failed build.
func TestGitDoesNotAnswer(t *testing.T) {
	w := newWorld(t)
	r := w.serveGit("")
	var up atomic.Bool
	server := httptest.NewServer(
		http.HandlerFunc(func(rw http.ResponseWriter, request *http.Request) {
			if up.Load() {
				http.Redirect(rw, request, strings.TrimSuffix(r.url, "/agent.git/.git")+
					request.URL.String(), http.StatusTemporaryRedirect)
				return
			}
			rw.WriteHeader(http.StatusServiceUnavailable)
		}))
	t.Cleanup(server.Close)
	w.start()
	w.create("weather", r.source("main"), func(b *api.AgentBuild) {
		b.Spec.Source.SourceRepository = server.URL + "/agent.git/.git"
	})
	w.eventually("Retrying shows", func() string {
		b := w.build("weather")
		if c := condition(b, api.ConditionReady); c.Reason != api.ReasonRetrying ||
			!strings.Contains(c.Message, server.URL) || b.Status.Phase != api.PhasePending {
			return fmt.Sprintf("%s %s: %s", b.Status.Phase, c.Reason, c.Message)
		}
		return ""
	})
	up.Store(true)
	if got, want := w.run(1).Annotations[keys.AnnotationCommit], r.git("rev-parse", "HEAD"); got != want {
		t.Errorf("main became %q, want %s", got, want)
	}
}

// A refusal of a Git server is reported with its reason, and with a Secret's name
// but never its text.
func TestGitRefusals(t *testing.T) {
	w := newWorld(t)
	r := w.serveGit("right-token")
	w.options.Settings.PlainHTTPHosts = []string{"127.0.0.1"}
	secret := func(name, token string) {
		w.login(name, compose.PurposeGit, map[string]string{"token": token})
	}
	secret("right", "right-token")
	secret("wrong", "wrong-token")
	secret("empty", "")
	with := func(name string) func(*api.AgentBuild) {
		return func(b *api.AgentBuild) {
			b.Spec.Source.SourceCredentials = &corev1.LocalObjectReference{Name: name}
		}
	}
	w.start()
	refusals := []struct {
		name, reason, says string
		edit               []func(*api.AgentBuild)
	}{
		{"private", api.ReasonRepositoryPrivate, "requires a login",
			[]func(*api.AgentBuild){r.source("main")}},
		{"wrong", api.ReasonGitAuthInvalid, "refuses the login of Secret wrong",
			[]func(*api.AgentBuild){r.source("main"), with("wrong")}},
		{"empty", api.ReasonSecretInvalid, "neither a password nor a token",
			[]func(*api.AgentBuild){r.source("main"), with("empty")}},
		{"revision", api.ReasonRevisionNotFound, `has no revision "nowhere"`,
			[]func(*api.AgentBuild){r.source("nowhere"), with("right")}},
		{"typo", api.ReasonRevisionNotFound, "did you mean main?",
			[]func(*api.AgentBuild){r.source("mian"), with("right")}},
		{"short", api.ReasonRevisionNotFound, "a short SHA cannot be looked up",
			[]func(*api.AgentBuild){r.source("0123abc"), with("right")}},
		{"scheme", api.ReasonInvalidBuild, "is not a Git URL over https or ssh",
			[]func(*api.AgentBuild){func(b *api.AgentBuild) {
				file := "file:///etc"
				b.Spec.Source, b.Spec.Pipeline =
					api.SourceSpec{SourceRevision: "main"},
					&api.PipelineSpec{Parameters: []api.Parameter{{Name: "repo-url", Value: &file}}}
			}}},
		{"ssh", api.ReasonSecretInvalid, "lacks ssh-privatekey or known_hosts",
			[]func(*api.AgentBuild){with("right"), func(b *api.AgentBuild) {
				b.Spec.Source.SourceRepository, b.Spec.Source.SourceRevision =
					"git@127.0.0.1:org/agent.git", "main"
			}}},
	}
	for _, refusal := range refusals {
		w.create(refusal.name, refusal.edit...)
		got := w.phase(refusal.name, api.PhaseFailed)
		if c := condition(got, api.ConditionReady); c.Reason != refusal.reason ||
			!strings.Contains(c.Message, refusal.says) {
			t.Errorf("%s: %s %s", refusal.name, c.Reason, c.Message)
		}
		if strings.Contains(got.Status.Message, "-token") {
			t.Errorf("%s: a Secret's text is in the status: %s", refusal.name, got.Status.Message)
		}
	}
	w.create("good", r.source("main"), with("right"))
	w.run(1)
}
