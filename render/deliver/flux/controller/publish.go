package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/render/deliver/flux/api"
	"github.com/armature-dev/armature/render/process"
)

const (
	labelManagedBy = "app.kubernetes.io/managed-by"
	// originRevision is the key of an artifact's metadata that Flux reports as the revision of the
	// origin, for instance to forges.
	originRevision = "org.opencontainers.image.revision"
)

// publish points the ExternalArtifact with the RenderedSource's name to a stored archive, and
// removes the archives that it replaces. It writes only objects that differ.
func (r *Reconciler) publish(ctx context.Context, source *api.RenderedSource, a *api.Artifact,
	origin *meta.Artifact) *process.Failure {
	fail := func(err error) *process.Failure {
		return process.Retry(reasonPublish,
			fmt.Errorf("publishing ExternalArtifact %s: %w", source.Name, err))
	}
	published, err := publishedOf(ctx, r.Live, source)
	if errors.Is(err, errForeign) {
		return process.Stalled(reasonConflict, err)
	}
	if err != nil {
		return fail(err)
	}
	want := newExternalArtifact(source)
	switch {
	case published == nil:
		published = want
		err = r.Client.Create(ctx, published, client.FieldOwner(program))
	case !containsObject(published, want):
		want.SetUID(published.GetUID()) // update only the object that was read
		published = want
		err = r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(published),
			client.FieldOwner(program), client.ForceOwnership)
	}
	if err == nil {
		err = publishStatus(ctx, r.Client, published, a, origin)
	}
	if err != nil {
		return fail(err)
	}
	source.Status.Artifact = a
	if err := r.Store.Collect(source.Namespace, source.Name, a.Digest, time.Now(),
		previousFor); err != nil {
		return process.Retry(reasonStorage, err)
	}
	return nil
}

func publishStatus(ctx context.Context, c client.Client, published *unstructured.Unstructured,
	a *api.Artifact, origin *meta.Artifact) error {
	have, err := artifactOf(published)
	same := err == nil && have != nil && have.Revision == a.Revision && have.Digest == a.Digest
	if same && !have.LastUpdateTime.IsZero() {
		a.LastUpdateTime = have.LastUpdateTime // written before a crash
	}
	metadata := map[string]string{}
	maps.Copy(metadata, origin.Metadata)
	metadata[originRevision] = cmp.Or(metadata[originRevision], origin.Revision)
	value, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&struct {
		Artifact   meta.Artifact      `json:"artifact"`
		Conditions []metav1.Condition `json:"conditions"`
	}{meta.Artifact{
		Digest: a.Digest,
		Path:   archivePath(published.GetNamespace(), published.GetName(), a.Digest), URL: a.URL,
		Revision: a.Revision, LastUpdateTime: a.LastUpdateTime, Size: ptr.To(a.Size),
		Metadata: metadata,
	}, []metav1.Condition{{
		Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: meta.SucceededReason,
		Message: "stored artifact of revision " + a.Revision, LastTransitionTime: a.LastUpdateTime,
		ObservedGeneration: published.GetGeneration(),
	}}})
	if err != nil || equality.Semantic.DeepEqual(published.Object["status"], any(value)) {
		return err
	}
	status := newSource(externalArtifact)
	status.SetNamespace(published.GetNamespace())
	status.SetName(published.GetName())
	status.SetUID(published.GetUID())
	status.Object["status"] = value
	apply := client.ApplyConfigurationFromUnstructured(status)
	return c.Status().Apply(ctx, apply, client.FieldOwner(program), client.ForceOwnership)
}

// errForeign reports an ExternalArtifact with another owner.
var errForeign = errors.New("has another owner")

// publishedOf returns the ExternalArtifact of a RenderedSource, or nil if it does not exist.
func publishedOf(ctx context.Context, live client.Reader,
	source *api.RenderedSource) (*unstructured.Unstructured, error) {
	o := newSource(externalArtifact)
	err := live.Get(ctx, client.ObjectKeyFromObject(source), o)
	switch {
	case err != nil:
		return nil, client.IgnoreNotFound(err)
	case !metav1.IsControlledBy(o, source):
		return nil, fmt.Errorf(
			"the ExternalArtifact %s %w: rename the RenderedSource, or delete that object",
			source.Name, errForeign)
	}
	return o, nil
}

// newExternalArtifact returns the object without its status.
func newExternalArtifact(source *api.RenderedSource) *unstructured.Unstructured {
	o := newSource(externalArtifact)
	o.SetNamespace(source.Namespace)
	o.SetName(source.Name)
	o.SetLabels(map[string]string{labelManagedBy: program})
	o.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(source,
		api.GroupVersion.WithKind(api.Kind))})
	o.Object["spec"] = map[string]any{"sourceRef": map[string]any{
		"apiVersion": api.GroupVersion.String(), "kind": api.Kind, "name": source.Name,
		"namespace": source.Namespace,
	}}
	return o
}

// containsObject reports whether an object has all fields that are applied to it.
func containsObject(have, want *unstructured.Unstructured) bool {
	return have.GetLabels()[labelManagedBy] == program &&
		slices.ContainsFunc(have.GetOwnerReferences(), func(o metav1.OwnerReference) bool {
			return equality.Semantic.DeepEqual(o, want.GetOwnerReferences()[0])
		}) && equality.Semantic.DeepEqual(have.Object["spec"], want.Object["spec"])
}

// withdraw deletes the ExternalArtifact, unless it has another owner.
func (r *Reconciler) withdraw(ctx context.Context, source *api.RenderedSource) error {
	o, err := publishedOf(ctx, r.Live, source)
	if errors.Is(err, errForeign) || apimeta.IsNoMatchError(err) || err == nil && o == nil {
		return nil
	}
	if err == nil {
		err = r.Client.Delete(ctx, o, client.Preconditions{UID: ptr.To(o.GetUID())})
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting ExternalArtifact %s: %w", source.Name, err)
	}
	return nil
}
