package apply

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/render/deliver/health"
)

// Item is an object of an inventory with its health.
type Item struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Namespace  string    `json:"namespace,omitempty"`
	Name       string    `json:"name"`
	UID        types.UID `json:"uid,omitempty"`
	health.Health
}

// Items looks at the live objects of an inventory.
func (c *Cluster) Items(ctx context.Context, v *Inventory) ([]Item, error) {
	steps, err := stepsOf(ctx, c, v.Entries)
	if err != nil {
		return nil, err
	}
	found, err := look(ctx, c, v.Package, steps)
	if err != nil {
		return nil, err
	}
	var items []Item
	for _, e := range v.Sorted() {
		if _, ran := v.Hooks[e.ID]; ran && found[e.ID] == nil {
			continue // it deleted itself when it was done
		}
		items = append(items, Item{APIVersion: e.GroupKind.WithVersion(e.Version).GroupVersion().String(), Kind: e.GroupKind.Kind,
			Namespace: e.Namespace, Name: e.Name, UID: e.UID, Health: health.Checks(nil).Of(found[e.ID])})
	}
	return items, nil
}
