package hydrate_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	deliver "github.com/armature-dev/armature/render/deliver/forge"
	"github.com/armature-dev/armature/render/deliver/hydrate"
)

// forge is a server with Git repositories and an API, and what the API was asked.
type forge struct {
	*httptest.Server
	lock  sync.Mutex
	asked []string
	// answer gives the status and the body for a request.
	answer func(method, path string, query string) (int, string)
}

// onForge makes the clone's origin a repository team/fleet of a server.
func (c *clone) onForge() *forge {
	c.t.Helper()
	path, err := exec.LookPath("git")
	if err != nil {
		c.t.Fatal(err)
	}
	run(c.t, c.bare, "config", "http.receivepack", "true")
	git := &cgi.Handler{Path: path, Args: []string{"http-backend"}, Root: "/team", Env: []string{"GIT_PROJECT_ROOT=" + filepath.Dir(c.bare), "GIT_HTTP_EXPORT_ALL=1"}}
	f := &forge{}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/api/") {
			git.ServeHTTP(w, r)
			return
		}
		body, _ := io.ReadAll(r.Body)
		f.lock.Lock()
		defer f.lock.Unlock()
		login := r.Header.Get("Authorization") + r.Header.Get("PRIVATE-TOKEN")
		f.asked = append(f.asked, strings.TrimSpace(r.Method+" "+r.URL.EscapedPath()+" "+r.URL.RawQuery+" "+login+" "+string(body)))
		status, text := f.answer(r.Method, r.URL.Path, r.URL.RawQuery)
		if status == http.StatusFound {
			w.Header().Set("Location", text)
		}
		w.WriteHeader(status)
		io.WriteString(w, text)
	}))
	c.t.Cleanup(f.Close)
	c.git("remote", "set-url", "origin", f.URL+"/team/"+filepath.Base(c.bare))
	return f
}

// requests gives what was asked since the last call.
func (f *forge) requests() (all []string) {
	f.lock.Lock()
	defer f.lock.Unlock()
	all, f.asked = f.asked, nil
	return all
}

// pushed writes the branch with a package and gives what Propose takes.
func (c *clone) pushed(name, text string) (*hydrate.Branch, string) {
	c.t.Helper()
	b := c.branch(name)
	b.Push = true
	return b, c.must(b, text, "a").Commit
}

// A pull request is opened as each forge documents it, unless one is open.
func TestPropose(t *testing.T) {
	const about = "`armature hydrate` renders this branch. `hydrator.metadata` names the commit that it was rendered from."
	for name, c := range map[string]struct {
		look, create string // requests
		none, other  string // answers without a pull request between the branches
		there, made  string // answers with one
		body         map[string]string
	}{
		"github": {"GET /api/v3/repos/team/bare/pulls base=environments%2Fprod&head=team%3Aenvironments%2Fprod-next&state=open Bearer hunter2", "POST /api/v3/repos/team/bare/pulls  Bearer hunter2 ",
			`[]`, "", `[{"html_url": "https://forge/7"}]`, `{"html_url": "https://forge/8"}`,
			map[string]string{"head": "environments/prod-next", "base": "environments/prod", "title": "Hydrate environments/prod", "body": about}},
		"gitlab": {"GET /api/v4/projects/team%2Fbare/merge_requests source_branch=environments%2Fprod-next&state=opened&target_branch=environments%2Fprod hunter2", "POST /api/v4/projects/team%2Fbare/merge_requests  hunter2 ",
			`[]`, "", `[{"web_url": "https://forge/7"}]`, `{"web_url": "https://forge/8"}`,
			map[string]string{"source_branch": "environments/prod-next", "target_branch": "environments/prod", "title": "Hydrate environments/prod", "description": about}},
		"gitea": {"GET /api/v1/repos/team/bare/pulls limit=50&state=open token hunter2", "POST /api/v1/repos/team/bare/pulls  token hunter2 ",
			`[]`, `[{"html_url": "https://forge/1", "head": {"ref": "environments/prod-next", "repo_id": 2}, "base": {"ref": "environments/prod", "repo_id": 1}},
				{"html_url": "https://forge/2", "head": {"ref": "environments/prod-next", "repo_id": 1}, "base": {"ref": "main", "repo_id": 1}}]`,
			`[{"html_url": "https://forge/7", "head": {"ref": "environments/prod-next", "repo_id": 1}, "base": {"ref": "environments/prod", "repo_id": 1}}]`, `{"html_url": "https://forge/8"}`,
			map[string]string{"head": "environments/prod-next", "base": "environments/prod", "title": "Hydrate environments/prod", "body": about}},
	} {
		t.Run(name, func(t *testing.T) {
			clone := newClone(t)
			f := clone.onForge()
			p := clone.proposal(name)
			b, first := clone.pushed(prod+"-next", "one")
			if _, _, err := b.Propose(t.Context(), first, p); err == nil || !strings.Contains(err.Error(), "the branch environments/prod does not exist on origin") {
				t.Errorf("without the other branch: %v", err)
			}
			clone.git("fetch", "-q", "origin")
			clone.git("push", "-q", "origin", first+":refs/heads/"+prod)
			if address, opened, err := b.Propose(t.Context(), first, p); err != nil || opened || address != "" {
				t.Errorf("with nothing to merge: %q, %v, %v", address, opened, err)
			}
			if all := f.requests(); len(all) > 0 {
				t.Errorf("asked %q", all)
			}

			_, next := clone.pushed(prod+"-next", "two")
			f.answer = func(method, _, query string) (int, string) {
				switch {
				case method == http.MethodPost:
					return http.StatusCreated, c.made
				case c.other != "" && !strings.Contains(query, "page="):
					return http.StatusOK, c.other
				}
				return http.StatusOK, c.none
			}
			address, opened, err := b.Propose(t.Context(), next, p)
			if err != nil || !opened || address != "https://forge/8" {
				t.Errorf("opened %q, %v, %v", address, opened, err)
			}
			all := f.requests()
			if len(all) < 2 || all[0] != c.look || !strings.HasPrefix(all[len(all)-1], c.create) {
				t.Fatalf("asked\n%s\nwant\n%s\n%s", strings.Join(all, "\n"), c.look, c.create)
			}
			var body map[string]string
			if err := json.Unmarshal([]byte(strings.TrimPrefix(all[len(all)-1], c.create)), &body); err != nil {
				t.Fatal(err)
			}
			diff(t, "the pull request", c.body, body)

			f.answer = func(method, _, _ string) (int, string) { return http.StatusOK, c.there }
			if address, opened, err := b.Propose(t.Context(), next, p); err != nil || opened || address != "https://forge/7" {
				t.Errorf("with an open one: %q, %v, %v", address, opened, err)
			}
			diff(t, "requests with an open one", []string{c.look}, f.requests())
		})
	}
}

// A forge that refuses is an error without the token, which goes to no other host.
func TestProposeRefused(t *testing.T) {
	c := newClone(t)
	f := c.onForge()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("asked elsewhere, with %v", r.Header)
	}))
	defer elsewhere.Close()
	c.git("push", "-q", "origin", "main:refs/heads/"+prod)
	b, commit := c.pushed("hydrated", "one")
	for want, answer := range map[string]struct {
		status int
		text   string
	}{
		`answers 401 Unauthorized: {"message": "Bad credentials\x1b[2J"}`: {http.StatusUnauthorized, "{\"message\":\n  \"Bad credentials\x1b[2J\"}"},
		"a redirect is not followed":                                      {http.StatusFound, elsewhere.URL},
		"reading its answer":                                              {http.StatusOK, "<html>"},
		"answers more than 8388608 bytes":                                 {http.StatusOK, "[" + strings.Repeat(" ", 8<<20) + "]"},
	} {
		f.answer = func(string, string, string) (int, string) { return answer.status, answer.text }
		_, _, err := b.Propose(t.Context(), commit, c.proposal("gitea"))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for remote, want := range map[string]string{
		"http://git.example/team/fleet":  "a token is sent by https only",
		"file:///srv/git/fleet":          "is not a repository of a forge",
		"/srv/git/fleet":                 "is not a repository of a forge",
		"https://git.example/fleet":      "not that of a repository",
		"https://git.example/../x/fleet": "not that of a repository",
	} {
		if _, err := deliver.Open("gitea", remote, "hunter2", nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", remote, err, want)
		}
	}
}

// proposal of a pull request into prod.
func (c *clone) proposal(kind string) hydrate.Proposal {
	c.t.Helper()
	origin, err := hydrate.OriginURL(c.t.Context(), c.branch(prod).Folder)
	if err != nil {
		c.t.Fatal(err)
	}
	repository, err := deliver.Open(kind, origin, "hunter2", nil)
	if err != nil {
		c.t.Fatal(err)
	}
	return hydrate.Proposal{Base: prod, Repository: repository}
}

func TestForgeOf(t *testing.T) {
	for remote, want := range map[string]string{
		"https://github.com/team/fleet.git": "github", "git@github.com:team/fleet.git": "github", "ssh://git@gitlab.com:22/team/sub/fleet": "gitlab",
		"https://codeberg.org/team/fleet": "gitea", "https://git.example/team/fleet": "", "https://github.com.evil.example/team/fleet": "", "../fleet": "", "": "",
	} {
		if got := deliver.Of(remote); got != want {
			t.Errorf("%q is on %q, want %q", remote, got, want)
		}
	}
}
