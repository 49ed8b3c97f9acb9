package controller_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
)

// shownForge is a Gitea in front of a repository, with the statuses and comments that it got.
type shownForge struct {
	*world
	mu       sync.Mutex
	statuses map[string][]string // by commit, oldest first: STATE CONTEXT: DESCRIPTION
	last     map[string]map[string]any
	comments []map[string]any
	head     string // of the one open pull request
	refuse   int    // status of each answer
}

func (w *world) serveForge(r *repository) *shownForge {
	f := &shownForge{world: w, statuses: map[string][]string{}, last: map[string]map[string]any{}}
	to, err := url.Parse(r.url)
	w.must(err)
	git := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) {
		p.SetURL(&url.URL{Scheme: to.Scheme, Host: to.Host})
		p.Out.URL.Path = to.Path + strings.TrimPrefix(p.In.URL.Path, "/team/agent")
	}}
	server := httptest.NewServer(
		http.HandlerFunc(func(rw http.ResponseWriter, request *http.Request) {
			if strings.HasPrefix(request.URL.Path, "/team/") {
				git.ServeHTTP(rw, request)
				return
			}
			f.serve(rw, request)
		}))
	w.Cleanup(server.Close)
	r.url = server.URL + "/team/agent"
	return f
}

func (f *shownForge) serve(rw http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	path := strings.TrimPrefix(r.URL.Path, "/api/v1/repos/team/agent/")
	if r.Header.Get("Authorization") != "token hunter2" || f.refuse != 0 {
		rw.WriteHeader(max(f.refuse, http.StatusUnauthorized))
		return
	}
	in := map[string]any{}
	if r.Method != http.MethodGet && r.Method != http.MethodDelete {
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			f.Error(err)
		}
	}
	var answer any = in
	switch parts := strings.Split(path, "/"); {
	case r.URL.Path == "/api/v1/user":
		answer = map[string]any{"id": 3, "login": "bot"}
	case parts[0] == "commits":
		all := []any{}
		if f.last[parts[1]] != nil {
			all = append(all, f.last[parts[1]])
		}
		answer = map[string]any{"statuses": all}
	case parts[0] == "statuses":
		f.statuses[parts[1]] = append(f.statuses[parts[1]],
			fmt.Sprint(in["state"], " ", in["context"], ": ", in["description"]))
		in["status"] = in["state"]
		f.last[parts[1]] = in
	case path == "pulls" && r.URL.Query().Get("page") == "1":
		branch := map[string]any{"ref": "main", "sha": f.head, "repo_id": 1}
		answer = []any{map[string]any{"number": 7, "state": "open", "head": branch,
			"base": map[string]any{"ref": "prod", "repo_id": 1}}}
	case path == "pulls":
		answer = []any{}
	case path == "issues/7/comments" && r.Method == http.MethodGet:
		answer = f.comments
	case path == "issues/7/comments":
		in["id"], in["user"] = 1, map[string]any{"id": 3}
		f.comments = append(f.comments, in)
	case path == "issues/comments/1" && r.Method == http.MethodDelete:
		f.comments = nil
	default:
		f.Errorf("%s %s", r.Method, r.URL)
	}
	if err := json.NewEncoder(rw).Encode(answer); err != nil {
		f.Error(err)
	}
}

// shows waits for the last status of a commit.
func (f *shownForge) shows(commit, want string) {
	f.Helper()
	f.eventually("commit "+commit[:7]+" shows "+want, func() string {
		f.mu.Lock()
		defer f.mu.Unlock()
		all := f.statuses[commit]
		if len(all) == 0 || !strings.HasPrefix(all[len(all)-1], want) {
			return fmt.Sprintf("%q", all)
		}
		return ""
	})
}

// What becomes of a run is the status of its commit, and of its pull request where it failed.
// None is left unfinished when another commit is built or the build is deleted.
func TestReport(t *testing.T) {
	w := newWorld(t)
	r := w.serveGit("")
	f := w.serveForge(r)
	w.options.Settings.PlainHTTPHosts = []string{"127.0.0.1"}
	w.start()
	context := "armature/" + w.namespace + "/weather: "
	keep := false
	b := w.create("weather", r.source("main"), func(b *api.AgentBuild) {
		b.Spec.CleanupAfterBuild = &keep
		b.Spec.Report = &api.Report{Kind: "gitea",
			Credentials: corev1.LocalObjectReference{Name: "forge"}}
	})
	run := w.run(1)
	problem := func(want string) {
		t.Helper()
		w.eventually("status has the problem "+want, func() string {
			if s := w.build("weather").Status.Report; s == nil ||
				!strings.Contains(s.Problem, want) {
				return fmt.Sprintf("%+v", s)
			}
			return ""
		})
	}
	problem("Secret " + w.namespace + "/forge does not exist")
	w.login("forge", compose.PurposeGit, map[string]string{"token": "hunter2"})
	w.change(b, func(b *api.AgentBuild) {
		b.Spec.Report.Comment = "OnFailure"
		b.Labels = map[string]string{"look": "again"}
	})
	first := r.git("rev-parse", "main")
	f.mu.Lock()
	f.head = first
	f.mu.Unlock()
	f.shows(first, "pending "+context)
	if s := w.build("weather"); !slices.Contains(s.Finalizers, "agent.kagenti.dev/report") {
		t.Errorf("finalizers %v", s.Finalizers)
	}
	w.fail(run)
	w.phase("weather", api.PhaseFailed)
	f.shows(first, "failure "+context)
	w.eventually("the pull request says why", func() string {
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.comments) != 1 || !strings.Contains(fmt.Sprint(f.comments[0]["body"]),
			"### Build `"+w.namespace+"/weather` failed") {
			return fmt.Sprint(f.comments)
		}
		return ""
	})
	w.eventually("nothing holds the build", func() string {
		if s := w.build("weather"); slices.Contains(s.Finalizers, "agent.kagenti.dev/report") ||
			s.Status.Report.State != "failure" {
			return fmt.Sprint(s.Finalizers, s.Status.Report)
		}
		return ""
	})

	// Another attempt of the same commit takes the status over, and its success the comment away.
	w.change(b, func(b *api.AgentBuild) {
		b.Annotations = map[string]string{"agent.kagenti.dev/rerun": "1"}
	})
	run = w.run(2)
	f.shows(first, "pending "+context)
	w.succeed(run)
	f.shows(first, "success "+context)
	w.eventually("the comment is gone", func() string {
		f.mu.Lock()
		defer f.mu.Unlock()
		return strings.TrimPrefix(fmt.Sprint(f.comments), "[]")
	})

	// A commit that starts no run, as the trigger marks it.
	third := strings.Repeat("ab", 20)
	w.change(b, func(b *api.AgentBuild) {
		b.Annotations = map[string]string{"agent.kagenti.dev/rerun": "1",
			"agent.kagenti.dev/skipped": third + " none of its paths counts"}
	})
	f.shows(third, "success "+context+"none of its paths counts")

	// A newer commit, while the run of the older one is under way.
	second := r.commit("second")
	w.change(b, func(b *api.AgentBuild) {
		b.Annotations["agent.kagenti.dev/rerun"], b.Spec.OnChange = "2", api.ChangeCancel
	})
	w.run(3)
	f.shows(second, "pending "+context)
	fourth := r.commit("third")
	w.change(b, func(b *api.AgentBuild) { b.Annotations["agent.kagenti.dev/rerun"] = "3" })
	w.finish(w.run(3), corev1.ConditionFalse, "Cancelled", "cancelled")
	f.shows(fourth, "pending "+context)
	f.shows(second, "error "+context)

	// The forge does not answer; the build is deleted, and is held until its status is finished.
	f.mu.Lock()
	f.refuse = http.StatusBadGateway
	f.mu.Unlock()
	w.must(w.Client.Delete(t.Context(), w.build("weather")))
	f.mu.Lock()
	f.refuse = 0
	f.mu.Unlock()
	f.shows(fourth, "error "+context+"the build was deleted")
	w.eventually("the build is gone", func() string {
		if err := w.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "weather"},
			&api.AgentBuild{}); err == nil {
			return "it is there"
		}
		return ""
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	for commit, all := range f.statuses {
		if len(slices.Compact(slices.Clone(all))) != len(all) {
			t.Errorf("%s: an equal status was sent again: %q", commit, all)
		}
	}
}
