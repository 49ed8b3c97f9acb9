package hydrate_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/deliver/hydrate"
)

// Clones that push at the same time all arrive, each in a commit of its own.
func TestConcurrentPushes(t *testing.T) {
	c := newClone(t)
	const n = 4
	var folders []string
	for i := range n {
		folders = append(folders, fmt.Sprintf("p%d", i))
	}
	c.commit("More packages", folders...)
	c.git("push", "-q", "origin", "main")
	// before any push: git copies the objects of a local repository file by file
	var branches []*hydrate.Branch
	for range folders {
		b := c.again().branch(prod)
		b.Push = true
		branches = append(branches, b)
	}
	var all sync.WaitGroup
	failed := make([]error, n)
	for i, folder := range folders {
		all.Go(func() { _, failed[i] = branches[i].Write(t.Context(), packages("x", folder)) })
	}
	all.Wait()
	if err := multi.Errors(failed...); err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders {
		run(t, c.bare, "show", prod+":apps/"+folder+"/manifest.yaml")
	}
	history := strings.Fields(run(t, c.bare, "rev-list", prod))
	diff(t, "commits", n, len(history))
	for _, commit := range history {
		run(t, c.bare, "notes", "--ref=hydrator.metadata", "show", commit)
	}
	run(t, c.bare, "fsck", "--strict")
}

// The same in one clone.
func TestConcurrentWrites(t *testing.T) {
	c := newClone(t)
	const n = 4
	var all sync.WaitGroup
	failed := make([]error, n)
	c.commit("More packages", "p0", "p1", "p2", "p3")
	b := c.branch(prod)
	for i := range n {
		all.Go(func() { _, failed[i] = b.Write(t.Context(), packages("x", fmt.Sprintf("p%d", i))) })
	}
	all.Wait()
	if err := multi.Errors(failed...); err != nil {
		t.Fatal(err)
	}
	diff(t, "commits", n, len(strings.Fields(c.git("rev-list", prod))))
	diff(t, "files", 2+3*n, len(c.files(prod)))
}

// A remote that refuses keeps both references, and its reason is shown. Local branches and
// what the clone knows of the remote play no part.
func TestRefusedPush(t *testing.T) {
	c := newClone(t)
	hook := filepath.Join(c.bare, "hooks", "pre-receive")
	if err := multi.Errors(os.MkdirAll(filepath.Dir(hook), 0o755),
		os.WriteFile(hook, []byte("#!/bin/sh\necho protected branch >&2\nexit 1\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	b := c.branch(prod)
	b.Push = true
	c.refused(b, "protected branch", "a")
	if err := os.Remove(hook); err != nil {
		t.Fatal(err)
	}
	c.must(c.branch(prod), "local only", "a")
	c.must(b, "one", "a")
	diff(t, "remote", "1", run(t, c.bare, "rev-list", "--count", prod))
	diff(t, "local", "text: local only", c.show("refs/heads/"+prod, "apps/a/manifest.yaml"))
	c.git("remote", "set-url", "origin", "https://ada:secret@127.0.0.1:1/x")
	if _, err := b.Write(t.Context(), packages("two", "a")); err == nil ||
		strings.Contains(err.Error(), "secret") {
		t.Errorf("a remote that does not answer: %v", err)
	}
}

// A fetch that was interrupted may have left commits without their files. They are fetched again.
func TestIncompleteObjects(t *testing.T) {
	c := newClone(t)
	other := c.again()
	b := other.branch(prod)
	b.Push = true
	first := other.must(b, "one", "a")
	for _, ref := range []string{prod, "refs/notes/hydrator.metadata"} {
		cmd := exec.Command("git", "-C", c.folder, "hash-object", "-w", "-t", "commit", "--stdin")
		cmd.Stdin = strings.NewReader(run(t, c.bare, "cat-file", "commit", ref) + "\n")
		if out, err := cmd.CombinedOutput(); err != nil ||
			strings.TrimSpace(string(out)) != run(t, c.bare, "rev-parse", ref) {
			t.Fatalf("git hash-object: %v\n%s", err, out)
		}
	}
	b = c.branch(prod)
	b.Push = true
	c.must(b, "two", "a")
	diff(t, "parent", first.Commit, run(t, c.bare, "rev-parse", prod+"^"))
}

// Whenever it is interrupted, the branch has its old commit or the new one, and no lock is left.
func TestInterrupted(t *testing.T) {
	c := newClone(t)
	b := c.branch(prod)
	b.Push = true
	done := 0
	for i := 0; done < 2 && i < 60; i++ {
		before := run(t, c.bare, "for-each-ref", "refs/heads/environments")
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*i)*time.Millisecond)
		_, err := b.Write(ctx, packages(fmt.Sprint(i), "a"))
		cancel()
		after := run(t, c.bare, "for-each-ref", "refs/heads/environments")
		switch {
		case err == nil:
			done++
		case after != before && !strings.Contains(err.Error(), "old commit or the new one"):
			t.Errorf("the branch moved, and the error is %v", err)
		}
	}
	if done == 0 {
		t.Error("no write ended")
	}
	for _, folder := range []string{c.bare, filepath.Join(c.folder, ".git")} {
		err := filepath.WalkDir(folder, func(name string, _ os.DirEntry, err error) error {
			if strings.HasSuffix(name, ".lock") {
				t.Errorf("%s is left", name)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	run(t, c.bare, "fsck", "--strict")
}
