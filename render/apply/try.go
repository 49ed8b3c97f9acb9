package apply

import (
	"context"
	"net/http"
	"slices"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// try is a dry run of an object. Where a field of it is immutable, it also finds
// out whether the object could be created again, before anybody deletes it.
func (c *Cluster) try(ctx context.Context, o *object) (liveObject, error) {
	u, err := c.patch(ctx, o, true)
	if immutable(err) && !precious(o.id) {
		o.fits = c.fits(ctx, o)
	}
	return u, err
}

// tryInherited is a dry run of an object that conflicts only with managers of
// client-side apply, whose fields are about to be ours. It counts where nothing
// changes by it: the API server calls 1000m and 1 a conflict as well.
func (c *Cluster) tryInherited(ctx context.Context, o *object, live liveObject) {
	conflicts := conflictsOf(o.refusal)
	if len(conflicts) == 0 || slices.ContainsFunc(conflicts, func(f FieldConflict) bool { return !o.former.Has(f.Manager) }) {
		return
	}
	forced := *o
	forced.force = true
	trial, err := c.patch(ctx, &forced, true)
	if err != nil {
		return
	}
	before, after := bare(live).DeepCopy(), bare(trial).DeepCopy()
	before.SetLabels(nil)
	after.SetLabels(nil)
	if apiequality.Semantic.DeepEqual(before.Object, after.Object) {
		o.trial, o.refusal = trial, nil
	}
}

// fits reports whether the object could be created again.
func (c *Cluster) fits(ctx context.Context, o *object) bool {
	return c.tryUnder(ctx, o, o.id.Namespace) == nil
}

// tryElsewhere is a dry run of an object whose namespace comes with the package: in
// another one. It only reports what is wrong with the object itself. What is forbidden
// or missing there does not count.
func (c *Cluster) tryElsewhere(ctx context.Context, o *object, namespace string) error {
	err := c.tryUnder(ctx, o, namespace)
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || err != nil && strings.Contains(err.Error(), badPatch) {
		return err
	}
	return nil
}

// tryUnder creates the object under another name, in a dry run.
func (c *Cluster) tryUnder(ctx context.Context, o *object, namespace string) error {
	body := o.body
	if o.author != nil {
		body = o.author
	}
	probe := &object{mapping: o.mapping, id: o.id, body: body.DeepCopy()}
	const suffix = "-armature-try"
	probe.id.Name, probe.id.Namespace = o.id.Name[:min(len(o.id.Name), 63-len(suffix))]+suffix, namespace
	probe.body.SetName(probe.id.Name)
	probe.body.SetNamespace(namespace)
	if o.id.GroupKind == (schema.GroupKind{Kind: "Service"}) {
		// These are taken as long as the Service is there.
		for _, field := range []string{"clusterIP", "clusterIPs", "healthCheckNodePort"} {
			unstructured.RemoveNestedField(probe.body.Object, "spec", field)
		}
		ports, _, _ := unstructured.NestedSlice(probe.body.Object, "spec", "ports")
		for _, p := range ports {
			if port, ok := p.(map[string]any); ok {
				delete(port, "nodePort")
			}
		}
		if ports != nil {
			_ = unstructured.SetNestedSlice(probe.body.Object, ports, "spec", "ports") // it was one
		}
	}
	_, err := c.patch(ctx, probe, true)
	return err
}

// elsewhere is a namespace that exists.
func (a *application) elsewhere() string {
	own := ownNamespace(a.Package)
	if a.wanted[own] == nil || a.seen[own] != nil {
		return a.Namespace
	}
	return "default"
}

// needs says why a refusal does not count: because the package itself brings what
// the object needs, or because the API server cannot try it. "" where it counts.
func (a *application) needs(o *object) string {
	if apierrors.IsBadRequest(o.refusal) && strings.Contains(o.refusal.Error(), "does not support dry run") {
		return "not tried before: a webhook does not support dry runs"
	}
	for _, other := range a.wanted {
		switch {
		case other.id.GroupKind == crdKind && a.defines(other, o) && a.changes(other):
			return "not tried before: " + title(other.id) + " comes with it"
		case a.seen[other.id] == nil && a.ranks[other.id].compare(a.ranks[o.id]) < 0 && missing(o.refusal) && mentions(o.refusal, other.id.Name):
			return "not tried before: " + title(other.id) + " comes with it"
		}
	}
	return ""
}

func (a *application) changes(o *object) bool {
	return a.seen[o.id] == nil || o.trial != nil && !equal(a.seen[o.id], o.trial)
}

func (a *application) defines(crd, o *object) bool {
	group, _, _ := unstructured.NestedString(crd.body.Object, "spec", "group")
	kind, _, _ := unstructured.NestedString(crd.body.Object, "spec", "names", "kind")
	return o.id.GroupKind == schema.GroupKind{Group: group, Kind: kind}
}

// missing reports whether a refusal is of the kind that names something that is not
// there: admission plugins call that forbidden.
func missing(err error) bool {
	status, ok := err.(apierrors.APIStatus)
	return ok && (status.Status().Code == http.StatusForbidden || status.Status().Code == http.StatusNotFound)
}

// early reports whether an error may come of something that the API server does not
// see yet: an object that is needed, or a field of a changed CRD.
func early(err error) bool {
	return missing(err) || strings.Contains(err.Error(), badPatch)
}

// mentions reports whether a name is a word of the message.
func mentions(err error, name string) bool {
	return slices.ContainsFunc(strings.Fields(err.Error()), func(word string) bool {
		word = strings.Trim(word, `"'`+"`"+`:,;.()[]`)
		return word == name || strings.HasSuffix(word, "/"+name)
	})
}
