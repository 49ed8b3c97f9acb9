package hydrate

import (
	"context"
	"fmt"
	"strings"

	"github.com/armature-dev/armature/render/deliver/forge"
)

// Proposal is a pull request that merges the branch into another one.
type Proposal struct {
	// Base is the branch to merge into, without refs/heads/.
	Base string
	// Title and Body of the pull request; empty ones describe what hydrate does.
	Title, Body string
	Forge       forge.Forge
}

// Propose opens a pull request that merges a commit of the branch, which is pushed, and returns
// its URL. If one is open already, it sets the Title and the Body of that, unless they are empty.
// If there is nothing to merge, the URL is "".
func (b *Branch) Propose(ctx context.Context, commit string,
	p Proposal) (address string, opened bool, err error) {
	if merged, err := b.merged(ctx, commit, p.Base); err != nil || merged {
		return "", false, err
	}
	refresh := p.Title != ""
	if !refresh {
		p.Title = "Hydrate " + p.Base
		p.Body = "`armature hydrate` renders this branch. " +
			"`hydrator.metadata` names the commit that it was rendered from."
	}
	made, opened, err := p.Forge.Propose(ctx, forge.Proposal{
		Head: b.Name, Base: p.Base, Title: p.Title, Body: p.Body, Refresh: refresh,
	})
	if err != nil {
		return "", false, err
	}
	return made.URL, opened, nil
}

// merged reports whether a branch of the remote has all that a commit has.
func (b *Branch) merged(ctx context.Context, commit, base string) (bool, error) {
	w := &writing{Branch: b, git: git{folder: b.Folder}}
	ref := "refs/heads/" + base
	found, err := w.remote(ctx, ref)
	if err != nil {
		return false, err
	}
	id := found[ref]
	if id == "" {
		return false, fmt.Errorf(
			"the branch %s does not exist on %s, so nothing can be merged into it", base, origin)
	}
	trees, err := w.git.run(ctx, "", "rev-parse", id+"^{tree}", commit+"^{tree}")
	if err != nil {
		return false, err
	}
	if both := strings.Fields(string(trees)); len(both) == 2 && both[0] == both[1] {
		return true, nil
	}
	return w.git.yes(ctx, "merge-base", "--is-ancestor", commit, id)
}
