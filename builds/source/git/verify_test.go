package git

import (
	"context"
	"errors"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"

	"github.com/armature-dev/armature/builds/source/commit"
	"github.com/armature-dev/armature/builds/source/gitremote"
)

// A tenant writes the patterns, and a server of the tenant's the references: comparing them ends
// with the deadline of the question.
func TestComparingReferencesEnds(t *testing.T) {
	refs := packp.NewAdvRefs()
	refs.References["refs/heads/main"] = plumbing.ZeroHash
	s := &server{&gitremote.Conversation{Refs: refs}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	policy := &commit.Policy{Branches: []string{"release/*"}}
	if found, err := s.find(ctx, &commit.History{}, policy, plumbing.ZeroHash); !errors.Is(err,
		context.Canceled) {
		t.Errorf("%v, %v after the deadline", found, err)
	}
}
