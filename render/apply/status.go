package apply

import (
	"context"
	"errors"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Item is an object of an inventory and how it fares.
type Item struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Namespace  string    `json:"namespace,omitempty"`
	Name       string    `json:"name"`
	UID        types.UID `json:"uid,omitempty"`
	Health
}

// Items looks at the live objects of an inventory.
func (c *Cluster) Items(ctx context.Context, v *Inventory) ([]Item, error) {
	byKind := make(map[string]*kindOf)
	for id, e := range v.Entries {
		m, err := c.anyVersion(id.GroupKind, e.Version)
		if errors.Is(err, errNotServed) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if byKind[m.Resource.String()] == nil {
			byKind[m.Resource.String()] = &kindOf{mapping: m, ids: make(map[ID]bool)}
		}
		byKind[m.Resource.String()].ids[id] = true
	}
	found, err := c.look(ctx, v.Package, slices.Collect(maps.Values(byKind)))
	if err != nil {
		return nil, err
	}
	var items []Item
	for _, e := range v.Sorted() {
		if _, ran := v.Hooks[e.ID]; ran && found[e.ID] == nil {
			continue // it deleted itself when it was done
		}
		items = append(items, Item{APIVersion: apiVersion(e.GroupKind.Group, e.Version), Kind: e.GroupKind.Kind,
			Namespace: e.Namespace, Name: e.Name, UID: e.UID, Health: healthOf(found[e.ID])})
	}
	return items, nil
}
