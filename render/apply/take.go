package apply

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/go-multierror"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/armature-dev/armature/functions/krm"
)

// take records the desired objects of the package.
func (a *application) take(objects []Object) error {
	coming := definitions(objects)
	var failed *multierror.Error
	for _, o := range objects {
		gvk, at := o.GroupVersionKind(), place(o.File, o.Line)
		if notForClusters(o.Unstructured) != "" {
			a.local[ID{Namespace: o.GetNamespace(), Name: o.GetName(), GroupKind: gvk.GroupKind()}] = o
			continue
		}
		m, err := a.cluster.resource(gvk.GroupKind(), gvk.Version)
		namespaced := false
		switch {
		case err == nil:
			namespaced = m.Scope.Name() == meta.RESTScopeNameNamespace
		case errors.Is(err, errNotServed) && coming[gvk] != "":
			namespaced = coming[gvk] == "Namespaced"
		default:
			failed = multierror.Append(failed, fmt.Errorf("%s: %s %s of %s: %w, and no CRD of the package defines it", at, o.GetKind(), o.GetName(), o.GetAPIVersion(), err))
			continue
		}
		if wrong := illegible(o.Unstructured); len(wrong) > 0 {
			for _, w := range wrong {
				failed = multierror.Append(failed, fmt.Errorf("%s: %s %s: %s", at, o.GetKind(), o.GetName(), w))
			}
			continue
		}
		id := a.adjust(o.Unstructured, namespaced)
		if before := a.placeOf(id); before != "" {
			failed = multierror.Append(failed, fmt.Errorf("%s: %s is in the package twice, in %s too", at, title(id), before))
			continue
		}
		if id == (ID{Namespace: a.Namespace, Name: a.configMap(), GroupKind: configMapKind}) {
			failed = multierror.Append(failed, fmt.Errorf("%s: %s is the name of the package's inventory", at, title(id)))
			continue
		}
		if id == (ID{Namespace: a.Namespace, Name: a.configMap(), GroupKind: leaseKind}) {
			failed = multierror.Append(failed, fmt.Errorf("%s: %s is the name of the package's lease", at, title(id)))
			continue
		}
		h, err := hookOf(o.Unstructured)
		if err != nil {
			failed = multierror.Append(failed, fmt.Errorf("%s: %s: %w", at, title(id), err))
			continue
		}
		if h != nil && id.GroupKind == jobKind {
			a.hooks[id] = &object{id: id, file: o.File, line: o.Line, mapping: m, body: o.Unstructured, hook: h}
			continue
		}
		if h != nil && h.phase == preSync {
			a.early[id] = true
		}
		if m == nil {
			a.later[id], a.deferred = o, append(a.deferred, id)
			continue
		}
		a.wanted[id] = &object{id: id, file: o.File, line: o.Line, mapping: m, body: o.Unstructured}
	}
	if err := failed.ErrorOrNil(); err != nil {
		return err
	}
	return a.arrange()
}

// notForClusters is why an object does not belong in a cluster; "" where it does.
func notForClusters(u *unstructured.Unstructured) string {
	annotations := u.GetAnnotations()
	if value, ok := annotations[krm.LocalConfig]; ok && value != "false" {
		return "its annotation says that it is for tools, not for a cluster"
	}
	if value, ok := annotations[helmHook]; ok && !slices.ContainsFunc(strings.Split(value, ","), func(event string) bool {
		event = strings.TrimSpace(event)
		return event != "test" && event != "test-success" && event != "test-failure"
	}) {
		return "its annotation says that it is for `helm test` alone"
	}
	return ""
}

// placeOf says where the package has an object; "" where it has none.
func (a *application) placeOf(id ID) string {
	if o := a.wanted[id]; o != nil {
		return place(o.file, o.line)
	}
	if o := a.hooks[id]; o != nil {
		return place(o.file, o.line)
	}
	return place(a.later[id].File, a.later[id].Line)
}

// definitions gives the scope of each kind that the CRDs of the package define.
func definitions(objects []Object) map[schema.GroupVersionKind]string {
	scopes := make(map[schema.GroupVersionKind]string)
	for _, o := range objects {
		if o.GroupVersionKind().GroupKind() != crdKind {
			continue
		}
		group, _, _ := unstructured.NestedString(o.Object, "spec", "group")
		kind, _, _ := unstructured.NestedString(o.Object, "spec", "names", "kind")
		scope, _, _ := unstructured.NestedString(o.Object, "spec", "scope")
		versions, _, _ := unstructured.NestedSlice(o.Object, "spec", "versions")
		for _, v := range versions {
			if version, ok := v.(map[string]any); ok && version["served"] == true {
				name, _ := version["name"].(string)
				scopes[schema.GroupVersionKind{Group: group, Version: name, Kind: kind}] = scope
			}
		}
	}
	return scopes
}

// adjust makes an object what is sent: in its namespace, with the package's
// labels, and without what only the API server writes.
func (a *application) adjust(u *unstructured.Unstructured, namespaced bool) ID {
	switch {
	case !namespaced:
		u.SetNamespace("")
	case u.GetNamespace() == "":
		u.SetNamespace(a.Namespace)
	}
	delete(u.Object, "status")
	for _, field := range []string{"creationTimestamp", "managedFields", "resourceVersion", "uid", "generation", "selfLink"} {
		unstructured.RemoveNestedField(u.Object, "metadata", field)
	}
	labels := u.GetLabels()
	if labels == nil {
		labels = make(map[string]string)
	}
	maps.Copy(labels, a.Labels())
	u.SetLabels(labels)
	if u.GroupVersionKind().GroupKind() == secretKind {
		plainSecret(u)
	}
	return ID{Namespace: u.GetNamespace(), Name: u.GetName(), GroupKind: u.GroupVersionKind().GroupKind()}
}

// illegible finds labels and annotations that are not strings: client-go gives none of
// them then, so that all would be lost. A Secret's data is looked at, too: the API
// server would quote what is wrong.
func illegible(u *unstructured.Unstructured) (wrong []string) {
	fields := [][]string{{"metadata", "labels"}, {"metadata", "annotations"}}
	if u.GroupVersionKind().GroupKind() == secretKind {
		fields = append(fields, []string{"stringData"}, []string{"data"})
	}
	for _, path := range fields {
		field := strings.Join(path, ".")
		value, found, err := unstructured.NestedFieldNoCopy(u.Object, path...)
		entries, ok := value.(map[string]any)
		if err != nil || found && value != nil && !ok {
			wrong = append(wrong, field+" is not a map")
		}
		for _, key := range slices.Sorted(maps.Keys(entries)) {
			text, ok := entries[key].(string)
			if !ok {
				wrong = append(wrong, fmt.Sprintf("%s[%q] is not a string: write it in quotes", field, key))
			} else if _, err := base64.StdEncoding.DecodeString(text); err != nil && field == "data" {
				wrong = append(wrong, fmt.Sprintf("data[%q] is not in base64: write plain text under stringData", key))
			}
		}
	}
	return wrong
}

// plainSecret moves stringData to data: the API server does so too, but does not
// remember who owns a key that it moved, so that it would never go away.
func plainSecret(u *unstructured.Unstructured) {
	text, found, err := unstructured.NestedStringMap(u.Object, "stringData")
	if err != nil || !found {
		return // there is none: illegible has refused what cannot be read
	}
	data, _, err := unstructured.NestedStringMap(u.Object, "data")
	if err != nil {
		return
	}
	if data == nil {
		data = make(map[string]string)
	}
	for k, v := range text {
		data[k] = base64.StdEncoding.EncodeToString([]byte(v))
	}
	delete(u.Object, "stringData")
	_ = unstructured.SetNestedStringMap(u.Object, data, "data") // it is a map, as was read
}
