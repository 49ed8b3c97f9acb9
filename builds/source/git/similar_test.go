package git

import (
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"

	"github.com/armature-dev/armature/builds/api"
)

// A revision that does not exist names the branch or tag that was meant. Names of the server's
// that are long, or that would move a terminal's cursor, are not repeated.
func TestNoRevision(t *testing.T) {
	refs := packp.NewAdvRefs()
	for _, name := range []string{
		"refs/heads/main", "refs/heads/release-1", "refs/tags/v1.0.0", "refs/pull/7/head",
		"refs/heads/" + strings.Repeat("x", 101), "refs/heads/ev\x1b[2Jil",
	} {
		refs.References[name] = plumbing.ZeroHash
	}
	if err := refs.Capabilities.Add(capability.SymRef, "HEAD:refs/heads/main"); err != nil {
		t.Fatal(err)
	}
	for revision, want := range map[string]string{
		"mian": "did you mean main?", "master": "did you mean main?", "Main": "did you mean main?",
		"1.0.0": "did you mean v1.0.0?", "relase-1": "did you mean release-1?",
		"feature": "; the default branch is main", "head": "; the default branch is main",
		strings.Repeat("x", 100): "; the default branch is main", "0123abc": "write the full one",
		"evil": "; the default branch is main", "ev\x1b[2Ji": "did you mean ev",
	} {
		err := noRevision(&api.AgentBuild{}, "https://git.example/x", revision, refs)
		if err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q: %v, want %q", revision, err, want)
		}
	}
}
