package gitrun_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/armature-dev/armature/render/deliver/gitrun"
)

// tree writes files below a folder; a name that ends in a slash is a folder.
func tree(t *testing.T, files map[string]string) (root string) {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		at := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(at, 0o755)
		} else {
			err = os.WriteFile(at, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// The repository of a package is the nearest folder with an entry .git, and nothing that a
// commit can have.
func TestFind(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		at    string
		top   string // from the root
		fault string // in the error, in place of top
	}{
		"a folder in a clone": {map[string]string{"r/.git/": "",
			"r/apps/a/": ""}, "r/apps/a", "r", ""},
		"the root of a clone": {map[string]string{"r/.git/": ""}, "r", "r",
			""},
		"a clone in a clone": {map[string]string{"r/.git/": "",
			"r/in/.git/": "", "r/in/a/": ""}, "r/in/a", "r/in", ""},
		"a submodule": {map[string]string{"r/.git/modules/sub/": "",
			"r/sub/.git": "gitdir: ../.git/modules/sub\n", "r/sub/a/": ""}, "r/sub/a", "r/sub", ""},
		"an added working tree": {map[string]string{"r/.git/worktrees/w/": "",
			"w/.git": "gitdir: ../r/.git/worktrees/w\n", "w/a/": ""}, "w/a", "w", ""},
		"a working tree beside its bare repository": {map[string]string{"r/.bare/worktrees/w/": "",
			"r/.git": "gitdir: ./.bare\n", "r/w/.git": "gitdir: ../.bare/worktrees/w\n",
			"r/w/a/": ""}, "r/w/a", "r/w", ""},
		"a bare layout": {map[string]string{"r/.git/": "",
			"r/apps/a/HEAD": "", "r/apps/a/objects/": "", "r/apps/a/refs/": ""}, "r/apps/a", "",
			"r/apps/a/HEAD"},
		"a bare layout above": {map[string]string{"r/.git/": "",
			"r/apps/HEAD": "", "r/apps/objects/": "", "r/apps/refs/": "", "r/apps/a/": ""},
			"r/apps/a", "", "r/apps/HEAD"},
		"a bare layout with folders elsewhere": {map[string]string{"r/.git/": "",
			"r/a/HEAD": "", "r/a/commondir": ".."}, "r/a", "", "r/a/HEAD"},
		"a bare layout that is in no clone": {map[string]string{"a/HEAD": "",
			"a/objects/": "", "a/refs/": ""}, "a", "", "a/HEAD"},
		"a file .git that leads to files": {map[string]string{"r/.git/": "",
			"r/a/.git": "gitdir: ../layout\n", "r/layout/": ""}, "r/a", "", "r/a/.git"},
		"a file .git that leads to its neighbour": {map[string]string{"r/.git/": "",
			"r/a/.git": "gitdir: layout\n", "r/a/layout/": ""}, "r/a", "", "r/a/.git"},
		"a folder HEAD beside manifests": {map[string]string{"r/.git/": "",
			"r/a/HEAD/": "", "r/a/objects/": ""}, "r/a", "r", ""},
		"no repository": {map[string]string{"a/": ""}, "a", "",
			gitrun.ErrNone.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			root := tree(t, c.files)
			top, err := gitrun.Find(filepath.Join(root, c.at))
			switch {
			case c.fault == gitrun.ErrNone.Error():
				if !errors.Is(err, gitrun.ErrNone) {
					t.Errorf("%q, %v", top, err)
				}
			case c.fault != "":
				if err == nil || !strings.Contains(err.Error(), filepath.Join(root, c.fault)) ||
					!strings.Contains(err.Error(), "\n  hint: ") {
					t.Errorf("%q, %v", top, err)
				}
			case err != nil || top != filepath.Join(root, c.top):
				t.Errorf("%q, %v", top, err)
			}
		})
	}
}

// A process of git has no variables of a repository, such as a hook has, and fetches nothing
// by itself.
func TestCommand(t *testing.T) {
	for _, name := range []string{"GIT_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY",
		"GIT_ATTR_SOURCE", "GIT_EXTERNAL_DIFF", "GIT_NO_LAZY_FETCH"} {
		t.Setenv(name, "0")
	}
	t.Setenv("GIT_SSH_COMMAND", "mine")
	cmd := gitrun.Command(t.Context(), "/top", "status")
	var left []string
	for _, v := range cmd.Env {
		if strings.HasPrefix(v, "GIT_") && !strings.HasPrefix(v, "GIT_CONFIG_") &&
			!strings.HasPrefix(v, "GIT_SSL_") {
			left = append(left, v)
		}
	}
	if want := []string{"GIT_SSH_COMMAND=mine", "GIT_NO_LAZY_FETCH=1"}; !slices.Equal(left, want) {
		t.Errorf("%q", left)
	}
	for _, arg := range []string{"--git-dir=/top/.git", "--work-tree=/top",
		"safe.bareRepository=explicit", "core.fsmonitor=false", "core.hooksPath=" + os.DevNull} {
		if !slices.Contains(cmd.Args, arg) {
			t.Errorf("%q lacks %s", cmd.Args, arg)
		}
	}
}

// A repository of another user is not read, as git itself does not, unless the user allows it.
func TestOpenAsksForTheOwner(t *testing.T) {
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	top := tree(t, map[string]string{"apps/": ""})
	if out, err := exec.Command("git", "init", "-q", top).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got, err := gitrun.Open(t.Context(), filepath.Join(top, "apps")); err != nil || got != top {
		t.Errorf("%q, %v", got, err)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can give a folder away")
	}
	for _, name := range []string{top, filepath.Join(top, ".git")} {
		if err := os.Chown(name, 12345, 12345); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := gitrun.Open(t.Context(), filepath.Join(top, "apps")); err == nil ||
		!strings.Contains(err.Error(), "safe.directory") {
		t.Errorf("of another user: %q, %v", got, err)
	}
	for name, value := range map[string]string{"COUNT": "1", "KEY_0": "safe.directory", "VALUE_0": "*"} {
		t.Setenv("GIT_CONFIG_"+name, value)
	}
	if got, err := gitrun.Open(t.Context(), filepath.Join(top, "apps")); err != nil || got != top {
		t.Errorf("allowed: %q, %v", got, err)
	}
}

// No other package starts git, as it would have to keep all of this in mind.
func TestNobodyElseStartsGit(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	starts := regexp.MustCompile(`exec\.Command(Context)?\(([a-zA-Z]+(\(\))?, )?"git"`)
	for _, folder := range []string{"builds", "catalog", "cmd", "functions", "render"} {
		err := filepath.WalkDir(filepath.Join(root, folder),
			func(name string, e os.DirEntry, err error) error {
				if err != nil || e.IsDir() || !strings.HasSuffix(name, ".go") ||
					strings.HasSuffix(name, "_test.go") || filepath.Base(name) == "gitrun.go" {
					return err
				}
				text, err := os.ReadFile(name)
				if starts.Match(text) {
					t.Errorf("%s starts git: use gitrun.Command", name)
				}
				return err
			})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestPublicURL(t *testing.T) {
	for given, want := range map[string]string{
		"https://user:token@host/x.git?a=b#c": "https://host/x.git",
		"git@host:x.git":                      "git@host:x.git",
		"/srv/git/x":                          "/srv/git/x",
	} {
		if got, err := gitrun.PublicURL(given); err != nil || got != want {
			t.Errorf("%s: %q, %v", given, got, err)
		}
	}
	if got, err := gitrun.PublicURL("https://user:to%zzken@host/x"); err == nil ||
		strings.Contains(err.Error(), "ken") {
		t.Errorf("%q, %v", got, err)
	}
}
