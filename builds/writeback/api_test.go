package writeback_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/builds/writeback"
	"github.com/armature-dev/armature/render/deliver/forge"
)

// hub is a repository that is read by Git, and written by the API of GitHub: each commit is a
// real one, with the lease of createCommitOnBranch and of updateRefs.
type hub struct {
	*repository
	server *httptest.Server
	mu     sync.Mutex
	lose   bool   // the answers of commits
	read   func() // runs once, before objects of the next fetch are sent
}

func (r *repository) hub() *hub {
	r.t.Helper()
	team := filepath.Join(filepath.Dir(r.bare), "team")
	if err := os.MkdirAll(team, 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Symlink(r.bare, filepath.Join(team, "apps.git")); err != nil {
		r.t.Fatal(err)
	}
	h := &hub{repository: r}
	program := r.run(r.bare, "--exec-path") + "/git-http-backend"
	git := &cgi.Handler{Path: program,
		Env: []string{"GIT_PROJECT_ROOT=" + filepath.Dir(r.bare), "GIT_HTTP_EXPORT_ALL=1",
			"GIT_CONFIG_GLOBAL=" + os.Getenv("GIT_CONFIG_GLOBAL")}}
	mux := http.NewServeMux()
	mux.HandleFunc("/team/", func(w http.ResponseWriter, r *http.Request) {
		if h.read != nil && r.Method == http.MethodPost {
			read := h.read
			h.read = nil
			read()
		}
		git.ServeHTTP(w, r)
	})
	mux.HandleFunc("/api/graphql", h.graphQL)
	mux.HandleFunc("/api/v3/repos/team/apps/", h.rest)
	h.server = httptest.NewServer(mux)
	r.t.Cleanup(h.server.Close)
	return h
}

// git in the bare repository; ok is false where it refuses.
func (h *hub) git(in string, args ...string) (out string, ok bool) {
	cmd := exec.Command("git",
		append([]string{"-C", h.bare, "-c", "user.name=armature-app[bot]", "-c",
			"user.email=bot@users.noreply.example"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_INDEX_FILE="+filepath.Join(h.bare, "api-index"))
	cmd.Stdin = strings.NewReader(in)
	text, err := cmd.Output()
	return strings.TrimSpace(string(text)), err == nil
}

// commit a file on top of a parent.
func (h *hub) commit(parent, path, text, message string) string {
	blob, _ := h.git(text, "hash-object", "-w", "--stdin")
	h.git("", "read-tree", parent)
	h.git("", "update-index", "--add", "--cacheinfo", "100644,"+blob+","+path)
	tree, _ := h.git("", "write-tree")
	made, ok := h.git(message, "commit-tree", tree, "-p", parent)
	if !ok {
		h.t.Errorf("no commit on %s", parent)
	}
	return made
}

func (h *hub) graphQL(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var in struct {
		Query     string
		Variables struct {
			Input struct {
				Branch          struct{ BranchName string }
				ExpectedHeadOid string
				Message         struct{ Headline, Body string }
				FileChanges     struct {
					Additions []struct{ Path, Contents string }
				}
				RefUpdates []struct{ Name, BeforeOid, AfterOid string }
			}
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		h.t.Error(err)
	}
	input := in.Variables.Input
	answer, write :=
		`{"data": {"viewer": {"login": "armature-app[bot]"}, "repository": {"id": "R_1"}}}`, false
	const stale = `{"errors": [{"type": "STALE_DATA", "message": "Expected branch to point to another commit"}]}`
	switch {
	case strings.Contains(in.Query, "createCommitOnBranch"):
		file := input.FileChanges.Additions[0]
		text, _ := base64.StdEncoding.DecodeString(file.Contents)
		made := h.commit(input.ExpectedHeadOid, file.Path, string(text),
			input.Message.Headline+"\n\n"+input.Message.Body+"\n")
		answer, write = fmt.Sprintf(`{"data": {"createCommitOnBranch": {"commit": {"oid": %q}}}}`,
			made), true
		if _, ok := h.git("", "update-ref", "refs/heads/"+input.Branch.BranchName, made,
			input.ExpectedHeadOid); !ok {
			answer = stale
		}
	case strings.Contains(in.Query, "updateRefs"):
		u := input.RefUpdates[0]
		answer, write = `{"data": {}}`, true
		if _, ok := h.git("", "update-ref", u.Name, u.AfterOid, u.BeforeOid); !ok {
			answer = stale
		}
	}
	if write && h.lose {
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write([]byte(answer))
}

// rest has the Git database: refs, trees and commits, and whose a commit is.
func (h *hub) rest(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var in struct {
		Ref, SHA, Message, Tree string
		Base                    string `json:"base_tree"`
		Entries                 []struct{ Path, Content string }
		Parents                 []string
	}
	raw := map[string]json.RawMessage{}
	if r.Method == http.MethodPost {
		if err := json.NewDecoder(r.Body).Decode(&raw); err != nil {
			h.t.Error(err)
		}
		for name, into := range map[string]any{"ref": &in.Ref, "sha": &in.SHA,
			"message": &in.Message, "base_tree": &in.Base, "parents": &in.Parents} {
			if raw[name] != nil {
				_ = json.Unmarshal(raw[name], into)
			}
		}
	}
	path := strings.TrimPrefix(r.URL.Path, "/api/v3/repos/team/apps/")
	switch {
	case path == "git/refs":
		if _, ok := h.git("", "update-ref", in.Ref, in.SHA, strings.Repeat("0", 40)); !ok {
			http.Error(w, `{"message": "Reference already exists"}`, http.StatusUnprocessableEntity)
			return
		}
		fmt.Fprint(w, `{}`)
	case strings.HasPrefix(path, "git/ref/heads/"):
		sha, _ := h.git("", "rev-parse", "--verify", "-q",
			"refs/"+strings.TrimPrefix(path, "git/ref/"))
		fmt.Fprintf(w, `{"object": {"sha": %q}}`, sha)
	case strings.HasPrefix(path, "git/commits/"):
		tree, _ := h.git("", "rev-parse", strings.TrimPrefix(path, "git/commits/")+"^{tree}")
		fmt.Fprintf(w, `{"tree": {"sha": %q}}`, tree)
	case path == "git/trees":
		_ = json.Unmarshal(raw["tree"], &in.Entries)
		blob, _ := h.git(in.Entries[0].Content, "hash-object", "-w", "--stdin")
		h.git("", "read-tree", in.Base)
		h.git("", "update-index", "--add", "--cacheinfo", "100644,"+blob+","+in.Entries[0].Path)
		tree, _ := h.git("", "write-tree")
		fmt.Fprintf(w, `{"sha": %q}`, tree)
	case path == "git/commits":
		_ = json.Unmarshal(raw["tree"], &in.Tree)
		made, _ := h.git(in.Message, "commit-tree", in.Tree, "-p", in.Parents[0])
		fmt.Fprintf(w, `{"sha": %q}`, made)
	case strings.HasPrefix(path, "commits/"):
		author, _ := h.git("", "show", "-s", "--format=%an", strings.TrimPrefix(path, "commits/"))
		fmt.Fprintf(w, `{"author": {"login": %q}, "commit": {"verification": {"verified": true}}}`,
			author)
	default:
		h.t.Errorf("%s %s", r.Method, r.URL)
	}
}

// byAPI is an Update by the API of a server.
func byAPI(server string) (*writeback.Update, error) {
	address := server + "/team/apps.git"
	api, err := new(forge.Clients).Open(forge.GitHub, address, forge.Credential{Token: "hunter2"})
	return &writeback.Update{Remote: gitremote.Repository{URL: address}, Branch: "main",
		Path: lockPath, API: api}, err
}

func (h *hub) update() *writeback.Update {
	h.t.Helper()
	u, err := byAPI(h.server.URL)
	if err != nil {
		h.t.Fatal(err)
	}
	return u
}

// What Git writes, the API writes: the lines that differ, one commit per set, and nothing again
// that a person took out.
func TestAPI(t *testing.T) {
	r := newRepository(t)
	h := r.hub()
	u := h.update()
	first := r.write(u, built("weather", 1), built("search", 1))
	if !first.New || first.Commit != r.run(r.bare, "rev-parse", "main") || r.commits("main") != 3 {
		t.Errorf("%+v", first)
	}
	if text := r.run(r.bare, "show", "-s", "--format=%(trailers:key=Armature-Set,valueonly)",
		"main"); !strings.HasPrefix(text, "sha256:") || len(text) != 71 {
		t.Errorf("the set %q", text)
	}
	if again := r.write(u, built("search", 1), built("weather", 1)); again.Commit != "" {
		t.Errorf("again: %+v", again)
	}
	r.pull()
	r.run(r.work, "revert", "--no-edit", "HEAD")
	r.run(r.work, "push", "-q", "origin", "main")
	if held := r.write(u, built("weather", 1)); len(held.Held) != 1 || held.Commit != "" {
		t.Errorf("reverted: %+v", held)
	}

	// Its own branch is replaced on top of what main is now.
	u.Proposal = "armature/pin/apps"
	second := r.write(u, built("weather", 2))
	if again := r.write(u, built("weather", 2)); again.New || again.Commit != second.Commit {
		t.Errorf("again: %+v", again)
	}
	r.person("README.md", "# More\n")
	third := r.write(u, built("weather", 3))
	if parent := r.run(r.bare, "rev-parse", u.Proposal+"~"); !third.New ||
		parent != r.run(r.bare, "rev-parse", "main") {
		t.Errorf("it is on %s: %+v", parent, third)
	}
	r.run(r.work, "fetch", "-q", "origin")
	r.run(r.work, "checkout", "-q", "-b", "mine", "origin/"+u.Proposal)
	r.run(r.work, "commit", "-q", "--allow-empty", "-m", "Mine\n\nArmature-Set: sha256:1")
	r.run(r.work, "push", "-q", "origin", "mine:"+u.Proposal)
	if _, err := u.Write(t.Context(), []writeback.Built{built("weather", 4)}); !errors.As(err,
		new(*writeback.ForeignError)) {
		t.Errorf("a person's commit: %v", err)
	}

	// A branch that a killed write-back made, without its commit.
	u.Proposal = "armature/pin/other"
	r.run(r.bare, "branch", u.Proposal, "main")
	r.person("README.md", "# Even more\n")
	if result := r.write(u, built("weather", 4)); !result.New ||
		r.run(r.bare, "rev-parse", u.Proposal+"~") != r.run(r.bare, "rev-parse", "main") {
		t.Errorf("%+v", result)
	}
}

// The commit of an answer that gets lost is found again, in the branch and in that of a pull
// request.
func TestAPILostAnswer(t *testing.T) {
	r := newRepository(t)
	h := r.hub()
	for _, proposal := range []string{"", "armature/pin/apps"} {
		u := h.update()
		u.Proposal = proposal
		for digit := 1; digit < 4; digit++ {
			commits := r.commits("main")
			h.lose = true
			if _, err := u.Write(t.Context(),
				[]writeback.Built{built("weather"+strings.ReplaceAll(proposal, "/", "-"),
					digit)}); err != nil {
				t.Error(err)
			}
			h.lose = false
			if more := r.commits("main") - commits; proposal == "" && more != 1 ||
				proposal != "" && more != 0 {
				t.Errorf("%q: %d commits", proposal, more)
			}
			before := r.run(r.bare, "rev-parse", "main")
			result := r.write(u, built("weather"+strings.ReplaceAll(proposal, "/", "-"), digit))
			if result.New || r.run(r.bare, "rev-parse", "main") != before ||
				proposal != "" && result.Commit != r.run(r.bare, "rev-parse", proposal) {
				t.Errorf("%q: %+v", proposal, result)
			}
		}
	}
}

// A commit that another writer replaces between the list of branches and their objects: the
// server no longer has it.
func TestAPIReplacedWhileRead(t *testing.T) {
	r := newRepository(t)
	h := r.hub()
	u := h.update()
	u.Proposal = "armature/pin/apps"
	r.write(u, built("weather", 1))
	var other writeback.Result
	h.read = func() { other = r.write(u, built("weather", 2)) }
	if result := r.write(u, built("weather", 2)); !other.New || result.New ||
		result.Commit != other.Commit {
		t.Errorf("%+v after %+v", result, other)
	}
	h.read = func() { other = r.write(u, built("weather", 3)) }
	if result := r.write(u, built("weather", 4)); !other.New || !result.New ||
		r.commits(u.Proposal) != 3 {
		t.Errorf("%+v after %+v", result, other)
	}
}

// The same for a branch that has nothing to do with the commits that are compared.
func TestDescendsWhileReplaced(t *testing.T) {
	r := newRepository(t)
	h := r.hub()
	r.person("README.md", "# More\n")
	main := r.run(r.bare, "rev-parse", "main")
	replace := func(text string) {
		r.run(r.bare, "update-ref", "refs/heads/other", h.commit(main, "other", text, text))
	}
	replace("one")
	h.read = func() { replace("two") }
	source := gitremote.Repository{URL: h.server.URL + "/team/apps.git"}
	is, err := source.Descends(t.Context(), r.run(r.bare, "rev-parse", "main~"),
		r.run(r.bare, "rev-parse", "main~2"))
	if err != nil || !is || h.read != nil {
		t.Errorf("%v, %v", is, err)
	}
}

// Writers at the same time make one commit of each set.
func TestAPIWritersAtOnce(t *testing.T) {
	r := newRepository(t)
	h := r.hub()
	var all sync.WaitGroup
	for digit := range 4 {
		for range 2 {
			all.Go(func() {
				if _, err := h.update().Write(t.Context(),
					[]writeback.Built{built(fmt.Sprintf("agent%d", digit), 1)}); err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	if n := r.commits("main"); n != 6 {
		t.Errorf("%d commits", n)
	}
}

// SIGKILL at any moment leaves exactly one commit per set, also on the branch of a pull request.
func TestAPIKilled(t *testing.T) {
	for _, proposal := range []string{"", "armature/pin/apps"} {
		r := newRepository(t)
		h := r.hub()
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		start := func(digit int) *exec.Cmd {
			cmd := exec.Command(self)
			cmd.Env = append(os.Environ(), killed+"="+h.server.URL, killed+"_API=yes",
				killed+"_PROPOSAL="+proposal, killed+"_DIGIT="+fmt.Sprint(digit))
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			return cmd
		}
		began := time.Now()
		if err := start(1).Wait(); err != nil {
			t.Fatal(err)
		}
		whole := time.Since(began)
		cut, written := 0, 0
		for i := 2; i < 2+kills(); i++ {
			cmd := start(i)
			time.Sleep(whole * time.Duration(4*i) / time.Duration(kills()))
			_ = cmd.Process.Kill()
			if cmd.Wait() != nil {
				cut++
			}
			u := h.update()
			u.Proposal = proposal
			if result := r.write(u, built("weather", i)); !result.New {
				written++
			}
			branch, want := "main", i+2
			if proposal != "" {
				branch, want = proposal, 3
			}
			if n := r.commits(branch); n != want {
				t.Fatalf("after %d write-backs %s has %d commits", i, branch, n)
			}
		}
		r.run(r.bare, "fsck", "--strict", "--no-dangling")
		t.Logf("%q: %d of %d were killed before their end, %d had written (one takes %s)", proposal,
			cut, kills(), written, whole.Round(time.Millisecond))
	}
}
