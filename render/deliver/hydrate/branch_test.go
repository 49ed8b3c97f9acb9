package hydrate_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/deliver/hydrate"
)

const (
	source = "https://git.example/fleet/agents"
	prod   = "environments/prod"
)

// clone is a clone of a bare repository, which is its origin.
type clone struct {
	t            *testing.T
	folder, bare string
}

// newClone has one commit with the folders a and b.
func newClone(t *testing.T) *clone {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git program")
	}
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	t.Setenv("HOME", t.TempDir())
	for key, value := range map[string]string{"NAME": "Ada", "EMAIL": "ada@example.com"} {
		t.Setenv("GIT_AUTHOR_"+key, value)
		t.Setenv("GIT_COMMITTER_"+key, value)
	}
	c := &clone{t, filepath.Join(t.TempDir(), "clone"), filepath.Join(t.TempDir(), "bare.git")}
	run(t, "", "init", "-q", "--bare", "-b", "main", c.bare)
	run(t, "", "clone", "-q", c.bare, c.folder)
	c.git("checkout", "-q", "-b", "main")
	c.commit("The packages", "a", "b")
	c.git("push", "-q", "origin", "main")
	return c
}

// again is another clone of the same origin.
func (c *clone) again() *clone {
	c.t.Helper()
	other := &clone{c.t, filepath.Join(c.t.TempDir(), "clone"), c.bare}
	run(c.t, "", "clone", "-q", c.bare, other.folder)
	return other
}

// commit adds or changes folders, and returns the hash.
func (c *clone) commit(message string, folders ...string) string {
	c.t.Helper()
	for _, folder := range folders {
		c.write(filepath.Join("apps", folder, "source.yaml"), message)
	}
	c.git("add", "-A")
	c.git("commit", "-q", "--allow-empty", "-m", message)
	return c.git("rev-parse", "HEAD")
}

func (c *clone) write(file, text string) {
	c.t.Helper()
	file = filepath.Join(c.folder, file)
	if err := multi.Errors(os.MkdirAll(filepath.Dir(file), 0o755),
		os.WriteFile(file, []byte(text), 0o644)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *clone) git(args ...string) string { c.t.Helper(); return run(c.t, c.folder, args...) }

// foreign commits a file of somebody else to a branch.
func (c *clone) foreign(branch, file, text string) {
	c.t.Helper()
	c.git("checkout", "-q", branch)
	c.write(file, text)
	c.git("add", "-A")
	c.git("commit", "-q", "-m", "Somebody else's")
	c.git("checkout", "-q", "main")
}

func run(t *testing.T, folder string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = folder
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func (c *clone) branch(name string) *hydrate.Branch {
	c.t.Helper()
	return &hydrate.Branch{Folder: c.folder, Name: name, URL: source,
		Commit: c.git("rev-parse", "HEAD")}
}

// must writes packages of a manifest with a text.
func (c *clone) must(b *hydrate.Branch, text string, folders ...string) hydrate.Result {
	c.t.Helper()
	r, err := b.Write(c.t.Context(), packages(text, folders...))
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

// refused expects an error, and that no reference moves.
func (c *clone) refused(b *hydrate.Branch, want string, folders ...string) {
	c.t.Helper()
	before := c.git("for-each-ref") + run(c.t, c.bare, "for-each-ref")
	_, err := b.Write(c.t.Context(), packages("refused", folders...))
	if err == nil || !strings.Contains(err.Error(), want) {
		c.t.Errorf("got error %v, want %q", err, want)
	}
	if after := c.git("for-each-ref") + run(c.t, c.bare, "for-each-ref"); after != before {
		c.t.Errorf("references moved:\n%s", cmp.Diff(before, after))
	}
}

func packages(text string, folders ...string) (all []hydrate.Package) {
	for _, folder := range folders {
		all = append(all,
			hydrate.Package{Path: "apps/" + folder, Manifest: []byte("text: " + text + "\n")})
	}
	return all
}

func (c *clone) files(revision string) []string {
	c.t.Helper()
	return strings.Split(c.git("ls-tree", "-r", "--name-only", revision), "\n")
}

func (c *clone) show(revision, file string) string {
	c.t.Helper()
	return c.git("show", revision+":"+file)
}

func diff(t *testing.T, what string, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// The layout is that of Argo CD's hydrator, and the clone's working tree and index stay.
func TestLayout(t *testing.T) {
	c := newClone(t)
	dry := c.commit(`Bump the image

Signed-off-by: CI <ci@example.com>
Argocd-reference-commit-author: Grace Hopper <grace@example.com>
Argocd-reference-commit-sha: B82ADD2
Argocd-reference-commit-sha: b82add298aa045d3672880802d5305c5a8aaa46e
Argocd-reference-commit-subject: Make a change
Argocd-reference-commit-body: "Why\n\nBecause <it> is"
Argocd-reference-commit-repourl: https://git.example/fleet/code
Argocd-reference-commit-date: 2025-06-09T13:50:18-04:00`, "a")
	c.write("apps/a/source.yaml", "not committed")
	c.write("staged", "x")
	c.git("add", "staged")
	status, index := c.git("status", "--porcelain"), c.git("ls-files", "-s")
	b := c.branch(prod)
	b.Flags = []string{"--config", "it's here.yaml"}
	r := c.must(b, "one", "a", "b")
	diff(t, "status", status, c.git("status", "--porcelain"))
	diff(t, "index", index, c.git("ls-files", "-s"))
	diff(t, "result",
		hydrate.Result{Commit: c.git("rev-parse", prod), Written: []string{"apps/a", "apps/b"}}, r)
	diff(t, "files", []string{".gitattributes", "apps/a/README.md", "apps/a/hydrator.metadata",
		"apps/a/manifest.yaml", "apps/b/README.md", "apps/b/hydrator.metadata",
		"apps/b/manifest.yaml", "hydrator.metadata"}, c.files(prod))
	diff(t, "manifest", "text: one", c.show(prod, "apps/a/manifest.yaml"))
	diff(t, "attributes",
		"**/README.md linguist-generated=true\n**/hydrator.metadata linguist-generated=true",
		c.show(prod, ".gitattributes"))
	t.Setenv("TZ", "UTC") // of the git program below
	date := c.git("log", "-1", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", "--format=%ad")
	diff(t, "root", `{
  "repoURL": "https://git.example/fleet/agents",
  "drySha": "`+dry+`",
  "author": "Ada <ada@example.com>",
  "date": "`+date+`",
  "subject": "Bump the image",
  "body": "Signed-off-by: CI <ci@example.com>\nArgocd-reference-commit-sha: B82ADD2\n",
  "references": [
    {
      "commit": {
        "author": "\"Grace Hopper\" <grace@example.com>",
        "date": "2025-06-09T13:50:18-04:00",
        "subject": "Make a change",
        "body": "Why\n\nBecause <it> is",
        "sha": "b82add298aa045d3672880802d5305c5a8aaa46e",
        "repoUrl": "https://git.example/fleet/code"
      }
    }
  ]
}`, c.show(prod, "hydrator.metadata"))
	command := `armature hydrate apps/a --branch environments/prod --config 'it'\''s here.yaml'`
	diff(t, "metadata", `{
  "repoURL": "https://git.example/fleet/agents",
  "drySha": "`+dry+`",
  "commands": [
    "`+strings.ReplaceAll(command, `\`, `\\`)+`"
  ]
}`, c.show(prod, "apps/a/hydrator.metadata"))
	for _, want := range []string{"git clone https://git.example/fleet/agents source",
		"git checkout " + dry, command} {
		if text := c.show(prod, "apps/a/README.md"); !strings.Contains(text, "\n"+want+"\n") {
			t.Errorf("README has no line %q:\n%s", want, text)
		}
	}
	diff(t, "note", `{"drySha":"`+dry+`"}`, c.git("notes", "--ref=hydrator.metadata", "show", prod))
	diff(t, "subject", dry[:7]+": Bump the image", c.git("log", "-1", "--format=%s", prod))
	trailers := c.git("log", "-1", "--format=%(trailers:only,unfold)", prod)
	for _, want := range []string{
		`Co-authored-by: "Grace Hopper" <grace@example.com>`,
		"Co-authored-by: Ada <ada@example.com>",
		`Argocd-reference-commit-author: "Ada" <ada@example.com>`,
		"Argocd-reference-commit-sha: " + dry, "Argocd-reference-commit-subject: Bump the image",
		"Argocd-reference-commit-repourl: " + source, "Argocd-reference-commit-date: " + date,
		`Argocd-reference-commit-body: "Signed-off-by: CI \u003cci@example.com\u003e\nArgocd-reference-commit-sha: B82ADD2\n"`,
	} {
		if !slices.Contains(strings.Split(trailers, "\n"), want) {
			t.Errorf("no trailer %q in\n%s", want, trailers)
		}
	}
	diff(t, "parents", "", c.git("log", "-1", "--format=%P", prod))
	c.git("fsck", "--strict")
}

// Without another manifest there is a note and no commit. The files of other packages stay.
func TestUnchanged(t *testing.T) {
	c := newClone(t)
	first := c.must(c.branch(prod), "one", "a", "b")
	if again := c.must(c.branch(prod), "one", "a", "b"); again.Commit != first.Commit ||
		len(again.Written) > 0 {
		t.Errorf("the same again: %+v", again)
	}
	notes := c.git("rev-parse", "refs/notes/hydrator.metadata")
	c.must(c.branch(prod), "one", "a")
	diff(t, "notes of the same commit", notes, c.git("rev-parse", "refs/notes/hydrator.metadata"))
	dry := c.commit("Another comment", "a")
	if r := c.must(c.branch(prod), "one", "a", "b"); r.Commit != first.Commit {
		t.Errorf("a commit for the same manifests: %+v", r)
	}
	diff(t, "note", `{"drySha":"`+dry+`"}`, c.git("notes", "--ref=hydrator.metadata", "show", prod))
	r := c.must(c.branch(prod), "two", "b")
	diff(t, "written", []string{"apps/b"}, r.Written)
	diff(t, "changed files",
		"apps/b/hydrator.metadata\napps/b/manifest.yaml\napps/b/README.md\nhydrator.metadata",
		sorted(c.git("diff", "--name-only", first.Commit, r.Commit)))
	diff(t, "history", first.Commit, c.git("log", "-1", "--format=%P", prod))
	diff(t, "note before", `{"drySha":"`+dry+`"}`,
		c.git("notes", "--ref=hydrator.metadata", "show", first.Commit))
}

func sorted(lines string) string {
	all := strings.Split(lines, "\n")
	slices.SortFunc(all, func(a, b string) int {
		return strings.Compare(strings.ToLower(a), strings.ToLower(b))
	})
	return strings.Join(all, "\n")
}

// Many notes are spread over folders by git, and by Write: each commit has one.
func TestManyNotes(t *testing.T) {
	c := newClone(t)
	c.must(c.branch(prod), "one", "a")
	var tree strings.Builder
	blob := c.git("rev-parse", prod+":apps/a/manifest.yaml")
	for i := range 300 {
		fmt.Fprintf(&tree, "100644 blob %s\t%040x\n", blob, i)
	}
	cmd := exec.Command("git", "-C", c.folder, "mktree")
	cmd.Stdin = strings.NewReader(tree.String())
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	c.git("update-ref", "refs/notes/hydrator.metadata",
		c.git("commit-tree", strings.TrimSpace(string(out)), "-m", "notes"))
	for range 2 {
		dry := c.commit("Next", "a")
		c.must(c.branch(prod), "two", "a")
		diff(t, "note", `{"drySha":"`+dry+`"}`,
			c.git("notes", "--ref=hydrator.metadata", "show", prod))
	}
	diff(t, "notes", 301,
		len(strings.Split(c.git("notes", "--ref=hydrator.metadata", "list"), "\n")))
}

// What Write wrote and the source no longer has is removed, and nothing else is.
func TestRemoval(t *testing.T) {
	c := newClone(t)
	c.must(c.branch(prod), "one", "a", "b")
	c.foreign(prod, "apps/b/mine.yaml", "mine")
	c.foreign(prod, "apps/c/hydrator.metadata",
		`{"repoURL":"`+source+`","drySha":"x","commands":["kustomize build ."]}`)
	c.foreign(prod, "apps/d/hydrator.metadata",
		`{"repoURL":"https://git.example/other","commands":["armature hydrate apps/d --branch x"]}`)
	c.foreign(prod, "README.md", "ours")
	c.must(c.branch(prod), "one", "a")
	if !slices.Contains(c.files(prod), "apps/b/manifest.yaml") {
		t.Error("a package that was not named, and that the source has, is gone")
	}
	c.git("rm", "-rq", "apps/b")
	c.commit("No b")
	r := c.must(c.branch(prod), "one", "a")
	diff(t, "removed", []string{"apps/b"}, r.Removed)
	diff(t, "files", []string{".gitattributes", "README.md", "apps/a/README.md",
		"apps/a/hydrator.metadata", "apps/a/manifest.yaml", "apps/b/mine.yaml",
		"apps/c/hydrator.metadata", "apps/d/hydrator.metadata", "hydrator.metadata"}, c.files(prod))
}

// Files of others in the way are reported, and stay.
func TestForeignFiles(t *testing.T) {
	for name, f := range map[string]struct{ file, text, want string }{
		"manifest": {"apps/a/manifest.yaml", "x",
			"apps/a/manifest.yaml on the branch environments/prod was not written by " +
				"armature hydrate"},
		"readme": {"apps/a/README.md", "x", "was not written by armature hydrate"},
		"Argo CD's package": {"apps/a/hydrator.metadata",
			`{"repoURL":"` + source + `","commands":["helm template ."]}`,
			"was not written by armature hydrate"},
		"another source": {"apps/a/hydrator.metadata",
			`{"repoURL":"https://git.example/other","commands":["armature hydrate x"]}`,
			"is from https://git.example/other, not from " + source},
		"broken metadata": {"apps/a/hydrator.metadata", `{"commands": 3`,
			"was not written by armature hydrate"},
		"other shape": {"apps/a/hydrator.metadata", `{"commands": "armature hydrate x"}`,
			"was not written by armature hydrate"},
		"large metadata": {"apps/a/hydrator.metadata",
			`{"commands":["armature hydrate ` + strings.Repeat("x", 1<<20) + `"]}`,
			"was not written by armature hydrate"},
		"a file for a folder": {"apps", "x", "apps is a file on the branch"},
		"a folder for a file": {"apps/a/manifest.yaml/x", "x",
			"apps/a/manifest.yaml is a folder on the branch"},
		"root": {"hydrator.metadata", "x",
			"hydrator.metadata on the branch environments/prod was not written by a hydrator"},
		"root of another": {"hydrator.metadata",
			`{"repoURL":"https://git.example/other","drySha":"` + strings.Repeat("a", 40) + `"}`,
			"is from https://git.example/other"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClone(t)
			c.git("checkout", "-q", "--orphan", prod)
			c.git("rm", "-rfq", ".")
			c.write(f.file, f.text)
			c.git("add", "-A")
			c.git("commit", "-q", "-m", "Somebody else's")
			c.git("checkout", "-q", "main")
			c.refused(c.branch(prod), f.want, "a")
		})
	}
	// A link in place of what Write wrote is not what Write wrote.
	c := newClone(t)
	c.must(c.branch(prod), "one", "a")
	c.git("checkout", "-q", prod)
	file := filepath.Join(c.folder, "apps/a/hydrator.metadata")
	if err := multi.Errors(os.Remove(file), os.Symlink("manifest.yaml", file)); err != nil {
		t.Fatal(err)
	}
	c.git("add", "-A")
	c.git("commit", "-q", "-m", "A link")
	c.git("checkout", "-q", "main")
	c.refused(c.branch(prod), "was not written by armature hydrate", "a")
}

// Names that are options, expressions or other references are not branches.
func TestHostileNames(t *testing.T) {
	c := newClone(t)
	for _, name := range []string{"", "-f", "--upload-pack=touch x", "@{-1}", "HEAD",
		"refs/heads/x", "a..b", "a:b", "a b", "a\nb", "a\x1b[31m", "a~1", "a^", "a*", "x.lock",
		"../x", "/x", "x/", "a//b", "a\\b", "@{u}"} {
		c.refused(c.branch(name), "is not a valid branch", "a")
	}
	for _, name := range []string{"$(touch pwned)", "`touch pwned`", "a;b", "a'b", "+x", "ü", "x-next"} {
		name = strings.ReplaceAll(name, " ", "-")
		b := c.branch(name)
		b.Push = true
		c.must(b, "one", "a")
		diff(t, "branch "+name, "text: one",
			run(t, c.bare, "show", "refs/heads/"+name+":apps/a/manifest.yaml"))
		// What the README shows means the name itself to a shell.
		text := run(t, c.bare, "show", "refs/heads/"+name+":apps/a/README.md")
		_, line, _ := strings.Cut(text, "armature hydrate apps/a --branch ")
		line, _, _ = strings.Cut(line, "\n")
		out, err := exec.Command("sh", "-c", "printf %s "+line).Output()
		if err != nil || string(out) != name {
			t.Errorf("a shell reads %s as %q, %v", line, out, err)
		}
	}
	b := c.branch(prod)
	for url, want := range map[string]string{"": "URL of the source is empty",
		"--upload-pack=x": "URL of the source", "https://x/\ny": "URL of the source"} {
		b.URL = url
		c.refused(b, want, "a")
	}
	b.URL = source
	c.refused(b, "overlap", "a", "a")
	c.refused(b, "overlap", "a", "a/b")
	c.refused(b, "no packages")
	for _, p := range []hydrate.Package{{Path: "", Manifest: []byte("x")},
		{Path: "a\nb", Manifest: []byte("x")}, {Path: "apps/a"}} {
		if r, err := b.Write(t.Context(), []hydrate.Package{p}); err == nil {
			t.Errorf("package %q with %d bytes: %+v", p.Path, len(p.Manifest), r)
		}
	}
}

// Branches that people write are not written, and none goes back to an earlier commit.
func TestWrongBranch(t *testing.T) {
	c := newClone(t)
	c.refused(c.branch("main"), "the branch main is checked out", "a")
	c.git("branch", "feature")
	c.refused(c.branch("feature"), "the branch feature contains the commit that is rendered", "a")
	b := c.branch("main")
	b.Push = true
	c.refused(b, "the branch main contains the commit that is rendered", "a")

	early := c.branch(prod)
	c.commit("Later", "a")
	c.must(c.branch(prod), "later", "a")
	c.refused(early, "which comes after", "a")
	c.git("notes", "--ref=hydrator.metadata", "remove", prod)
	c.refused(early, "which comes after", "a")
}

// A branch for the promoter begins at the active one; a branch that only the remote has, there.
func TestStart(t *testing.T) {
	c := newClone(t)
	c.must(c.branch(prod), "one", "a", "b")
	c.must(c.branch(prod+"-next"), "two", "a")
	diff(t, "parent", c.git("rev-parse", prod), c.git("rev-parse", prod+"-next^"))
	c.git("push", "-q", "origin", prod)
	other := c.again()
	r := other.must(other.branch(prod), "two", "a")
	diff(t, "parent", c.git("rev-parse", prod), other.git("rev-parse", r.Commit+"^"))
	third := c.again()
	b := third.branch(prod + "-next")
	b.Push = true
	third.must(b, "one", "a")
	diff(t, "new branch without a change", c.git("rev-parse", prod),
		run(t, c.bare, "rev-parse", prod+"-next"))
}

// Commits are signed as Git's configuration has it.
func TestSigned(t *testing.T) {
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("no ssh-keygen program")
	}
	c := newClone(t)
	key := filepath.Join(t.TempDir(), "key")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
		key).CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen: %v\n%s", err, out)
	}
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	allowed := filepath.Join(t.TempDir(), "allowed")
	if err := os.WriteFile(allowed, append([]byte("ada@example.com "), public...), 0o600); err != nil {
		t.Fatal(err)
	}
	c.git("config", "gpg.format", "ssh")
	c.git("config", "user.signingkey", key)
	c.git("config", "gpg.ssh.allowedSignersFile", allowed)
	c.git("config", "commit.gpgsign", "true")
	c.must(c.branch(prod), "one", "a")
	c.git("verify-commit", prod)
	c.git("config", "user.signingkey", key+".missing")
	c.refused(c.branch(prod), "git commit-tree", "a")
}
