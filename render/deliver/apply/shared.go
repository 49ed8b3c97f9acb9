package apply

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// findHeld notes which namespaces and CRDs that the package has no more hold objects
// of other packages, by their inventories. Of a namespace these are listed in it alone
// where that is not allowed everywhere.
func findHeld(ctx context.Context, c *Cluster, p *Plan) error {
	for _, s := range p.Steps {
		if s.want.author != nil || s.GroupKind != namespaceKind && s.GroupKind != crdKind || p.opt.PruneShared {
			continue
		}
		all, err := c.Inventories(ctx, "")
		if apierrors.IsForbidden(err) && s.GroupKind == namespaceKind {
			all, err = c.Inventories(ctx, s.Name)
		}
		if err != nil && all == nil {
			return fmt.Errorf("looking for what goes with %s: %w\n  hint: --allow prune-shared does not look", s.Title(), err)
		}
		for _, v := range all {
			if v.Package == p.Package {
				continue
			}
			if s.GroupKind == namespaceKind && v.Namespace == s.Name {
				s.seen.held = append(s.seen.held, "the inventory of "+v.Package.String())
			}
			for id := range v.Entries {
				if s.GroupKind == namespaceKind && id.Namespace == s.Name || s.GroupKind == crdKind && id.GroupKind == kindOf(s.seen.live) {
					s.seen.held = append(s.seen.held, title(id)+" of "+v.Package.String())
				}
			}
		}
		slices.Sort(s.seen.held)
	}
	return nil
}
