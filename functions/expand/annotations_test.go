package expand_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/functions/expand"
)

func TestAnnotations(t *testing.T) {
	got := expand.Annotations(map[string]string{
		"example.com/team": "a", "example.com/kept": "b", "config.kubernetes.io/function": "c",
		"config.kubernetes.io/local-config":                "true",
		"config.kubernetes.io/path":                        "agent.yaml",
		"internal.config.kubernetes.io/index":              "0",
		"kubectl.kubernetes.io/last-applied-configuration": "{}",
		"armature.dev/source":                              "{}",
	}, map[string]string{"example.com/team": "d", "armature.dev/changed": "x"})
	want := map[string]string{"example.com/team": "d", "example.com/kept": "b",
		"config.kubernetes.io/function": "c"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestSprintf(t *testing.T) {
	got := expand.Sprintf("%q, %d", "https://user:word@host.example/x?token=1", 2)
	if want := `"…@host.example/x…", 2`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
