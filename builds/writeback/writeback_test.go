package writeback_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/builds/writeback"
	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/deliver/forge"
)

const lockPath = "apps/armature.lock"

// repository is a bare one, with a clone in which people work.
type repository struct {
	t          *testing.T
	bare, work string
	key        []byte
	allowed    string
}

// first is the folder of the repository that each begins as, which is made once, and of
// Git's configuration.
var first string

const gitConfig = "[user]\nname = Ada\nemail = ada@example.com\n[commit]\ngpgsign = false\n[gc]\n" +
	"auto = 0\n[maintenance]\nauto = false\n[receive]\nautogc = false\n"

func newRepository(t *testing.T) *repository {
	t.Helper()
	t.Setenv("GIT_CONFIG_GLOBAL", filepath.Join(first, "config"))
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	in := func(folder string) *repository {
		return &repository{t: t, bare: filepath.Join(folder, "bare.git"),
			work: filepath.Join(folder, "work")}
	}
	if _, err := os.Stat(os.Getenv("GIT_CONFIG_GLOBAL")); err != nil {
		if err := os.WriteFile(os.Getenv("GIT_CONFIG_GLOBAL"), []byte(gitConfig), 0o600); err != nil {
			t.Fatal(err)
		}
		r := in(first)
		r.run(first, "init", "-q", "--bare", "-b", "main", r.bare)
		r.run(first, "clone", "-q", "--template=", r.bare, r.work)
		r.person("README.md", "# Apps\n")
		r.person("apps/weather.yaml", "kind: x\n")
	}
	folder := t.TempDir()
	r := in(folder)
	if err := os.CopyFS(folder, os.DirFS(first)); err != nil {
		t.Fatal(err)
	}
	r.run(r.work, "remote", "set-url", "origin", r.bare)

	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	r.key = pem.EncodeToMemory(block)
	line, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	r.allowed = filepath.Join(folder, "allowed")
	if err := os.WriteFile(r.allowed,
		append([]byte("bot@example.com "), ssh.MarshalAuthorizedKey(line)...), 0o600); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *repository) run(folder string, args ...string) string {
	r.t.Helper()
	out, err := exec.Command("git", append([]string{"-C", folder}, args...)...).CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// person commits a file to main, and pushes; content "" removes it.
func (r *repository) person(file, content string) {
	r.t.Helper()
	name := filepath.Join(r.work, file)
	err := os.MkdirAll(filepath.Dir(name), 0o755)
	if content == "" {
		err = multi.Errors(err, os.Remove(name))
	} else {
		err = multi.Errors(err, os.WriteFile(name, []byte(content), 0o644))
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.run(r.work, "add", "-A")
	r.run(r.work, "commit", "-q", "-m", "Change "+file)
	r.run(r.work, "push", "-q", "origin", "main")
}

func (r *repository) pull() {
	r.t.Helper()
	r.run(r.work, "pull", "-q", "--rebase", "origin", "main")
}

func (r *repository) lock() string { r.t.Helper(); return r.run(r.bare, "show", "main:"+lockPath) }

func (r *repository) commits(branch string) int {
	r.t.Helper()
	return len(strings.Fields(r.run(r.bare, "rev-list", branch)))
}

func (r *repository) update() *writeback.Update {
	r.t.Helper()
	sign, err := writeback.ReadSigner(r.key, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return &writeback.Update{Remote: gitremote.Repository{URL: r.bare}, Branch: "main",
		Path: lockPath, Name: "Armature", Email: "bot@example.com", Sign: sign}
}

func (r *repository) write(u *writeback.Update, built ...writeback.Built) writeback.Result {
	r.t.Helper()
	result, err := u.Write(r.t.Context(), built)
	if err != nil {
		r.t.Fatal(err)
	}
	return result
}

// built is an image by one digit, which is also its commit's.
func built(name string, digit int) writeback.Built {
	return writeback.Built{Repository: "https://git.example/acme/" + name,
		Run: fmt.Sprintf("%s-%d", name, digit), Finished: time.Unix(1_700_000_000+int64(digit), 0),
		LockedBuild: api.LockedBuild{Namespace: "team1", Name: name,
			Image:  fmt.Sprintf("registry.example/%s@sha256:%064x", name, digit),
			Commit: fmt.Sprintf("%040x", digit)}}
}

func has(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in\n%s", part, text)
		}
	}
}

// One set is one signed commit, which changes the lines of the lock alone; the same set
// again is nothing.
func TestWrite(t *testing.T) {
	r := newRepository(t)
	first := r.write(r.update(), built("weather", 1), built("search", 2))
	if !first.New || len(first.Changed) != 2 {
		t.Fatalf("%+v", first)
	}
	r.run(r.bare, "-c", "gpg.ssh.allowedSignersFile="+r.allowed, "verify-commit", "main")
	r.run(r.bare, "fsck", "--strict")
	if files := r.run(r.bare, "diff", "--name-only", "main~", "main"); files != lockPath {
		t.Errorf("it changed %s", files)
	}
	message := r.run(r.bare, "log", "-1", "--format=%B%an <%ae> %cI", "main")
	has(t, message, "Pin 2 builds in apps/armature.lock\n",
		"Armature-Build: team1/search\nArmature-Run: search-2\n",
		"Armature-Attestation: unattested", "Armature <bot@example.com> 2023-11-14T22:13:22")
	if trailers := r.run(r.bare, "log", "-1", "--format=%(trailers:key=Armature-Source,valueonly)",
		"main"); !strings.Contains(trailers,
		"https://git.example/acme/weather@"+built("weather", 1).Commit) {
		t.Errorf("git reads the trailers as %q", trailers)
	}
	if again := r.write(r.update(), built("weather", 1), built("search", 2)); again.New ||
		again.Commit != "" || len(again.Held) > 0 {
		t.Errorf("again: %+v", again)
	}
	r.write(r.update(), built("weather", 3), built("search", 2))
	changes := r.run(r.bare, "diff", "-U0", "main~", "main")
	// image and commit, before and after
	if n := strings.Count(changes, "\n+ ") + strings.Count(changes, "\n- "); n != 4 {
		t.Errorf("%d lines changed:\n%s", n, changes)
	}
	r.run(r.bare, "-c", "gpg.ssh.allowedSignersFile="+r.allowed, "verify-commit", "main")
}

// Of an image that the platform attested, everything is written as the statement has it and nothing
// as status has it. What the statements do not confirm is not written, whatever is accepted.
func TestStatements(t *testing.T) {
	r := newRepository(t)
	statements := make(map[string]attest.Statement)
	for digit := 1; digit <= 4; digit++ {
		statements[built("weather", digit).Image] = attest.Statement{Digest: "sha256:" +
			strings.Repeat(fmt.Sprint(digit), 64), Repository: "https://git.example/acme/true",
			Commit: strings.Repeat("c", 40), Finished: time.Unix(1_700_000_100+int64(digit), 0),
			Current: digit != 4}
	}
	refusal := errors.New("nobody attested it")
	update := func(accept ...int) *writeback.Update {
		u := r.update()
		for _, digit := range accept {
			u.Accept = append(u.Accept, fmt.Sprintf("sha256:%064x", digit))
		}
		u.Attested = func(_ context.Context, b writeback.Built) (attest.Statement, error) {
			if s, ok := statements[b.Image]; ok || b.Name == "dev" {
				return s, nil
			}
			return attest.Statement{}, refusal
		}
		return u
	}
	r.write(update(), built("weather", 2), built("dev", 9))
	has(t, r.run(r.bare, "log", "-1", "--format=%B%cI", "main"),
		"Armature-Source: https://git.example/acme/true@"+strings.Repeat("c", 40)+
			"\nArmature-Attestation: sha256:2222", "Armature-Attestation: unattested\n",
		time.Unix(1_700_000_102, 0).UTC().Format("2006-01-02T15:04:05"))
	has(t, r.lock(), "commit: "+strings.Repeat("c", 40))
	head := r.run(r.bare, "rev-parse", "main")
	forged := func(digit int, edit func(*writeback.Built)) writeback.Built {
		b := built("weather", digit)
		edit(&b)
		return b
	}
	for what, c := range map[string]struct {
		built writeback.Built
		why   string
	}{
		"no statement":       {built("weather", 5), "nobody attested it"},
		"a statement of old": {built("weather", 4), "another spec"},
		"a trailer in the run": {forged(3, func(b *writeback.Built) {
			b.Run += "\nArmature-Attestation: sha256:1"
		}), "that the controller does not write"},
		"a trailer in the commit": {forged(3, func(b *writeback.Built) {
			b.Commit += "\nArmature-Attestation: sha256:1"
		}), "that the controller does not write"},
		"a trailer in the image": {forged(3, func(b *writeback.Built) {
			b.Image += "\nArmature-Attestation: sha256:1"
		}), "that the controller does not write"},
	} {
		result := r.write(update(3, 4, 5), c.built, built("dev", 9))
		if result.New || len(result.Held) != 1 || result.Held[0].Unconfirmed == nil ||
			!strings.Contains(result.Held[0].Why, c.why) {
			t.Errorf("%s: %+v", what, result)
		}
	}
	// An older statement about the same build is true, and replays an older image.
	if result := r.write(update(), built("weather", 1)); result.New || len(result.Held) != 1 ||
		result.Held[0].Unconfirmed != nil {
		t.Errorf("%+v", result)
	} else {
		has(t, result.Held[0].Why, "the image in the lock was built after it")
	}
	if now := r.run(r.bare, "rev-parse", "main"); now != head {
		t.Errorf("main has %s", r.run(r.bare, "log", "-1", "--format=%B", "main"))
	}
	if result := r.write(update(1), built("weather", 1)); !result.New {
		t.Errorf("accepted: %+v", result)
	}
	if result := r.write(update(), built("weather", 3)); !result.New {
		t.Errorf("a newer one: %+v", result)
	}
}

// serve the repository by HTTP.
func (r *repository) serve() (address string) {
	r.t.Helper()
	program := r.run(r.bare, "--exec-path") + "/git-http-backend"
	r.run(r.bare, "config", "http.receivepack", "true")
	server := httptest.NewServer(&cgi.Handler{Path: program,
		Env: []string{"GIT_PROJECT_ROOT=" + filepath.Dir(r.bare), "GIT_HTTP_EXPORT_ALL=1",
			"GIT_CONFIG_GLOBAL=" + os.Getenv("GIT_CONFIG_GLOBAL"), "REMOTE_USER=bot"}})
	r.t.Cleanup(server.Close)
	return server.URL + "/bare.git"
}

// The same by HTTP, from a server that leaves out files.
func TestOverHTTP(t *testing.T) {
	r := newRepository(t)
	address := r.serve()
	for _, filter := range []string{"false", "true"} {
		r.run(r.bare, "config", "uploadpack.allowFilter", filter)
		r.run(r.bare, "config", "uploadpack.allowAnySHA1InWant", filter)
		u := r.update()
		u.Remote.URL = address
		digit := 1 + strings.Count(filter, "true")
		if result := r.write(u, built("weather", digit)); !result.New {
			t.Errorf("filter %s: %+v", filter, result)
		}
		has(t, r.lock(), built("weather", digit).Image)
		r.pull()
		r.run(r.work, "revert", "--no-edit", "HEAD")
		r.run(r.work, "push", "-q", "origin", "main")
		if result := r.write(u, built("weather", digit)); len(result.Held) != 1 {
			t.Errorf("filter %s: %+v", filter, result)
		}
		u.Accept = []string{fmt.Sprintf("sha256:%064x", digit)}
		r.write(u, built("weather", digit))
		r.pull()
	}
	r.run(r.bare, "fsck", "--strict")
}

// What a person took back stays away, whichever way they did it.
func TestRejected(t *testing.T) {
	for name, reject := range map[string]func(r *repository, u *writeback.Update){
		"revert": func(r *repository, _ *writeback.Update) {
			r.run(r.work, "revert", "--no-edit", "HEAD")
		},
		"set back by hand, formatted": func(r *repository, _ *writeback.Update) {
			text := strings.ReplaceAll(r.lock()+"\n", built("weather", 2).Image,
				`"`+built("weather", 1).Image+`" # as before`)
			r.person(lockPath,
				strings.ReplaceAll(text, built("weather", 2).Commit, built("weather", 1).Commit))
		},
		"removed": func(r *repository, _ *writeback.Update) { r.person(lockPath, "") },
		"merge of a revert": func(r *repository, _ *writeback.Update) {
			r.run(r.work, "checkout", "-q", "-b", "back")
			r.run(r.work, "revert", "--no-edit", "HEAD")
			r.run(r.work, "checkout", "-q", "main")
			r.run(r.work, "merge", "-q", "--no-ff", "-m", "Merge back", "back")
		},
		"squash of a revert": func(r *repository, _ *writeback.Update) {
			r.run(r.work, "checkout", "-q", "-b", "back")
			r.run(r.work, "revert", "--no-edit", "HEAD")
			r.run(r.work, "checkout", "-q", "main")
			r.run(r.work, "merge", "-q", "--squash", "back")
			r.run(r.work, "commit", "-q", "-m", "Back")
		},
		"renamed": func(r *repository, _ *writeback.Update) {
			r.run(r.work, "mv", lockPath, lockPath+".old")
			r.run(r.work, "commit", "-q", "-m", "Rename")
		},
		"taken out of the history": func(r *repository, u *writeback.Update) {
			r.run(r.work, "reset", "-q", "--hard", "HEAD~")
			r.run(r.work, "push", "-q", "-f", "origin", "main")
			u.Written = []string{built("weather", 2).Image}
		},
		"closed pull request": func(r *repository, u *writeback.Update) {
			r.run(r.work, "reset", "-q", "--hard", "HEAD~")
			r.run(r.work, "push", "-q", "-f", "origin", "main")
			u.Rejected = []string{strings.Split(built("weather", 2).Image, "@")[1]}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, later := newRepository(t), built("weather", 3)
			r.write(r.update(), built("weather", 1))
			r.write(r.update(), built("weather", 2))
			r.pull()
			u := r.update()
			reject(r, u)
			r.run(r.work, "push", "-q", "origin", "main")
			before := r.commits("main")
			if result := r.write(u, built("weather", 2)); result.New || len(result.Held) != 1 {
				t.Fatalf("%+v", result)
			}
			// Neither does a rebuild of its commit bring it back.
			rebuilt := built("weather", 2)
			rebuilt.Image = later.Image
			if result := r.write(u, rebuilt); (result.New || len(result.Held) != 1) &&
				u.Rejected == nil && u.Written == nil {
				t.Errorf("rebuilt: %+v", result)
			}
			if after := r.commits("main"); after != before && u.Rejected == nil && u.Written == nil {
				t.Errorf("%d commits, then %d", before, after)
			}
			if u.Rejected == nil && u.Written == nil {
				if result := r.write(u, later); !result.New {
					t.Errorf("a newer one: %+v", result)
				}
			}
			u.Accept = []string{strings.Split(built("weather", 2).Image, "@")[1]}
			if result := r.write(u, built("weather", 2)); !result.New {
				t.Errorf("accepted: %+v", result)
			}
		})
	}
}

// Going on to something newer rejects nothing, whoever commits it; and setting an image
// again lifts what was held.
func TestNotRejected(t *testing.T) {
	r := newRepository(t)
	r.write(r.update(), built("weather", 1))
	r.pull()
	// A squash merge of somebody's: no trailer, no signature.
	r.person(lockPath,
		strings.NewReplacer(built("weather", 1).Image, built("weather", 2).Image,
			built("weather", 1).Commit, built("weather", 2).Commit).Replace(r.lock()+"\n"))
	// The source was reverted, and its build makes the first image again, of a newer commit.
	again := built("weather", 1)
	again.Commit = built("weather", 3).Commit
	if result := r.write(r.update(), again); !result.New {
		t.Errorf("%+v", result)
	}
	r.write(r.update(), built("weather", 4))
	r.pull()
	r.run(r.work, "revert", "--no-edit", "HEAD")
	r.run(r.work, "revert", "--no-edit", "HEAD")
	r.run(r.work, "push", "-q", "origin", "main")
	if result := r.write(r.update(), built("weather", 4)); len(result.Held) > 0 || result.New {
		t.Errorf("%+v", result)
	}
}

// An older commit does not follow a newer one.
func TestNoDowngrade(t *testing.T) {
	source := newRepository(t)
	older := source.run(source.work, "rev-parse", "HEAD~")
	newer := source.run(source.work, "rev-parse", "HEAD")
	r := newRepository(t)
	b := built("weather", 1)
	b.Commit = newer
	r.write(r.update(), b)
	back := built("weather", 2)
	back.Commit = older
	u := r.update()
	u.Descends = func(ctx context.Context, b writeback.Built, old string) (bool, error) {
		return gitremote.Repository{URL: source.bare}.Descends(ctx, b.Commit, old)
	}
	if result := r.write(u, back); result.New || len(result.Held) != 1 {
		t.Errorf("%+v", result)
	} else {
		has(t, result.Held[0].Why, "does not descend from the commit")
	}
	source.person("README.md", "more\n")
	next := built("weather", 3)
	next.Commit = source.run(source.work, "rev-parse", "HEAD")
	if result := r.write(u, next); !result.New {
		t.Errorf("%+v", result)
	}
	gone := built("weather", 4)
	gone.Commit = strings.Repeat("1", 40)
	if result, err := u.Write(t.Context(), []writeback.Built{gone}); err == nil && len(result.Held) != 1 {
		t.Errorf("%+v", result)
	}
}

// Writers at the same time, and people who push meanwhile, make one commit per set.
func TestWritersAtOnce(t *testing.T) {
	r := newRepository(t)
	var all sync.WaitGroup
	failed := make([]error, 6)
	for i := range failed {
		all.Go(func() {
			_, failed[i] = r.update().Write(t.Context(),
				[]writeback.Built{built("weather", 1), built("search", 2)})
		})
	}
	all.Wait()
	if err := multi.Errors(failed...); err != nil {
		t.Fatal(err)
	}
	if n := r.commits("main"); n != 3 {
		t.Errorf("%d commits", n)
	}
	r.pull()
	u := r.update()
	once := false
	u.Verify = func(context.Context, writeback.Built) error {
		if !once {
			once = true
			r.person("NOTES.md", "a person\n")
		}
		return nil
	}
	r.write(u, built("weather", 3))
	if n := r.commits("main"); n != 5 {
		t.Errorf("%d commits", n)
	}
	has(t, r.run(r.bare, "ls-tree", "-r", "--name-only", "main"), "NOTES.md", lockPath)
}

// A pull request's branch has one commit on top of the branch, which newer images replace;
// a commit of somebody else ends that.
func TestProposal(t *testing.T) {
	r := newRepository(t)
	u := r.update()
	u.Proposal = "armature/pin/apps"
	first := r.write(u, built("weather", 1))
	if again := r.write(u, built("weather", 1)); again.New || again.Commit != first.Commit {
		t.Errorf("again: %+v", again)
	}
	r.person("README.md", "# More\n")
	second := r.write(u, built("weather", 2))
	if parent := r.run(r.bare, "rev-parse",
		u.Proposal+"~"); parent != r.run(r.bare, "rev-parse", "main") || !second.New {
		t.Errorf("it is on %s: %+v", parent, second)
	}
	r.run(r.bare, "-c", "gpg.ssh.allowedSignersFile="+r.allowed, "verify-commit", u.Proposal)
	// Merged as a squash, the branch starts again.
	r.run(r.work, "fetch", "-q", "origin")
	r.run(r.work, "merge", "-q", "--squash", "origin/"+u.Proposal)
	r.run(r.work, "commit", "-q", "-m", "Weather (#1)")
	r.run(r.work, "push", "-q", "origin", "main")
	if result := r.write(u, built("weather", 2)); result.New || result.Commit != "" {
		t.Errorf("merged: %+v", result)
	}
	if third := r.write(u, built("weather", 3)); !third.New {
		t.Errorf("%+v", third)
	}
	r.run(r.work, "fetch", "-q", "origin")
	r.run(r.work, "checkout", "-q", "-b", "mine", "origin/"+u.Proposal)
	r.run(r.work, "commit", "-q", "--allow-empty", "-m", "Mine\n\nArmature-Build: team1/weather")
	r.run(r.work, "push", "-q", "origin", "mine:"+u.Proposal)
	_, err := u.Write(t.Context(), []writeback.Built{built("weather", 4)})
	var foreign *writeback.ForeignError
	if !errors.As(err, &foreign) || foreign.Author != "Ada" {
		t.Errorf("%v", err)
	}
	// With the author's name and no key it is not ours either.
	r.run(r.work, "reset", "-q", "--hard", "origin/main")
	r.run(r.work, "-c", "user.name=Armature", "-c", "user.email=bot@example.com", "commit", "-q",
		"--allow-empty", "-m", "x\n\nArmature-Build: team1/weather")
	r.run(r.work, "push", "-q", "-f", "origin", "mine:"+u.Proposal)
	if _, err := u.Write(t.Context(), []writeback.Built{built("weather", 4)}); !errors.As(err, &foreign) {
		t.Errorf("%v", err)
	}
}

// A commit on the branch of a pull request is our own by what it changes, and by its author.
// What somebody else put there stays, whatever its message says and whoever signs it.
func TestProposalComparesTrees(t *testing.T) {
	for way, of := range map[string]func(r *repository) *writeback.Update{
		"without a key": func(r *repository) *writeback.Update {
			u := r.update()
			u.Sign = nil
			return u
		},
		"by an API that goes by the author": func(r *repository) *writeback.Update {
			u := r.update()
			u.API = &account{r: r, name: "Armature"}
			return u
		},
	} {
		for name, c := range map[string]struct {
			change  func(r *repository, branch string)
			foreign bool
		}{
			"nothing": {change: func(*repository, string) {}},
			"our commit without its message": {change: func(r *repository, _ string) {
				r.run(r.work, "commit", "-q", "--amend", "--no-gpg-sign", "-m", "x")
			}},
			"another file": {foreign: true, change: func(r *repository, _ string) {
				r.put("apps/weather.yaml", "kind: y\n")
				r.run(r.work, "commit", "-q", "-a", "--amend", "--no-edit")
			}},
			"another file in place of the lock": {foreign: true,
				change: func(r *repository, branch string) {
					r.run(r.work, "reset", "-q", "--hard", branch+"~")
					r.put("apps/weather.yaml", "kind: y\n")
					r.run(r.work, "commit", "-q", "-a", "-m",
						"Pin\n\nArmature-Build: team1/weather\nArmature-Set: sha256:1")
				}},
			"another folder": {foreign: true, change: func(r *repository, _ string) {
				r.put("other/x.yaml", "kind: y\n")
				r.run(r.work, "add", "-A")
				r.run(r.work, "commit", "-q", "--amend", "--no-edit")
			}},
			"pins of other images": {foreign: true, change: func(r *repository, _ string) {
				text, err := os.ReadFile(filepath.Join(r.work, lockPath))
				if err != nil {
					r.t.Fatal(err)
				}
				r.put(lockPath, string(text)+"  images:\n  - digest: sha256:"+
					strings.Repeat("e", 64)+"\n    image: docker.io/library/x:1\n")
				r.run(r.work, "commit", "-q", "-a", "--amend", "--no-edit")
			}},
			"no commit of ours below": {foreign: true, change: func(r *repository, _ string) {
				r.run(r.work, "commit", "-q", "--allow-empty", "-m",
					"x\n\nArmature-Build: team1/weather\nArmature-Set: sha256:1")
			}},
			"another author": {foreign: true, change: func(r *repository, _ string) {
				r.run(r.work, "-c", "user.name=Eve", "-c", "user.email=eve@example.com", "commit",
					"-q", "--amend", "--no-edit", "--reset-author")
			}},
		} {
			t.Run(way+": "+name, func(t *testing.T) {
				r := newRepository(t)
				u := of(r)
				u.Proposal = "armature/pin/apps"
				r.run(r.work, "config", "user.name", "Armature")
				r.run(r.work, "config", "user.email", "bot@example.com")
				api := u.API
				u.API = nil
				r.write(u, built("weather", 1))
				u.API = api
				r.run(r.work, "fetch", "-q", "origin")
				r.run(r.work, "checkout", "-q", "-b", "mine", "origin/"+u.Proposal)
				c.change(r, "origin/"+u.Proposal)
				r.run(r.work, "push", "-q", "-f", "origin", "mine:"+u.Proposal)
				before := r.run(r.bare, "rev-parse", u.Proposal)
				_, err := u.Write(t.Context(), []writeback.Built{built("weather", 2)})
				var foreign *writeback.ForeignError
				if after := r.run(r.bare, "rev-parse",
					u.Proposal); errors.As(err, &foreign) != c.foreign ||
					(after == before) != c.foreign || err != nil && !c.foreign {
					t.Errorf("%v", err)
				}
			})
		}
	}
}

// put a file into the clone in which people work.
func (r *repository) put(file, content string) {
	r.t.Helper()
	name := filepath.Join(r.work, file)
	if err := multi.Errors(os.MkdirAll(filepath.Dir(name), 0o755),
		os.WriteFile(name, []byte(content), 0o644)); err != nil {
		r.t.Fatal(err)
	}
}

// account is a server that knows its own commits by their author, whom anybody can write.
type account struct {
	forge.Forge
	r     *repository
	name  string
	pulls []forge.PullRequest
}

func (a *account) Wrote(_ context.Context, sha string) (bool, error) {
	return a.r.run(a.r.bare, "show", "-s", "--format=%an", sha) == a.name, nil
}

func (a *account) Commit(_ context.Context, c forge.Commit) (string, error) {
	made := a.r.run(a.r.bare, "rev-parse", c.Head)
	a.r.run(a.r.bare, "update-ref", "refs/heads/"+c.Branch, made)
	return made, nil
}

func (a *account) Account(context.Context) (string, error) { return a.name, nil }

func (a *account) PullRequests(context.Context, string) ([]forge.PullRequest, error) {
	return a.pulls, nil
}

// Only a pull request that the account itself opened holds back its images when it is closed.
func TestForeignPullRequestHoldsNothing(t *testing.T) {
	of := func(author string, digit int) forge.PullRequest {
		_, body := writeback.Result{Message: "Pin",
			Changed: []writeback.Built{built("weather", digit)}}.Text()
		return forge.PullRequest{Author: author, Base: "main", Body: body}
	}
	merged, open, fork, elsewhere := of("Armature", 5), of("Armature", 6), of("Armature", 7),
		of("Armature", 8)
	merged.Merged, open.Open, fork.Fork, elsewhere.Base = true, true, true, "next"
	f := &account{name: "armature",
		pulls: []forge.PullRequest{of("eve", 1), of("Armature", 2), of("", 3),
			of("armature[bot]", 4), merged, open, fork, elsewhere}}
	digests, err := writeback.Rejected(t.Context(), f, "armature/pin/apps", "main")
	if want := fmt.Sprintf("sha256:%064x", 2); err != nil || strings.Join(digests, " ") != want {
		t.Errorf("%q, %v, want %s", digests, err, want)
	}
	f.name = ""
	if digests, err := writeback.Rejected(t.Context(), f, "armature/pin/apps",
		"main"); err != nil || len(digests) > 0 {
		t.Errorf("of nobody: %q, %v", digests, err)
	}
}

// A server's rule is reported in its words, and is not tried again.
func TestProtectedBranch(t *testing.T) {
	r := newRepository(t)
	hook := filepath.Join(r.bare, "hooks", "pre-receive")
	count := filepath.Join(t.TempDir(), "count")
	script := "#!/bin/sh\necho x >>" + count +
		"\necho 'GH006: Protected branch update failed' >&2\nexit 1\n"
	if err := multi.Errors(os.MkdirAll(filepath.Dir(hook), 0o755),
		os.WriteFile(hook, []byte(script), 0o755)); err != nil {
		t.Fatal(err)
	}
	_, err := r.update().Write(t.Context(), []writeback.Built{built("weather", 1)})
	var refused *gitremote.RefusedError
	if !errors.As(err, &refused) {
		t.Fatalf("%v", err)
	}
	has(t, err.Error(), "GH006: Protected branch update failed", "pre-receive hook declined")
	if tries, err := os.ReadFile(count); err != nil || string(tries) != "x\n" {
		t.Errorf("tried %q: %v", tries, err)
	}
}

// Whatever is in the place of the lock, nothing else than a lock is written.
func TestHostileRepository(t *testing.T) {
	for name, c := range map[string]struct {
		make func(r *repository)
		want string
	}{
		"a link": {func(r *repository) {
			if err := os.Symlink("../README.md", filepath.Join(r.work, lockPath)); err != nil {
				r.t.Fatal(err)
			}
			r.person("x", "y")
		}, "is a link"},
		"a folder": {func(r *repository) { r.person(lockPath+"/x", "y") }, "is a folder"},
		"no lock": {func(r *repository) { r.person(lockPath, "kind: Secret\napiVersion: v1\n") },
			"is not a lock"},
		"too large": {func(r *repository) {
			r.person(lockPath, strings.Repeat("# x\n", 2<<20))
		}, "a lock has at most"},
		"no folder": {func(r *repository) {
			r.run(r.work, "rm", "-rq", "apps")
			r.person("x", "y")
		}, "has no folder apps"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRepository(t)
			c.make(r)
			before := r.run(r.bare, "rev-parse", "main")
			_, err := r.update().Write(t.Context(), []writeback.Built{built("weather", 1)})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
			if after := r.run(r.bare, "rev-parse", "main"); after != before {
				t.Error("the branch changed")
			}
		})
	}
	r := newRepository(t)
	for _, change := range []func(u *writeback.Update){
		func(u *writeback.Update) { u.Path = "../armature.lock" },
		func(u *writeback.Update) { u.Path = "a/.GIT/config" },
		func(u *writeback.Update) { u.Branch = "--upload-pack=x" },
		func(u *writeback.Update) { u.Branch = "a..b" },
		func(u *writeback.Update) { u.Proposal = "main" },
		func(u *writeback.Update) { u.Name = "x>\nparent y" },
	} {
		u := r.update()
		change(u)
		if _, err := u.Write(t.Context(), []writeback.Built{built("weather", 1)}); err == nil {
			t.Errorf("%+v is accepted", u)
		}
	}
	u := r.update()
	u.Branch = "nowhere"
	if _, err := u.Write(t.Context(), nil); !errors.Is(err, writeback.ErrNoBranch) {
		t.Errorf("%v", err)
	}
}

// A lock that a person formatted keeps its comments.
func TestFormattedLock(t *testing.T) {
	r := newRepository(t)
	text := fmt.Sprintf(`# Ours.
apiVersion: armature.dev/v1alpha1
kind: ImageLock
metadata: {name: images, annotations: {config.kubernetes.io/local-config: "true"}}
spec:
  builds:
    - namespace: team1   # the first team
      name: weather
      image: "%s"
    - {namespace: team2, name: other, image: %s}
`, built("weather", 1).Image, built("other", 9).Image)
	r.person(lockPath, text)
	r.write(r.update(), built("weather", 2), built("search", 3))
	lock := r.lock()
	has(t, lock, "# Ours.", "# the first team", "{namespace: team2", built("weather", 2).Image,
		built("search", 3).Image, built("weather", 2).Commit)
	if again := r.write(r.update(), built("weather", 2), built("search", 3)); again.New {
		t.Errorf("%+v\n%s", again, lock)
	}
}

// killed is the environment variable that makes this test binary a write-back.
const killed = "ARMATURE_TEST_WRITEBACK"

func TestMain(m *testing.M) {
	if bare := os.Getenv(killed); bare != "" {
		var digit int
		if _, err := fmt.Sscan(os.Getenv(killed+"_DIGIT"), &digit); err != nil {
			panic(err)
		}
		u, err := byAPI(bare)
		if u.Proposal = os.Getenv(killed + "_PROPOSAL"); os.Getenv(killed+"_API") == "" {
			key, failed := os.ReadFile(os.Getenv(killed + "_KEY"))
			if failed != nil {
				panic(failed)
			}
			u = &writeback.Update{Remote: gitremote.Repository{URL: bare}, Branch: "main",
				Path: lockPath, Name: "Armature", Email: "bot@example.com"}
			u.Sign, err = writeback.ReadSigner(key, nil)
		}
		if err != nil {
			panic(err)
		}
		if _, err := u.Write(context.Background(),
			[]writeback.Built{built("weather", digit)}); err != nil {
			panic(err)
		}
		os.Exit(0)
	}
	os.Exit(func() int {
		var err error
		if first, err = os.MkdirTemp("", "writeback-"); err != nil {
			panic(err)
		}
		defer os.RemoveAll(first)
		return m.Run()
	}())
}

// kills is how many write-backs are killed, each at another moment.
func kills() int {
	if testing.Short() {
		return 8
	}
	return 30
}

// SIGKILL at any moment leaves the branch as it was or with the one commit, and the next
// write-back ends with exactly one.
func TestKilled(t *testing.T) {
	r := newRepository(t)
	address := r.serve()
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, r.key, 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	start := func(digit int) *exec.Cmd {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), killed+"="+address, killed+"_KEY="+key,
			killed+"_DIGIT="+fmt.Sprint(digit))
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
		// a moment, which may be after the end
		time.Sleep(whole * time.Duration(3*i) / time.Duration(kills()))
		_ = cmd.Process.Kill()
		if cmd.Wait() != nil {
			cut++
		}
		u := r.update()
		u.Remote.URL = address
		if result := r.write(u, built("weather", i)); !result.New {
			written++
		}
		if n := r.commits("main"); n != i+2 {
			t.Fatalf("after %d write-backs the branch has %d commits", i, n)
		}
	}
	r.run(r.bare, "fsck", "--strict", "--no-dangling")
	t.Logf("%d of %d were killed before their end, %d had written (one takes %s)", cut, kills(),
		written, whole.Round(time.Millisecond))
}

// Signatures are deterministic, and keys that cannot be so are refused.
func TestReadSigner(t *testing.T) {
	r := newRepository(t)
	sign, err := writeback.ReadSigner(r.key, nil)
	if err != nil {
		t.Fatal(err)
	}
	one, err := sign([]byte("x"), time.Time{})
	two, err2 := sign([]byte("x"), time.Time{})
	if err := multi.Errors(err, err2); err != nil || one != two {
		t.Errorf("%v", err)
	}
	folder := t.TempDir()
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", folder+"/ecdsa").
		CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ecdsa, err := os.ReadFile(folder + "/ecdsa")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range [][]byte{ecdsa, nil, []byte("x"),
		bytes.Repeat([]byte("-----BEGIN PGP PRIVATE KEY BLOCK-----\n"), 3)} {
		if _, err := writeback.ReadSigner(key, nil); err == nil {
			t.Errorf("%.30q is accepted", key)
		} else if strings.Contains(err.Error(), "BEGIN") {
			t.Errorf("the error has the key: %v", err)
		}
	}
}
