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

// Propose opens a pull request that merges a commit of the branch, which is pushed, and gives
// its URL. One that is open already gets the Title and the Body,
// if they are set. If there is nothing to
// merge, the URL is "".
func (b *Branch) Propose(ctx context.Context, commit string, p Proposal) (address string, opened bool, err error) {
	if merged, err := b.merged(ctx, commit, p.Base); err != nil || merged {
		return "", false, err
	}
	refresh := p.Title != ""
	if !refresh {
		p.Title, p.Body = "Hydrate "+p.Base, "`armature hydrate` renders this branch. `hydrator.metadata` names the commit that it was rendered from."
	}
	made, opened, err := p.Forge.Propose(ctx, forge.Proposal{Head: b.Name, Base: p.Base, Title: p.Title, Body: p.Body, Refresh: refresh})
	if err != nil {
		return "", false, err
	}
	return made.URL, opened, nil
}

// merged reports whether a branch of the remote has all that a commit has.
func (b *Branch) merged(ctx context.Context, commit, base string) (bool, error) {
	w := &writing{Branch: b, git: b.git()}
	ref := "refs/heads/" + base
	for range 3 {
		out, err := w.git.network(ctx, "ls-remote", "--quiet", origin, ref)
		if err != nil {
			return false, err
		}
		id, _, _ := strings.Cut(string(out), "\t")
		if !isHash(id) {
			return false, fmt.Errorf("the branch %s does not exist on %s, so nothing can be merged into it", base, origin)
		}
		if here, err := w.fetch(ctx, map[string]string{ref: id}); err != nil {
			return false, err
		} else if !here {
			continue
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
	return false, fmt.Errorf("the branch %s of %s changes faster than it can be fetched", base, origin)
}
