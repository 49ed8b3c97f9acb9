package forge_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/armature-dev/armature/e2e/gitea"
	"github.com/armature-dev/armature/render/deliver/forge"
)

// All that is asked of Gitea, of Gitea itself.
func TestGiteaItself(t *testing.T) {
	keys := t.TempDir()
	public := sshKey(t, keys)
	s := gitea.Start(t, gitea.Options{TrustedKeys: []string{public}})
	owner, author := s.User("owner"), s.User("author")
	path := s.Repository(owner, "weather")
	first := s.Write(owner, path, "main", "main", "a.txt", "one\n")
	clients := &forge.Clients{}
	f, err := clients.Open(forge.Gitea, s.URL+"/"+path, forge.Credential{Token: owner})
	must(t, err)
	ctx := t.Context()

	may := func(user string, want bool) {
		t.Helper()
		if got, err := f.MayPush(ctx, user); err != nil || got != want {
			t.Errorf("%s may push: %v, %v", user, got, err)
		}
	}
	may("owner", true)
	may("author", false)
	may("nobody", false)
	s.Must(owner, http.MethodPut, "/repos/"+path+"/collaborators/author",
		map[string]any{"permission": "read"}, nil)
	may("author", false)
	s.Must(owner, http.MethodPut, "/repos/"+path+"/collaborators/author",
		map[string]any{"permission": "write"}, nil)
	may("author", true)
	s.Must(owner, http.MethodDelete, "/repos/"+path+"/collaborators/author", nil, nil)
	may("author", false)

	// Statuses: an equal one is not sent again.
	for _, state := range []forge.State{forge.Queued, forge.Success, forge.Success, forge.Failure} {
		must(t,
			f.SetStatus(ctx, forge.Status{Commit: first, Context: "armature/team/weather",
				State: state, Description: string(state)}))
	}
	var statuses []struct{ Context, Status, Description string }
	s.Must(owner, http.MethodGet, "/repos/"+path+"/statuses/"+first+"?sort=oldest", nil, &statuses)
	if got := fmt.Sprint(statuses); got !=
		"[{armature/team/weather pending queued} {armature/team/weather success success} "+
			"{armature/team/weather failure failure}]" {
		t.Error(got)
	}

	// Pull requests, of the repository and of a fork.
	s.Write(owner, path, "main", "change", "a.txt", "two\n")
	made, opened, err := f.Propose(ctx, forge.Proposal{Head: "change", Base: "main", Title: "Two",
		Body: "A change"})
	if err != nil || !opened {
		t.Fatalf("%v, %v", opened, err)
	}
	if again, opened, err := f.Propose(ctx,
		forge.Proposal{Head: "change", Base: "main", Title: "Two, again", Body: "A change",
			Refresh: true}); err != nil || opened || again.Number != made.Number {
		t.Errorf("%+v, %v, %v", again, opened, err)
	}
	s.Must(author, http.MethodPost, "/repos/"+path+"/forks", map[string]any{}, nil)
	strange := s.Write(author, "author/weather", "main", "strange", "b.txt", "three\n")
	var fork struct{ Number int }
	s.Must(author, http.MethodPost, "/repos/"+path+"/pulls",
		map[string]any{"title": "Three", "head": "author:strange", "base": "main"}, &fork)
	open, err := f.PullRequests(ctx, "")
	if err != nil || len(open) != 2 {
		t.Fatalf("%+v, %v", open, err)
	}
	if p := open[0]; p.Number != fork.Number || !p.Fork || p.Author != "author" ||
		p.Commit != strange || p.Head != "strange" || p.Base != "main" || !p.Open {
		t.Errorf("%+v", p)
	}
	if p := open[1]; p.Number != made.Number || p.Fork || p.Author != "owner" || p.Title != "Two, again" {
		t.Errorf("%+v", p)
	}
	if of, err := f.PullRequests(ctx, "change"); err != nil || len(of) != 1 ||
		of[0].Number != made.Number {
		t.Errorf("%+v, %v", of, err)
	}

	// One comment, in its place.
	at := fmt.Sprintf("/repos/%s/issues/%d/comments", path, fork.Number)
	type comment struct {
		ID   int
		Body string
		User struct{ Login string }
	}
	list := func() (all []comment) {
		t.Helper()
		s.Must(owner, http.MethodGet, at, nil, &all)
		return all
	}
	must(t, f.Comment(ctx, fork.Number, "build/team/weather", "It has failed."))
	mine := list()[0]
	// the marker, by somebody else
	s.Must(author, http.MethodPost, at, map[string]any{"body": mine.Body}, nil)
	must(t, f.Comment(ctx, fork.Number, "build/team/weather", "It has succeeded."))
	if all := list(); len(all) != 2 || all[0].ID != mine.ID ||
		!strings.Contains(all[0].Body, "It has succeeded.") ||
		strings.Contains(all[0].Body, "failed") ||
		!strings.Contains(all[1].Body, "It has failed.") {
		t.Errorf("%+v", all)
	}
	must(t, f.Comment(ctx, fork.Number, "build/team/weather", ""))
	if all := list(); len(all) != 1 || all[0].User.Login != "author" {
		t.Errorf("%+v", all)
	}
	var edited comment
	s.Must(author, http.MethodPost, at, map[string]any{"body": "before"}, &edited)
	time.Sleep(1100 * time.Millisecond) // Gitea counts seconds
	s.Must(author, http.MethodPatch, fmt.Sprintf("/repos/%s/issues/comments/%d", path, edited.ID),
		map[string]any{"body": "after"}, nil)
	s.Must(owner, http.MethodPost, at, map[string]any{"body": "/ok-to-test " + strange}, nil)
	if got, err := f.Comments(ctx, fork.Number); err != nil || len(got) != 3 ||
		got[0] != (forge.Comment{Author: "owner", Body: "/ok-to-test " + strange}) ||
		got[1] != (forge.Comment{Author: "author", Body: "after", Edited: true}) || got[2].Edited {
		t.Errorf("%+v, %v", got, err)
	}

	// A commit by the API, with its lease.
	second, err := f.Commit(ctx, forge.Commit{Branch: "main", Head: first, Message: "Pin",
		Files: map[string][]byte{"armature.lock": []byte("x\n")}})
	must(t, err)
	if ours, err := f.Wrote(ctx, second); err != nil || !ours {
		t.Errorf("%v, %v", ours, err)
	}
	if _, err := f.Commit(ctx, forge.Commit{Branch: "main", Head: first, Message: "Pin",
		Files: map[string][]byte{"armature.lock": []byte("y\n")}}); !errors.Is(err, forge.ErrMoved) {
		t.Errorf("%v", err)
	}

	// A branch that takes signed commits alone.
	s.Must(owner, http.MethodPost, "/repos/"+path+"/branch_protections",
		map[string]any{"rule_name": "main", "enable_push": true, "require_signed_commits": true}, nil)
	if _, err := f.Commit(ctx, forge.Commit{Branch: "main", Head: second, Message: "Pin",
		Files: map[string][]byte{"armature.lock": []byte("y\n")}}); !errors.Is(err,
		forge.ErrRefused) && !errors.Is(err, forge.ErrUnauthorized) {
		t.Errorf("a commit that nobody signs: %v", err)
	}
	clone := t.TempDir()
	run := func(want bool, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(ctx, "git",
			append([]string{"-c", "user.name=bot", "-c", "user.email=bot@example.test", "-c",
				"gpg.format=ssh", "-c", "user.signingkey=" + filepath.Join(keys, "key")}, args...)...)
		cmd.Dir, cmd.Env = clone, append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null")
		if out, err := cmd.CombinedOutput(); (err == nil) != want {
			t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	run(true, "clone", "-q", s.Remote(owner, path), ".")
	run(true, "commit", "-q", "--allow-empty", "-m", "not signed")
	run(false, "push", "-q", "origin", "main")
	run(true, "commit", "-q", "--amend", "--allow-empty", "-S", "-m", "signed")
	run(true, "push", "-q", "origin", "main")

	// Closed is another word than merged.
	s.Must(author, http.MethodPatch, fmt.Sprintf("/repos/%s/pulls/%d", path, fork.Number),
		map[string]any{"state": "closed"}, nil)
	if p, err := f.PullRequest(ctx, fork.Number); err != nil || p.Open || p.Merged {
		t.Errorf("%+v, %v", p, err)
	}
	if open, err := f.PullRequests(ctx, ""); err != nil ||
		slices.ContainsFunc(open, func(p forge.PullRequest) bool {
			return p.Number == fork.Number
		}) {
		t.Errorf("%+v, %v", open, err)
	}
	if _, err := f.PullRequest(ctx, 99); !errors.Is(err, forge.ErrNotFound) {
		t.Errorf("%v", err)
	}
	stranger, err := clients.Open(forge.Gitea, s.URL+"/"+path,
		forge.Credential{Token: "0123456789012345678901234567890123456789"})
	must(t, err)
	if _, err := stranger.MayPush(ctx, "owner"); !errors.Is(err, forge.ErrUnauthorized) {
		t.Errorf("%v", err)
	}
}

// sshKey writes the file key into a folder, and returns the public key.
func sshKey(t *testing.T, folder string) string {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "",
		"-C", "bot", "-f", filepath.Join(folder, "key")).CombinedOutput(); err != nil {
		t.Skipf("ssh-keygen, which git signs with, does not run: %v\n"+
			"%s  hint: apt-get install openssh-client", err, out)
	}
	text, err := os.ReadFile(filepath.Join(folder, "key.pub"))
	must(t, err)
	return strings.TrimSpace(string(text))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
