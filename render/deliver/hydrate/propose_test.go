package hydrate_test

import (
	"context"
	"strings"
	"testing"

	"github.com/armature-dev/armature/render/deliver/forge"
	"github.com/armature-dev/armature/render/deliver/hydrate"
)

// proposals that were made.
type proposals struct {
	forge.Forge
	made []forge.Proposal
}

func (p *proposals) Propose(_ context.Context,
	made forge.Proposal) (*forge.PullRequest, bool, error) {
	p.made = append(p.made, made)
	return &forge.PullRequest{URL: "https://forge/7"}, len(p.made) == 1, nil
}

// pushed writes the branch with a package, and returns the arguments of Propose.
func (c *clone) pushed(name, text string) (*hydrate.Branch, string) {
	c.t.Helper()
	b := c.branch(name)
	b.Push = true
	return b, c.must(b, text, "a").Commit
}

// A pull request is opened where there is something to merge.
func TestPropose(t *testing.T) {
	clone := newClone(t)
	pulls := &proposals{}
	p := hydrate.Proposal{Proposal: forge.Proposal{Base: prod}, Forge: pulls}
	b, first := clone.pushed(prod+"-next", "one")
	if _, _, err := b.Propose(t.Context(), first, p); err == nil ||
		!strings.Contains(err.Error(), "the branch environments/prod does not exist on origin") {
		t.Errorf("without the other branch: %v", err)
	}
	clone.git("fetch", "-q", "origin")
	clone.git("push", "-q", "origin", first+":refs/heads/"+prod)
	if address, opened, err := b.Propose(t.Context(), first, p); err != nil || opened || address != "" {
		t.Errorf("with nothing to merge: %q, %v, %v", address, opened, err)
	}
	if len(pulls.made) > 0 {
		t.Errorf("proposed %v", pulls.made)
	}
	_, next := clone.pushed(prod+"-next", "two")
	for _, want := range []bool{true, false} {
		if address, opened, err := b.Propose(t.Context(), next, p); err != nil || opened != want ||
			address != "https://forge/7" {
			t.Errorf("%q, %v, %v", address, opened, err)
		}
	}
	p.Title, p.Body = "Pin", "text"
	if _, _, err := b.Propose(t.Context(), next, p); err != nil {
		t.Error(err)
	}
	hydrated := forge.Proposal{Head: prod + "-next", Base: prod, Title: "Hydrate " + prod,
		Body: "`armature hydrate` renders this branch. `hydrator.metadata` names the commit that " +
			"it was rendered from."}
	diff(t, "the pull requests", []forge.Proposal{hydrated, hydrated,
		{Head: prod + "-next", Base: prod, Title: "Pin", Body: "text", Refresh: true}}, pulls.made)
}
