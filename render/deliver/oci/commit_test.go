package oci

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/armature-dev/armature/render"
)

// TestOriginHasNoLogin: what is published names a repository without a login, and a URL
// that cannot be read is an error, since it may hold one.
func TestOriginHasNoLogin(t *testing.T) {
	for url, want := range map[string]string{
		"https://user:token@host.example/x?key=1": "https://host.example/x",
		"git@host.example:x":                      "git@host.example:x",
		"https://user:to%zzken@host.example/x":    "",
	} {
		repo, err := git.PlainInit(t.TempDir(), false)
		if err != nil {
			t.Fatal(err)
		}
		c, err := repo.Config()
		if err != nil {
			t.Fatal(err)
		}
		c.Remotes["origin"] = &config.RemoteConfig{Name: "origin", URLs: []string{url}}
		if err := repo.SetConfig(c); err != nil {
			t.Fatal(err)
		}
		got, err := origin(repo)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s is published as %q: %v", url, got, err)
		}
		if err != nil && strings.Contains(err.Error(), "ken") {
			t.Errorf("the error quotes the login: %v", err)
		}
	}
}

// TestCommitOfDottedFolder: a folder whose name begins with two dots is in the working tree.
func TestCommitOfDottedFolder(t *testing.T) {
	top := t.TempDir()
	repo, err := git.PlainInit(top, false)
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(top, "..app")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	const text = "kind: ConfigMap\n"
	if err := os.WriteFile(filepath.Join(folder, "a.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	work, err := repo.Worktree()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := work.Add("..app/a.yaml"); err != nil {
		t.Fatal(err)
	}
	who := &object.Signature{Name: "a", Email: "a@example.com"}
	if _, err := work.Commit("first", &git.CommitOptions{Author: who}); err != nil {
		t.Fatal(err)
	}
	meta, err := Commit(folder, []render.File{{Path: "a.yaml", Data: []byte(text)}})
	if err != nil || !strings.Contains(meta.Revision, "@sha1:") ||
		strings.HasSuffix(meta.Revision, "-dirty") {
		t.Errorf("revision %q, error %v", meta.Revision, err)
	}
}
