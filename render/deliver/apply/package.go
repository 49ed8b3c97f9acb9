package apply

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fluxcd/cli-utils/pkg/object"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/deliver/apply/fields"
)

// read returns a ranked step for each object of a package. The error lists everything that is wrong
// with the objects.
func read(ctx context.Context, c *Cluster, p Package, objects []Object) ([]*Step, error) {
	// The scopes of the kinds that CRDs of the package define.
	defined := make(map[schema.GroupVersionKind]apiextensionsv1.ResourceScope)
	for _, o := range objects {
		if o.GroupVersionKind().GroupKind() == crdKind {
			spec := definitionOf(o.Unstructured)
			for _, v := range spec.Versions {
				if v.Served {
					defined[kindOf(o.Unstructured).WithVersion(v.Name)] = spec.Scope
				}
			}
		}
	}
	var steps []*Step
	wanted := make(map[ID]*Step)
	var failed []error
	for _, o := range objects {
		gvk := o.GroupVersionKind()
		s := &Step{ID: object.UnstructuredToObjMetadata(o.Unstructured), Version: gvk.Version,
			File: o.File, Line: o.Line,
			want: desired{author: o.Unstructured, body: o.Unstructured,
				local: notForClusters(o.Unstructured)}}
		steps = append(steps, s)
		if s.want.local != "" {
			s.rank = rank{stage: stageOf(s.GroupKind)}
			continue
		}
		m, err := c.served(gvk)
		scope, hasCRD := defined[gvk]
		namespaced := scope == apiextensionsv1.NamespaceScoped
		if err == nil {
			s.seen.reads, namespaced =
				m.GroupVersionKind, m.Scope.Name() == meta.RESTScopeNameNamespace
		}
		switch s.want.later = s.seen.reads != gvk; {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("asking for the kinds of %s: %w", gvk.GroupVersion(),
				context.Cause(ctx))
		case err != nil && !errors.Is(err, errNotServed), s.want.later && !hasCRD:
			err = fmt.Errorf("%s %s of %s: %w, and no CRD of the package defines it",
				s.GroupKind.Kind, s.Name, o.GetAPIVersion(), cmp.Or(err, errNotServed))
		default:
			err = s.identify(p, namespaced, wanted)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", s.Place(), err))
		}
	}
	if err := multi.Errors(failed...); err != nil {
		return nil, err
	}
	if len(wanted) == 0 {
		return nil, fmt.Errorf("all %d objects are annotated %s or are tests of a Helm chart: "+
			"there is nothing to apply", len(objects), krm.LocalConfig)
	}
	return steps, arrange(wanted)
}

// identify adds the object of a step to the wanted objects, in the form in which it is sent.
func (s *Step) identify(p Package, namespaced bool, wanted map[ID]*Step) (err error) {
	if err := illegible(s.want.body); err != nil {
		return fmt.Errorf("%s %s: %w", s.GroupKind.Kind, s.Name, err)
	}
	p.adjust(s.want.body, namespaced)
	s.ID = object.UnstructuredToObjMetadata(s.want.body)
	switch other := wanted[s.ID]; {
	case other != nil:
		return fmt.Errorf("%s is in the package twice, in %s too", s.Title(), other.Place())
	case s.ID == p.inventory(configMapKind):
		return fmt.Errorf("%s is the name of the package's inventory", s.Title())
	case s.ID == p.inventory(leaseKind):
		return fmt.Errorf("%s is the name of the package's lease", s.Title())
	}
	wanted[s.ID] = s
	if s.want.hook, s.want.early, err = hookOf(s.want.body); err != nil {
		return fmt.Errorf("%s: %w", s.Title(), err)
	}
	return nil
}

// notForClusters returns the reason why an object does not belong in a cluster, or "".
func notForClusters(u *unstructured.Unstructured) string {
	annotations := u.GetAnnotations()
	if value, ok := annotations[krm.LocalConfig]; ok && value != "false" {
		return "its annotation marks it as configuration of tools, not for a cluster"
	}
	if value, ok := annotations[helmHook]; ok &&
		!slices.ContainsFunc(strings.Split(value, ","), func(event string) bool {
			event = strings.TrimSpace(event)
			return event != "test" && event != "test-success" && event != "test-failure"
		}) {
		return "its annotation limits it to `helm test`"
	}
	return ""
}

// definitionOf returns the spec of a CRD. The API server reports errors in it.
func definitionOf(crd *unstructured.Unstructured) apiextensionsv1.CustomResourceDefinitionSpec {
	var d apiextensionsv1.CustomResourceDefinition
	_ = runtime.DefaultUnstructuredConverter.FromUnstructured(crd.Object, &d)
	return d.Spec
}

// kindOf returns the kind that a CRD defines.
func kindOf(crd *unstructured.Unstructured) schema.GroupKind {
	spec := definitionOf(crd)
	return schema.GroupKind{Group: spec.Group, Kind: spec.Names.Kind}
}

// adjust prepares an object for sending: it sets the namespace and the package's labels, and
// removes fields that only the API server writes. The stringData of a Secret becomes data: the API
// server does not record the owner of a key of stringData, so that the key would never be deleted.
func (p Package) adjust(u *unstructured.Unstructured, namespaced bool) {
	switch {
	case !namespaced:
		u.SetNamespace("")
	case u.GetNamespace() == "":
		u.SetNamespace(p.Namespace)
	}
	delete(u.Object, "status")
	for _, field := range fields.Bookkeeping {
		unstructured.RemoveNestedField(u.Object, "metadata", field)
	}
	labels := u.GetLabels()
	if labels == nil {
		labels = make(map[string]string)
	}
	maps.Copy(labels, p.Labels())
	u.SetLabels(labels)
	if u.GroupVersionKind().GroupKind() == secretKind {
		if u.Object["data"] == nil {
			delete(u.Object, "data")
		}
		// illegible has checked the type.
		text, _, _ := unstructured.NestedStringMap(u.Object, "stringData")
		for key, value := range text {
			_ = unstructured.SetNestedField(u.Object,
				base64.StdEncoding.EncodeToString([]byte(value)), "data", key)
		}
		delete(u.Object, "stringData")
	}
}

// illegible returns an error for labels and annotations that are not strings, because client-go
// would ignore all of them. It also checks the data of Secrets, because the API server's error
// would quote the value.
func illegible(u *unstructured.Unstructured) error {
	fields := [][]string{{"metadata", "labels"}, {"metadata", "annotations"}}
	if u.GroupVersionKind().GroupKind() == secretKind {
		fields = append(fields, []string{"stringData"}, []string{"data"})
	}
	var wrong []string
	for _, path := range fields {
		field := strings.Join(path, ".")
		value, _, err := unstructured.NestedFieldNoCopy(u.Object, path...)
		entries, ok := value.(map[string]any)
		if err != nil || value != nil && !ok {
			wrong = append(wrong, field+" is not a map")
		}
		for _, key := range slices.Sorted(maps.Keys(entries)) {
			text, ok := entries[key].(string)
			if !ok {
				wrong = append(wrong, fmt.Sprintf("%s[%q] is not a string: write it in quotes",
					field, key))
			} else if _, err := base64.StdEncoding.DecodeString(text); err != nil && field == "data" {
				wrong = append(wrong,
					fmt.Sprintf("data[%q] is not in base64: write plain text under stringData", key))
			}
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return errors.New(strings.Join(wrong, "; "))
}
