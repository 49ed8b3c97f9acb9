package oci

import (
	"strings"
	"testing"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
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
