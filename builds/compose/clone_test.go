package compose_test

import (
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/armature-dev/armature/functions/multi"
)

// gitServer serves the repositories of a folder to who knows the token, and
// remembers each Authorization that it is sent.
type gitServer struct {
	*httptest.Server
	root     string
	redirect string // where /away/… leads

	mu   sync.Mutex
	seen []string
}

const cloneToken = "right-token"

func newGitServer(t *testing.T) *gitServer {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("git is not installed\n  hint: apt-get install git")
	}
	s := &gitServer{root: t.TempDir()}
	backend := &cgi.Handler{Path: git, Args: []string{"http-backend"},
		Env: []string{"GIT_PROJECT_ROOT=" + s.root, "GIT_HTTP_EXPORT_ALL=1"}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a := r.Header.Get("Authorization"); a != "" {
			s.mu.Lock()
			s.seen = append(s.seen, a)
			s.mu.Unlock()
		}
		if rest, away := strings.CutPrefix(r.URL.RequestURI(), "/away/"); away {
			http.Redirect(w, r, s.redirect+"/"+rest, http.StatusFound)
			return
		}
		if _, password, _ := r.BasicAuth(); password != cloneToken {
			w.Header().Set("WWW-Authenticate", "Basic")
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *gitServer) authorizations() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.seen...)
}

func gitIn(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b", "GIT_CONFIG_GLOBAL=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// repository makes a repository of one file, with submodules by name and URL, and returns its URL
// and its commit.
func (s *gitServer) repository(t *testing.T, name string,
	submodules map[string]string) (url, commit string) {
	t.Helper()
	dir := filepath.Join(s.root, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	gitIn(t, dir, "init", "-q", "-b", "main")
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte(name), 0o600); err != nil {
		t.Fatal(err)
	}
	gitIn(t, dir, "add", "file")
	for at, address := range submodules {
		gitIn(t, dir, "config", "--file", ".gitmodules", "submodule."+at+".path", at)
		gitIn(t, dir, "config", "--file", ".gitmodules", "submodule."+at+".url", address)
		gitIn(t, dir, "add", ".gitmodules")
		// The commit of a repository of that name on the same server, where there is one.
		commit := strings.Repeat("1", 40)
		if other := filepath.Join(s.root, at); exists(filepath.Join(other, ".git")) {
			commit = gitIn(t, other, "rev-parse", "HEAD")
		}
		gitIn(t, dir, "update-index", "--add", "--cacheinfo", "160000,"+commit+","+at)
	}
	gitIn(t, dir, "commit", "-q", "-m", "first")
	return s.URL + "/" + name + "/.git", gitIn(t, dir, "rev-parse", "HEAD")
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// clone runs the clone step's script; edit overrides its environment.
func clone(t *testing.T, url string,
	edit ...string) (source string, results map[string]string, printed string, err error) {
	t.Helper()
	return cloneAs(t, nil, url, edit...)
}

// cloneAs another user; nil is who runs the test.
func cloneAs(t *testing.T, as *syscall.Credential, url string,
	edit ...string) (source string, results map[string]string, printed string, err error) {
	t.Helper()
	dir := t.TempDir()
	source, credentials := filepath.Join(dir, "source"), filepath.Join(dir, "credentials")
	for _, folder := range []string{source, credentials} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	token := filepath.Join(credentials, "token")
	if err := os.WriteFile(token, []byte(cloneToken), 0o600); err != nil {
		t.Fatal(err)
	}
	give(t, as, dir, source, credentials, token)
	step := stepContainer(t, "github-clone-step", "clone")
	env := []string{"GIT_CONFIG_NOSYSTEM=1"}
	for _, e := range step.Env {
		if !strings.Contains(e.Value, "$(") {
			env = append(env, e.Name+"="+e.Value)
		}
	}
	env = append(env, "HOME="+dir, "URL="+url, "REVISION=main", "REPO_USER=", "DEPTH=1",
		"SUBMODULES=false", "SOURCE="+source, "CREDENTIALS="+credentials)
	results, printed, err = runScriptAs(t, as, step.Script, append(env, edit...)...)
	return source, results, printed, err
}

// The token goes to the clone URL's host, and to none that its content or a
// redirect leads to.
func TestCloneTokenStaysWithItsHost(t *testing.T) {
	home, other := newGitServer(t), newGitServer(t)
	home.redirect = other.URL
	other.repository(t, "library", nil)
	url, commit := home.repository(t, "agent",
		map[string]string{"library": other.URL + "/library/.git"})

	source, results, printed, err := clone(t, url)
	if err != nil || results["commit"] != commit || results["CHAINS-GIT_COMMIT"] != commit ||
		results["url"] != url {
		t.Fatalf("%v: %v\n%s", err, results, printed)
	}
	if exists(filepath.Join(source, "library", "file")) {
		t.Error("a submodule was checked out unasked")
	}
	if len(home.authorizations()) == 0 {
		t.Error("the token was never used, so that this test shows nothing")
	}
	if _, _, printed, err := clone(t, url, "SUBMODULES=true"); err == nil ||
		!strings.Contains(printed, "submodules of other hosts are not checked out") {
		t.Errorf("%v: %s", err, printed)
	}
	if _, _, _, err := clone(t, home.URL+"/away/library/.git"); err == nil {
		t.Error("a redirect to another host was followed with a login")
	}
	if got := other.authorizations(); len(got) > 0 {
		t.Errorf("the other server was sent %q", got)
	}
}

// By choice submodules of the same host are checked out, at any depth, and one of
// another host below them is not.
func TestCloneSubmodules(t *testing.T) {
	home, other := newGitServer(t), newGitServer(t)
	home.repository(t, "inner", nil)
	home.repository(t, "middle", map[string]string{"inner": home.URL + "/inner/.git"})
	url, _ := home.repository(t, "outer", map[string]string{"middle": "../../middle/.git"})
	source, _, printed, err := clone(t, url, "SUBMODULES=true")
	if err != nil {
		t.Fatalf("%v: %s", err, printed)
	}
	if !exists(filepath.Join(source, "middle", "inner", "file")) {
		t.Errorf("the submodule's submodule is missing: %s", printed)
	}
	home.repository(t, "bad", map[string]string{"inner": other.URL + "/inner/.git"})
	url, _ = home.repository(t, "worse", map[string]string{"bad": home.URL + "/bad/.git"})
	if _, _, printed, err := clone(t, url, "SUBMODULES=true"); err == nil ||
		!strings.Contains(printed, "submodules of other hosts") {
		t.Errorf("%v: %s", err, printed)
	}
	if got := other.authorizations(); len(got) > 0 {
		t.Errorf("the other server was sent %q", got)
	}
}

// Neither a revision nor a depth nor a URL becomes an option, a command or a
// file.
func TestCloneTakesNoOptions(t *testing.T) {
	home := newGitServer(t)
	url, commit := home.repository(t, "agent", nil)
	dir := filepath.Join(home.root, "agent")
	gitIn(t, dir, "branch", "feature/x")
	gitIn(t, dir, "tag", "-a", "v1", "-m", "release")
	for _, revision := range []string{"main", "feature/x", "v1", "refs/heads/main", commit} {
		for _, depth := range []string{"0", "1"} {
			if _, results, printed, err := clone(t, url, "REVISION="+revision,
				"DEPTH="+depth); err != nil || results["commit"] != commit {
				t.Errorf("%s, depth %s: %v: %v\n%s", revision, depth, err, results, printed)
			}
		}
	}
	marker := filepath.Join(t.TempDir(), "executed")
	for _, edit := range [][]string{
		{"REVISION=--upload-pack=touch " + marker},
		{"REVISION=--upload-pack=touch " + marker, "URL=file://" + dir},
		{"REVISION=-h"},
		{"REVISION="},
		{"REVISION=nowhere"},
		{"DEPTH=1 --upload-pack=touch " + marker},
		{"DEPTH=--upload-pack=touch"},
		{"DEPTH="},
		{"URL=file://" + dir},
		{"URL=" + dir},
		{"URL=ext::sh -c touch% " + marker},
		{"URL=--upload-pack=touch " + marker},
		{"URL=git://127.0.0.1:1/x"},
	} {
		source, results, printed, err := clone(t, url, edit...)
		if err == nil || len(results) > 0 || exists(filepath.Join(source, "file")) {
			t.Errorf("%v was accepted: %v\n%s", edit, results, printed)
		}
		if exists(marker) {
			t.Fatalf("%v was executed", edit)
		}
	}
}

// Files that an earlier run left in a kept volume are removed. A file that cannot
// be removed is reported with a remedy.
func TestCloneIntoAVolumeThatIsInUse(t *testing.T) {
	home := newGitServer(t)
	url, commit := home.repository(t, "agent", nil)
	used := t.TempDir()
	if err := os.MkdirAll(filepath.Join(used, ".cache", "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, results, printed, err := clone(t, url, "SOURCE="+used); err != nil ||
			results["commit"] != commit {
			t.Fatalf("%v: %s", err, printed)
		}
	}
	if exists(filepath.Join(used, ".cache")) {
		t.Error("the folder of an earlier run is still there")
	}
}

// Files of another user in a volume that does not belong to the build's group
// cannot be removed, which is reported with a remedy. In the group's own volume
// they are removed.
func TestCloneIntoAVolumeOfAnotherUser(t *testing.T) {
	url, commit := newGitServer(t).repository(t, "agent", nil)
	used := t.TempDir()
	as := anotherUser(t, used)
	give(t, as, used)
	locked := filepath.Join(used, "locked") // stays root's, where root runs the test
	if err := os.MkdirAll(filepath.Join(locked, "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	if as == nil { // nobody else's files can be made: one's own, without the right to remove them
		if err := os.Chmod(locked, 0o555); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Chmod(locked, 0o755) })
	}
	for range 2 {
		if _, results, printed, err := cloneAs(t, as, url, "SOURCE="+used); err == nil ||
			len(results) > 0 || !strings.Contains(printed, "delete the PersistentVolumeClaim") ||
			!exists(filepath.Join(locked, "deep")) {
			t.Errorf("%v: %v %s", err, results, printed)
		}
	}
	// What the kubelet does with fsGroup.
	group := os.Getegid()
	if as != nil {
		group = int(as.Gid)
	}
	for _, f := range []string{used, locked, filepath.Join(locked, "deep")} {
		if err := multi.Errors(os.Chown(f, -1, group),
			os.Chmod(f, 0o775|os.ModeSetgid)); err != nil {
			t.Fatal(err)
		}
	}
	if _, results, printed, err := cloneAs(t, as, url, "SOURCE="+used); err != nil ||
		results["commit"] != commit || exists(locked) {
		t.Errorf("a volume of the group: %v: %s", err, printed)
	}
}

// anotherUser to run scripts as, who can reach the test's folder: root may remove
// everything. nil is for who is not root.
func anotherUser(t *testing.T, folder string) *syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	as := &syscall.Credential{Uid: 65534, Gid: 65534}
	if err := os.Chmod(filepath.Dir(folder), 0o711); err != nil { // of all folders of the test
		t.Fatal(err)
	}
	look := exec.CommandContext(t.Context(), "ls", folder)
	look.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	if out, err := look.CombinedOutput(); err != nil {
		t.Skipf("another user than root cannot reach the folder of temporary files: %v: %s", err, out)
	}
	return as
}

// The SSH key is where git needs it while it fetches, and nowhere in the home that
// the steps of a pod share when the step has ended, well or badly.
func TestCloneLeavesNoKey(t *testing.T) {
	server := newGitServer(t)
	_, commit := server.repository(t, "agent", nil)
	bin, credentials := t.TempDir(), t.TempDir()
	stub := "#!/bin/sh\ncat \"$2\" >> \"$SEEN\"\n[ -z \"$BROKEN\" ] || exit 255\n" +
		"for last; do :; done\neval \"$last\"\n"
	if err := os.WriteFile(filepath.Join(bin, "ssh"), []byte(stub), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"ssh-privatekey", "known_hosts"} {
		if err := os.WriteFile(filepath.Join(credentials, file), []byte("the "+file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, broken := range []string{"", "yes"} {
		home, seen := t.TempDir(), filepath.Join(t.TempDir(), "seen")
		_, results, printed, err := clone(t,
			"ssh://git@git.example.com"+filepath.Join(server.root, "agent"),
			"PATH="+bin+":"+os.Getenv("PATH"), "HOME="+home, "CREDENTIALS="+credentials,
			"SEEN="+seen, "BROKEN="+broken)
		if broken == "" && (err != nil || results["commit"] != commit) || broken != "" && err == nil {
			t.Fatalf("broken %q: %v: %s", broken, err, printed)
		}
		if key, err := os.ReadFile(seen); err != nil ||
			!strings.HasPrefix(string(key), "the ssh-privatekey") {
			t.Errorf("broken %q: ssh was given the key %q, %v", broken, key, err)
		}
		if exists(filepath.Join(home, ".ssh")) {
			t.Errorf("broken %q: the key is left behind", broken)
		}
	}
}
