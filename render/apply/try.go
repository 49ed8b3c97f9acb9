package apply

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// try is a dry run of an object. Where a field of it is immutable, it also finds
// out whether the object could be created anew, before anybody deletes it.
func (c *Cluster) try(ctx context.Context, o *object) (liveObject, error) {
	u, err := c.patch(ctx, o, true)
	if immutable(err) && !precious(o.id) {
		o.fits = c.fits(ctx, o)
	}
	return u, err
}

// fits creates the object under another name, in a dry run.
func (c *Cluster) fits(ctx context.Context, o *object) bool {
	probe := &object{mapping: o.mapping, id: o.id, body: o.body.DeepCopy()}
	const suffix = "-armature-try"
	probe.id.Name = o.id.Name[:min(len(o.id.Name), 63-len(suffix))] + suffix
	probe.body.SetName(probe.id.Name)
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
	return err == nil
}
