package apply

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/csaupgrade"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// kubectlApply is the field manager of `kubectl apply` without --server-side.
const kubectlApply = "kubectl-client-side-apply"

// clientSide names the field managers by which an object was applied from the
// client's side: that of kubectl, and any that wrote kubectl's copy of it. What such
// a manager owns beside us would outlive its removal from the package, so that its
// fields become ours, as `kubectl apply --server-side` and Flux make them theirs.
func clientSide(live liveObject) sets.Set[string] {
	if live == nil {
		return nil
	}
	_, copied := live.GetAnnotations()[lastApplied]
	_, applied := ownedBy(live, func(manager, operation, subresource string) bool {
		return manager == kubectlApply && operation == string(metav1.ManagedFieldsOperationUpdate) && subresource == ""
	})
	if !copied && !applied {
		return nil
	}
	names := sets.New[string]()
	if applied {
		names.Insert(kubectlApply)
	}
	if copied {
		field := fieldpath.NewSet(fieldpath.MakePathOrDie("metadata", "annotations", lastApplied))
		for _, entry := range csaupgrade.FindFieldsOwners(live.GetManagedFields(), metav1.ManagedFieldsOperationUpdate, field) {
			if entry.Subresource == "" {
				names.Insert(entry.Manager)
			}
		}
	}
	return names
}

// inherit makes the fields of client-side managers ours, and gives the object as it
// is then. The apply that follows removes those that the package has not; if that
// never comes, the next one does, since they are ours.
func (c *Cluster) inherit(ctx context.Context, o *object) (liveObject, error) {
	for range 5 {
		live, err := c.live(ctx, o.mapping, o.id)
		if err != nil || live == nil {
			return live, err
		}
		patch, err := csaupgrade.UpgradeManagedFieldsPatch(live, o.former, FieldManager)
		if err != nil {
			return nil, fmt.Errorf("reading the field managers: %w", err)
		}
		if patch == nil {
			return live, nil
		}
		live, err = c.at(o.mapping, o.id.Namespace).Patch(ctx, o.id.Name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
		if !apierrors.IsConflict(err) {
			return live, err
		}
	}
	return nil, fmt.Errorf("somebody else changes it at the same time: apply again")
}

// abandoned takes the fields out of a dry run's result that are going to be removed
// because only a client-side manager had them, and names them. Their defaults, which
// the API server fills in then, are not known here.
func abandoned(o *object, live liveObject) []string {
	theirs, others := fieldpath.NewSet(), fieldpath.NewSet()
	for _, entry := range append(live.GetManagedFields(), o.trial.GetManagedFields()...) {
		fields := fieldpath.NewSet()
		if entry.FieldsV1 == nil || fields.FromJSON(bytes.NewReader(entry.FieldsV1.GetRawBytes())) != nil {
			continue
		}
		if o.former.Has(entry.Manager) && entry.Operation == metav1.ManagedFieldsOperationUpdate && entry.Subresource == "" {
			theirs = theirs.Union(fields)
		} else {
			others = others.Union(fields)
		}
	}
	var names []string
	o.trial = o.trial.DeepCopy()
	theirs.Difference(others).Leaves().Iterate(func(path fieldpath.Path) {
		if _, found := without(o.trial.Object, path); found {
			if name := strings.TrimPrefix(path.String(), "."); !strings.Contains(name, lastApplied) {
				names = append(names, name)
			}
		}
	})
	return names
}

// without removes a field, and what is empty without it; found says whether it was
// there.
func without(value any, path fieldpath.Path) (left any, found bool) {
	if len(path) == 0 {
		return nil, true
	}
	empty := func(v any) bool {
		m, isMap := v.(map[string]any)
		items, isList := v.([]any)
		return v == nil || isMap && len(m) == 0 || isList && len(items) == 0
	}
	switch v := value.(type) {
	case map[string]any:
		if path[0].FieldName == nil {
			return value, false
		}
		below, ok := v[*path[0].FieldName]
		if !ok {
			return value, false
		}
		if below, found = without(below, path[1:]); found && empty(below) {
			delete(v, *path[0].FieldName)
		} else {
			v[*path[0].FieldName] = below
		}
		return v, found
	case []any:
		step, err := fieldpath.SerializePathElement(path[0])
		i := itemOf(v, step)
		if err != nil || i < 0 {
			return value, false
		}
		below, found := without(v[i], path[1:])
		if found && empty(below) {
			return slices.Delete(v, i, i+1), true
		}
		v[i] = below
		return v, found
	}
	return value, false
}
