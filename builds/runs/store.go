package runs

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/api/keys"
)

// Store reads and writes the runs of builds.
type Store struct {
	// Client reads runs from the cache, as Slim keeps them, and writes to the API server.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Tekton is a client of tekton.dev/v1, for runs with their specs.
	Tekton rest.Interface
	// Key proves which runs are ours.
	Key Key
	// BuildNamespace has the isolated runs of Instance; empty means that there are none.
	BuildNamespace, Instance string

	created sync.Map // build by name -> UID of the run that was created and that status does not know yet
}

// Cached runs of a build that count, newest first. They are the cache's own: do not
// change them.
func (s *Store) Cached(ctx context.Context, build *api.AgentBuild) ([]Run, error) {
	var list PipelineRunList
	err := s.Client.List(ctx, &list, client.InNamespace(build.Namespace), client.MatchingFields{OwnerIndex: string(build.UID)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("listing the runs of AgentBuild %s/%s: %w", build.Namespace, build.Name, err)
	}
	out, err := s.counting(ctx, build, OwnedBy(build, &list))
	if err != nil {
		return nil, err
	}
	isolated, err := s.isolated(ctx, client.ObjectKeyFromObject(build))
	if err != nil {
		return nil, err
	}
	for _, run := range isolated {
		if s.isOf(run, build) && !run.Held() {
			out = append(out, run)
		}
	}
	Sort(out)
	return out, nil
}

// isolated runs in the cache that were made for a build of that name.
func (s *Store) isolated(ctx context.Context, build types.NamespacedName) (out []Run, _ error) {
	if s.BuildNamespace == "" {
		return nil, nil
	}
	var list PipelineRunList
	err := s.Client.List(ctx, &list, client.InNamespace(s.BuildNamespace), client.MatchingFields{OwnerIndex: build.String()}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("listing the runs of AgentBuild %s: %w", build, err)
	}
	for i := range list.Items {
		out = append(out, Read(&list.Items[i]))
	}
	return out, nil
}

// Sweep deletes the isolated runs in the cache that have the name of the build and another UID, and
// those that are still held. The UID is empty if the build does not exist. Wait reports that a held
// run of the build may still exist.
func (s *Store) Sweep(ctx context.Context, build types.NamespacedName, uid types.UID) (wait bool, _ error) {
	all, err := s.isolated(ctx, build)
	for _, run := range all {
		own := uid != "" && run.Annotations[keys.AnnotationBuildUID] == string(uid)
		if own && !run.Held() {
			continue
		}
		wait = wait || own
		if run.DeletionTimestamp.IsZero() {
			if err := s.Delete(ctx, run); err != nil {
				return false, err
			}
		}
	}
	return wait, err
}

// IsIsolated reports whether an object is in the platform's build namespace, and this
// controller's. Whatever it says there is true.
func (s *Store) IsIsolated(o metav1.Object) bool {
	return s.BuildNamespace != "" && o.GetNamespace() == s.BuildNamespace && o.GetLabels()[keys.LabelInstance] == s.Instance
}

// isOf reports whether a run is an isolated one of a build.
func (s *Store) isOf(run metav1.Object, build *api.AgentBuild) bool {
	return s.IsIsolated(run) && buildOf(run) == client.ObjectKeyFromObject(build) && run.GetAnnotations()[keys.AnnotationBuildUID] == string(build.UID)
}

func buildOf(isolated metav1.Object) types.NamespacedName {
	a := isolated.GetAnnotations()
	return types.NamespacedName{Namespace: a[keys.AnnotationBuildNamespace], Name: a[keys.AnnotationBuild]}
}

// IsOurs reports whether a run is one that the controller made for a build.
func (s *Store) IsOurs(run metav1.Object, build *api.AgentBuild) bool {
	return s.isOf(run, build) || metav1.IsControlledBy(run, build) && s.Key.Proven(run, build.UID)
}

// BuildOf is the build that a run says it is of, or that another object is owned by; ok is false
// where it says none.
func (s *Store) BuildOf(o metav1.Object) (build types.NamespacedName, ok bool) {
	if s.IsIsolated(o) {
		return buildOf(o), true
	}
	owner := metav1.GetControllerOf(o)
	if owner == nil || owner.Kind != api.Kind {
		return build, false
	}
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: owner.Name}, true
}

// IndexOf a run: the name of its build if it is isolated, else the UID of its owner.
func (s *Store) IndexOf(o client.Object) []string {
	if s.IsIsolated(o) {
		return []string{buildOf(o).String()}
	}
	return OwnerOf(o)
}

// Owned returns the runs in the API server that name the build as their owner, including
// those that somebody else created.
func (s *Store) Owned(ctx context.Context, build *api.AgentBuild) ([]Run, error) {
	var list PipelineRunList
	err := s.Live.List(ctx, &list, client.InNamespace(build.Namespace), client.MatchingLabels{
		compose.LabelManagedBy: compose.ManagedBy,
		keys.LabelBuild:        compose.LabelValue(build.Name),
	})
	if err != nil {
		return nil, fmt.Errorf("listing the runs of AgentBuild %s/%s: %w", build.Namespace, build.Name, err)
	}
	out := OwnedBy(build, &list)
	if s.BuildNamespace == "" {
		return out, nil
	}
	list = PipelineRunList{}
	if err := s.Live.List(ctx, &list, client.InNamespace(s.BuildNamespace), client.MatchingLabels{
		keys.LabelInstance: s.Instance, keys.LabelBuild: compose.LabelValue(build.Name),
	}); err != nil {
		return nil, fmt.Errorf("listing the runs of AgentBuild %s/%s: %w", build.Namespace, build.Name, err)
	}
	for i := range list.Items {
		if buildOf(&list.Items[i]) == client.ObjectKeyFromObject(build) {
			out = append(out, Read(&list.Items[i]))
		}
	}
	return out, nil
}

// counting keeps of the runs that a build owns those that count.
func (s *Store) counting(ctx context.Context, build *api.AgentBuild, owned []Run) ([]Run, error) {
	var out []Run
	for _, run := range owned {
		known := build.Status.PipelineRunUID
		if isUnproven(build, run) {
			if err := s.adopt(ctx, build, run); err != nil {
				return nil, err
			}
			out = append(out, run)
			continue
		}
		switch {
		case !s.Key.Proven(run, build.UID):
			continue
		case run.Number == build.Status.RunNumber && known != "" && run.UID != known:
			continue
		case run.Number > build.Status.RunNumber && run.Attested():
			if ok, err := s.made(ctx, build, run); err != nil {
				return nil, err
			} else if !ok {
				continue
			}
		}
		out = append(out, run)
	}
	return out, nil
}

// adopt gives a run of an earlier release its proof, exactly as it was seen.
func (s *Store) adopt(ctx context.Context, build *api.AgentBuild, run Run) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": run.UID, "resourceVersion": run.ResourceVersion, "annotations": map[string]string{keys.AnnotationProof: s.Key.Prove(run, build.UID)},
	}})
	if err != nil {
		return fmt.Errorf("taking over run %s: %w", run.Name, err)
	}
	if _, err := s.Patch(ctx, client.ObjectKeyFromObject(run), patch); err != nil {
		return fmt.Errorf("taking over run %s, which an earlier release made: %w", run.Name, err)
	}
	return nil
}

// Patch a run, which gives its new resource version.
func (s *Store) Patch(ctx context.Context, key types.NamespacedName, patch []byte) (version string, err error) {
	target := &PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	err = s.Client.Patch(ctx, target, client.RawPatch(types.MergePatchType, patch))
	return target.ResourceVersion, err
}

// made reports whether a run that status does not know yet is what Create made.
func (s *Store) made(ctx context.Context, build *api.AgentBuild, run Run) (bool, error) {
	key := client.ObjectKeyFromObject(build)
	if uid, ok := s.created.Load(key); ok && uid == run.UID {
		return true, nil
	}
	whole, err := s.Whole(ctx, client.ObjectKeyFromObject(run))
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if whole.UID != run.UID || !asOrdered(whole) || !s.Key.Proven(whole, build.UID) {
		return false, nil
	}
	s.created.Store(key, run.UID)
	return true, nil
}

// asOrdered reports whether a run's spec is the one that was composed.
func asOrdered(run *tektonv1.PipelineRun) bool {
	want := run.Annotations[keys.AnnotationRunDigest]
	return want != "" && compose.RunDigest(&run.Spec) == want
}

// Forget the UID of the run that was created for a build: status knows it, or the build
// is gone.
func (s *Store) Forget(build types.NamespacedName) { s.created.Delete(build) }

// Whole reads a run with its spec, which the cache does not have.
func (s *Store) Whole(ctx context.Context, key types.NamespacedName) (*tektonv1.PipelineRun, error) {
	run := &tektonv1.PipelineRun{}
	if err := s.read(ctx, "pipelineruns", key, run); err != nil {
		return nil, fmt.Errorf("reading run %s: %w", key, err)
	}
	return run, nil
}

// Pipeline that a run refers to; nil where it is gone.
func (s *Store) Pipeline(ctx context.Context, key types.NamespacedName) (*tektonv1.PipelineSpec, error) {
	p := &tektonv1.Pipeline{}
	if err := s.read(ctx, "pipelines", key, p); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("reading Pipeline %s: %w", key.Name, err)
	}
	return &p.Spec, nil
}

func (s *Store) read(ctx context.Context, resource string, key types.NamespacedName, into any) error {
	data, err := s.Tekton.Get().Namespace(key.Namespace).Resource(resource).Name(key.Name).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// metadataOnly asks the API server to leave out of its answer all but metadata.
const metadataOnly = runtime.ContentTypeProtobuf + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1," + runtime.ContentTypeJSON

// Create a run. The error is that of the API server. An answer that got lost leads to
// AlreadyExists, and then Existing says whether the run is the one that was to be created.
// A run that has to be held does not begin before Release.
func (s *Store) Create(ctx context.Context, build *api.AgentBuild, out *compose.Output) (types.UID, error) {
	run := out.Run
	if s.IsIsolated(run) {
		if out.Held() {
			run.Annotations[keys.AnnotationHeld], run.Spec.Status = "true", tektonv1.PipelineRunSpecStatusPending
		}
	} else {
		run.Annotations[keys.AnnotationProof] = s.Key.Prove(run, build.UID)
	}
	body, err := out.RunJSON()
	if err != nil {
		return "", fmt.Errorf("marshalling: %w", err)
	}
	// The UID is read of the answer. Without this header it would repeat the whole run.
	answer := &metav1.PartialObjectMetadata{}
	err = s.Tekton.Post().Namespace(run.Namespace).Resource("pipelineruns").SetHeader("Content-Type", runtime.ContentTypeJSON).
		SetHeader("Accept", metadataOnly).Body(body).Do(ctx).Into(answer)
	if err == nil && !s.IsIsolated(run) {
		s.created.Store(client.ObjectKeyFromObject(build), answer.UID)
	}
	return answer.UID, err
}

// Release a run that was held: it gets its Secrets, and what else it has to own, and begins.
func (s *Store) Release(ctx context.Context, run types.NamespacedName, uid types.UID, owned ...client.Object) error {
	yes := true
	owner := metav1.OwnerReference{APIVersion: tektonv1.SchemeGroupVersion.String(), Kind: "PipelineRun", Name: run.Name, UID: uid, Controller: &yes}
	for _, o := range owned {
		o.SetNamespace(run.Namespace)
		o.SetOwnerReferences([]metav1.OwnerReference{owner})
		if err := s.give(ctx, o, uid); err != nil {
			return fmt.Errorf("giving run %s its %s: %w", run, o.GetName(), err)
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid, "annotations": map[string]any{keys.AnnotationHeld: nil}}, "spec": map[string]any{"status": nil}})
	if err == nil {
		_, err = s.Patch(ctx, run, patch)
	}
	if err != nil {
		return fmt.Errorf("letting run %s begin: %w", run, err)
	}
	return nil
}

// give an object to a run. One of its name that a run before it left is replaced.
func (s *Store) give(ctx context.Context, o client.Object, run types.UID) error {
	have := &metav1.PartialObjectMetadata{}
	have.SetGroupVersionKind(o.GetObjectKind().GroupVersionKind())
	err := s.Client.Create(ctx, o)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	if err := s.Live.Get(ctx, client.ObjectKeyFromObject(o), have); err != nil {
		return err
	}
	if metav1.IsControlledBy(have, &metav1.ObjectMeta{UID: run}) {
		return nil
	}
	uid := have.GetUID()
	if err := s.Client.Delete(ctx, have, client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil {
		return err
	}
	return s.Client.Create(ctx, o)
}

// Existing is the run that has the name of a composed one, if it is ours and of the same content;
// nil if it is not.
func (s *Store) Existing(ctx context.Context, build *api.AgentBuild, run *tektonv1.PipelineRun) (*Run, error) {
	have := &PipelineRun{}
	if err := s.Live.Get(ctx, client.ObjectKeyFromObject(run), have); err != nil {
		return nil, fmt.Errorf("reading run %s, which exists already: %w", run.Name, err)
	}
	counted := []Run{Read(have)}
	if !s.isOf(have, build) {
		var err error
		if counted, err = s.counting(ctx, build, OwnedBy(build, &PipelineRunList{Items: []PipelineRun{*have}})); err != nil {
			return nil, err
		}
	}
	// Its name is a short hash: what the run was made of is compared in full.
	same := !slices.ContainsFunc(compose.RunAnnotations, func(key string) bool {
		return key != keys.AnnotationTrigger && key != keys.AnnotationProof && have.Annotations[key] != run.Annotations[key]
	})
	if len(counted) == 0 || !same || have.Labels[compose.LabelManagedBy] != compose.ManagedBy {
		return nil, nil
	}
	return &counted[0], nil
}

// Cancel a run gracefully: its finally tasks still run. The same write records the pod
// that it is cancelled for, nil for none.
func (s *Store) Cancel(ctx context.Context, run *Run, lost *Lost) error {
	patch := map[string]any{"spec": map[string]any{"status": tektonv1.PipelineRunSpecStatusCancelledRunFinally}}
	if lost != nil {
		text, err := json.Marshal(lost)
		if err != nil {
			return fmt.Errorf("cancelling run %s: %w", run.Name, err)
		}
		patch["metadata"] = map[string]any{"uid": run.UID, "annotations": map[string]string{keys.AnnotationLost: string(text)}}
	}
	body, err := json.Marshal(patch)
	if err == nil {
		_, err = s.Patch(ctx, client.ObjectKeyFromObject(run), body)
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("cancelling run %s: %w", run.Name, err)
	}
	return nil
}

// Delete exactly this run, and not another object of the same name, nor one that was held and
// has begun.
func (s *Store) Delete(ctx context.Context, run Run) error {
	target := &PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: run.Namespace, Name: run.Name}}
	only := client.Preconditions{UID: &run.UID}
	if run.Held() {
		only.ResourceVersion = &run.ResourceVersion
	}
	err := s.Client.Delete(ctx, target, only, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting run %s: %w", run.Name, err)
	}
	return nil
}

// Missing asks the API server for the run in a build's status, which the cache lacks. The
// reason is api.ReasonRunDeleted or api.ReasonRunForeign; it is empty where the cache is
// behind.
func (s *Store) Missing(ctx context.Context, build *api.AgentBuild) (reason string, err error) {
	key, known := build.RunKey(), build.Status.PipelineRunUID
	if key.Namespace != s.BuildNamespace {
		key.Namespace = build.Namespace
	}
	have := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: tektonv1.SchemeGroupVersion.String(), Kind: "PipelineRun"}}
	err = s.Live.Get(ctx, key, have)
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return "", fmt.Errorf("looking for run %s: %w", key, err)
	case err != nil || known != "" && have.UID != known:
		return api.ReasonRunDeleted, nil
	case !s.IsOurs(have, build) || have.Labels[compose.LabelManagedBy] != compose.ManagedBy:
		return api.ReasonRunForeign, nil
	}
	return "", nil
}

// UsesSlot reports whether a run under way uses a slot of the queue. A tenant could make
// copies of runs that we made, and keep others waiting with them: a run that its build's
// status has left behind, or knows under another UID, is a copy. Copies of the runs of
// deleted builds are deleted by the cluster.
func (s *Store) UsesSlot(ctx context.Context, run *PipelineRun) bool {
	if s.IsIsolated(run) {
		return true
	}
	owner := metav1.GetControllerOf(run)
	if owner == nil || owner.Kind != api.Kind {
		return false
	}
	build, read := &api.AgentBuild{}, Read(run)
	if err := s.Client.Get(ctx, types.NamespacedName{Namespace: run.Namespace, Name: owner.Name}, build, client.UnsafeDisableDeepCopy); err != nil || build.UID != owner.UID {
		return s.Key.Proven(run, owner.UID)
	}
	if isUnproven(build, read) {
		return true
	}
	status := build.Status
	current := read.Number > status.RunNumber || read.Number == status.RunNumber && (status.PipelineRunUID == "" || status.PipelineRunUID == run.UID)
	return current && s.Key.Proven(run, owner.UID)
}
