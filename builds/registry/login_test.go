package registry

import (
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
)

// A registry gets its own login alone, that of the longest path first. Programs that a
// Docker configuration names are not run.
func TestLogins(t *testing.T) {
	all, err := readLogins([]byte(`{
  "auths": {
    "https://registry.example/v2/": {"username": "whole", "password": "1"},
    "registry.example/team": {"auth": "dGVhbToy"},
    "docker.io": {"username": "hub", "password": "3"}
  },
  "credsStore": "evil", "credHelpers": {"other.example": "evil"}
}`))
	if err != nil {
		t.Fatal(err)
	}
	for image, want := range map[string]string{
		"registry.example/weather:v1":      "whole",
		"registry.example/team/weather:v1": "team",
		"registry.example/teams/x:v1":      "whole",
		"library/busybox":                  "hub",
		"other.example/x":                  "",
		"registry.example.evil/x":          "",
		"registry.example:5000/x":          "",
	} {
		ref, err := name.ParseReference(image)
		if err != nil {
			t.Fatal(err)
		}
		login, err := all.Resolve(ref.Context())
		if err != nil {
			t.Fatal(err)
		}
		config, err := login.Authorization()
		if err != nil || config.Username != want {
			t.Errorf("%s gets the login of %q, want %q: %v", image, config.Username, want, err)
		}
	}
	if _, err := readLogins([]byte("{")); err == nil {
		t.Error("half a configuration is read")
	}
}
