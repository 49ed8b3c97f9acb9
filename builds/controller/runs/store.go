package runs

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

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
	"github.com/armature-dev/armature/render/process"
)

// Store reads and writes the runs of builds.
type Store struct {
	// Client reads runs from the cache, as Slim keeps them, and writes to the API server.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Tekton is a client of tekton.dev/v1, for runs with their specs.
	Tekton rest.Interface
	// BuildNamespace has the isolated runs of Instance; empty means that there are none.
	BuildNamespace, Instance string
	// Shard is the shard of the builds whose runs are in the cache.
	Shard process.Shard
}

// Cached returns the runs of a build, newest first: its isolated runs, and the runs that it owns in
// its own namespace, where none is attested. They belong to the cache: do not change them.
func (s *Store) Cached(ctx context.Context, build *api.AgentBuild) ([]Run, error) {
	list, err := listed(ctx, s.Client, build.Namespace, client.ObjectKeyFromObject(build),
		client.MatchingFields{OwnerIndex: string(build.UID)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, err
	}
	out := Pick(list, func(run *PipelineRun) bool {
		read := Read(run)
		return metav1.IsControlledBy(run, build) && !read.Attested() && !read.copied(build.Status)
	})
	isolated, err := s.isolated(ctx, client.ObjectKeyFromObject(build),
		func(run *PipelineRun) bool { return s.IsOf(run, build) && !Read(run).Held() })
	out = append(out, isolated...)
	Sort(out)
	return out, err
}

// isolated returns the wanted ones of the cached isolated runs of a build of that name.
func (s *Store) isolated(ctx context.Context, build types.NamespacedName,
	wanted func(*PipelineRun) bool) ([]Run, error) {
	if s.BuildNamespace == "" {
		return nil, nil
	}
	list, err := listed(ctx, s.Client, s.BuildNamespace, build,
		client.MatchingFields{OwnerIndex: build.String()}, client.UnsafeDisableDeepCopy)
	return Pick(list, wanted), err
}

// listed lists the runs of a build in a namespace, which the options select.
func listed(ctx context.Context, from client.Reader, namespace string, build types.NamespacedName,
	options ...client.ListOption) (*PipelineRunList, error) {
	list := &PipelineRunList{}
	if err := from.List(ctx, list, append(options, client.InNamespace(namespace))...); err != nil {
		return list, fmt.Errorf("listing the runs of AgentBuild %s: %w", build, err)
	}
	return list, nil
}

// Sweep deletes the cached isolated runs that are of an earlier build of the same name or held. The
// UID is empty if the build does not exist. wait reports that a held run of the build may exist.
func (s *Store) Sweep(ctx context.Context, build types.NamespacedName,
	uid types.UID) (wait bool, _ error) {
	all, err := s.isolated(ctx, build, func(*PipelineRun) bool { return true })
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

// IsIsolated reports whether an object is in the platform's build namespace and of this controller.
// Its annotations are trusted.
func (s *Store) IsIsolated(o metav1.Object) bool {
	return s.BuildNamespace != "" && o.GetNamespace() == s.BuildNamespace &&
		o.GetLabels()[keys.LabelInstance] == s.Instance
}

// IsOf reports whether a run is an isolated one of a build.
func (s *Store) IsOf(run metav1.Object, build *api.AgentBuild) bool {
	return s.IsIsolated(run) && buildOf(run) == client.ObjectKeyFromObject(build) &&
		run.GetAnnotations()[keys.AnnotationBuildUID] == string(build.UID)
}

func buildOf(isolated metav1.Object) types.NamespacedName {
	a := isolated.GetAnnotations()
	return types.NamespacedName{Namespace: a[keys.AnnotationBuildNamespace],
		Name: a[keys.AnnotationBuild]}
}

// BuildOf returns the build that the annotations of an isolated object name, or that owns another
// object; ok is false if there is none.
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

// IndexOf returns the name of the build of an isolated run, or the UID of the owner of another run.
func (s *Store) IndexOf(o client.Object) []string {
	if s.IsIsolated(o) {
		return []string{buildOf(o).String()}
	}
	if owner := metav1.GetControllerOf(o); owner != nil {
		return []string{string(owner.UID)}
	}
	return nil
}

// Owned reads the runs of the build from the API server, including runs in its own namespace that
// the controller did not create.
func (s *Store) Owned(ctx context.Context, build *api.AgentBuild) (out []Run, _ error) {
	for _, namespace := range slices.Compact([]string{build.Namespace,
		cmp.Or(s.BuildNamespace, build.Namespace)}) {
		list, err := listed(ctx, s.Live, namespace, client.ObjectKeyFromObject(build),
			client.MatchingLabels{compose.LabelManagedBy: compose.ManagedBy,
				keys.LabelBuild: compose.LabelValue(build.Name)})
		if err != nil {
			return nil, err
		}
		out = append(out,
			Pick(list, func(run *PipelineRun) bool { return s.belongsTo(run, build) })...)
	}
	return out, nil
}

// Move sets the shard label of the build on its runs. It reports whether one of them is
// the run that status names.
func (s *Store) Move(ctx context.Context, build *api.AgentBuild) (known bool, _ error) {
	if s.Shard.Key == "" {
		return false, nil
	}
	owned, err := s.Owned(ctx, build)
	for _, run := range owned {
		known = known ||
			run.Name == build.Status.PipelineRunName && run.UID == build.Status.PipelineRunUID
		is, labelled := run.Labels[s.Shard.Key]
		want, wanted := build.Labels[s.Shard.Key]
		if is == want && labelled == wanted {
			continue
		}
		label := map[string]any{s.Shard.Key: nil}
		if wanted {
			label[s.Shard.Key] = want
		}
		_, err := s.Patch(ctx, client.ObjectKeyFromObject(run),
			map[string]any{"metadata": map[string]any{"uid": run.UID, "labels": label}})
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("giving run %s the shard of its build: %w", run.Name, err)
		}
	}
	return known, err
}

// HandOver hands the cached runs of a build over to its new shard, but deletes held runs.
func (s *Store) HandOver(ctx context.Context, build *api.AgentBuild) error {
	if _, err := s.Sweep(ctx, client.ObjectKeyFromObject(build), build.UID); err != nil {
		return err
	}
	have, err := s.Cached(ctx, build)
	if len(have) > 0 && err == nil {
		_, err = s.Move(ctx, build)
	}
	return err
}

// IsolatedOf lists the isolated runs of a namespace's builds in all shards from the API server.
func (s *Store) IsolatedOf(ctx context.Context, namespace string) (*PipelineRunList, error) {
	list := &PipelineRunList{}
	of := client.MatchingLabels{compose.LabelManagedBy: compose.ManagedBy,
		keys.LabelInstance: s.Instance, keys.AnnotationBuildNamespace: namespace}
	if err := s.Live.List(ctx, list, client.InNamespace(s.BuildNamespace), of); err != nil {
		return nil, fmt.Errorf("listing the isolated runs of namespace %s: %w", namespace, err)
	}
	return list, nil
}

// Patch merges a patch into a run, and returns its new resource version.
func (s *Store) Patch(ctx context.Context, key types.NamespacedName,
	patch map[string]any) (version string, _ error) {
	text, err := json.Marshal(patch)
	if err != nil {
		return "", err
	}
	target := &PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	err = s.Client.Patch(ctx, target, client.RawPatch(types.MergePatchType, text))
	return target.ResourceVersion, err
}

// Whole reads a run with its spec, which the cache does not have.
func (s *Store) Whole(ctx context.Context,
	key types.NamespacedName) (*tektonv1.PipelineRun, error) {
	run := &tektonv1.PipelineRun{}
	text, err := s.Tekton.Get().Namespace(key.Namespace).Resource("pipelineruns").Name(key.Name).
		SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx).Raw()
	if err == nil {
		err = json.Unmarshal(text, run)
	}
	if err != nil {
		return nil, fmt.Errorf("reading run %s: %w", key, err)
	}
	return run, nil
}

// Pipeline reads the Pipeline that a run refers to. It returns nil if the Pipeline does not exist.
func (s *Store) Pipeline(ctx context.Context,
	key types.NamespacedName) (*tektonv1.PipelineSpec, error) {
	p := &tektonv1.Pipeline{}
	if err := s.Live.Get(ctx, key, p); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("reading Pipeline %s: %w", key.Name, err)
	}
	return &p.Spec, nil
}

// metadataOnly asks the API server to return only metadata.
const metadataOnly = runtime.ContentTypeProtobuf + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1," +
	runtime.ContentTypeJSON

// Create creates a run and returns the error of the API server. After a lost answer, the next
// attempt fails with AlreadyExists, and Existing says whether the run is the intended one. A held
// run does not begin before Release; with shards, every isolated run is created held.
func (s *Store) Create(ctx context.Context, out *compose.Output) (types.UID, error) {
	run := out.Run
	if out.Held() || s.Shard.Key != "" && s.IsIsolated(run) {
		run.Annotations[keys.AnnotationHeld] = "true"
		run.Spec.Status = tektonv1.PipelineRunSpecStatusPending
	}
	body, err := out.RunJSON()
	if err != nil {
		return "", fmt.Errorf("marshalling: %w", err)
	}
	// Only the UID is read from the answer. Without the Accept header it would be the whole run.
	answer := &metav1.PartialObjectMetadata{}
	err = s.Tekton.Post().Namespace(run.Namespace).Resource("pipelineruns").
		SetHeader("Content-Type", runtime.ContentTypeJSON).SetHeader("Accept", metadataOnly).
		Body(body).Do(ctx).Into(answer)
	return answer.UID, err
}

// Release creates the Secrets and other objects that a held run owns, and lets the run begin.
func (s *Store) Release(ctx context.Context, run types.NamespacedName, uid types.UID,
	owned ...client.Object) error {
	owner := metav1.OwnerReference{APIVersion: tektonv1.SchemeGroupVersion.String(),
		Kind: "PipelineRun", Name: run.Name, UID: uid, Controller: new(true)}
	for _, o := range owned {
		o.SetNamespace(run.Namespace)
		o.SetOwnerReferences([]metav1.OwnerReference{owner})
		if err := s.give(ctx, o, uid); err != nil {
			return fmt.Errorf("giving run %s its %s: %w", run, o.GetName(), err)
		}
	}
	begin := map[string]any{"metadata": map[string]any{"uid": uid,
		"annotations": map[string]any{keys.AnnotationHeld: nil}},
		"spec": map[string]any{"status": nil}}
	if _, err := s.Patch(ctx, run, begin); err != nil {
		return fmt.Errorf("letting run %s begin: %w", run, err)
	}
	return nil
}

// give creates an object that a run owns. It replaces an object of the same name that an earlier
// run left; another controller may do the same at the same time.
func (s *Store) give(ctx context.Context, o client.Object, run types.UID) (err error) {
	for range 3 {
		if err = s.Client.Create(ctx, o); !apierrors.IsAlreadyExists(err) {
			return err
		}
		have := &metav1.PartialObjectMetadata{}
		have.SetGroupVersionKind(o.GetObjectKind().GroupVersionKind())
		if got := s.Live.Get(ctx, client.ObjectKeyFromObject(o), have); apierrors.IsNotFound(got) {
			continue
		} else if got != nil {
			return got
		}
		if metav1.IsControlledBy(have, &metav1.ObjectMeta{UID: run}) {
			return nil
		}
		uid := have.GetUID()
		deleted := s.Client.Delete(ctx, have, client.Preconditions{UID: &uid})
		if client.IgnoreNotFound(deleted) != nil && !apierrors.IsConflict(deleted) {
			return deleted
		}
	}
	return err
}

// Existing returns the run with the name of a composed run if it is the build's and has the same
// content, or nil.
func (s *Store) Existing(ctx context.Context, build *api.AgentBuild,
	run *tektonv1.PipelineRun) (*Run, error) {
	have := &PipelineRun{}
	if err := s.Live.Get(ctx, client.ObjectKeyFromObject(run), have); err != nil {
		return nil, fmt.Errorf("reading run %s, which exists already: %w", run.Name, err)
	}
	// The name has only a hash of the inputs, so the inputs are compared in full.
	differs := slices.ContainsFunc(compose.RunAnnotations, func(key string) bool {
		return key != keys.AnnotationTrigger && have.Annotations[key] != run.Annotations[key]
	})
	if differs || have.Labels[compose.LabelManagedBy] != compose.ManagedBy ||
		!s.belongsTo(have, build) {
		return nil, nil
	}
	found := Read(have)
	return &found, nil
}

// belongsTo reports whether a run is an isolated run of a build, or owned by it in its namespace.
func (s *Store) belongsTo(run metav1.Object, build *api.AgentBuild) bool {
	return s.IsOf(run, build) ||
		run.GetNamespace() == build.Namespace && metav1.IsControlledBy(run, build)
}

// Cancel cancels a run gracefully: its finally tasks still run. The same write records the lost pod
// that is the reason, if any.
func (s *Store) Cancel(ctx context.Context, run *Run, lost *Lost) error {
	patch := map[string]any{
		"spec": map[string]any{"status": tektonv1.PipelineRunSpecStatusCancelledRunFinally}}
	if lost != nil {
		text, err := json.Marshal(lost)
		if err != nil {
			return fmt.Errorf("cancelling run %s: %w", run.Name, err)
		}
		patch["metadata"] = map[string]any{"uid": run.UID,
			"annotations": map[string]string{keys.AnnotationLost: string(text)}}
	}
	_, err := s.Patch(ctx, client.ObjectKeyFromObject(run), patch)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("cancelling run %s: %w", run.Name, err)
	}
	return nil
}

// Delete deletes exactly this run: no other object of its name, and no held run that has begun.
func (s *Store) Delete(ctx context.Context, run Run) error {
	target := &PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: run.Namespace, Name: run.Name}}
	only := client.Preconditions{UID: &run.UID}
	if run.Held() {
		only.ResourceVersion = &run.ResourceVersion
	}
	err := s.Client.Delete(ctx, target, only,
		client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting run %s: %w", run.Name, err)
	}
	return nil
}

// Missing asks the API server for the run in a build's status, which the cache lacks. The reason is
// api.ReasonRunDeleted or api.ReasonRunForeign, or empty if the cache is stale.
func (s *Store) Missing(ctx context.Context, build *api.AgentBuild) (reason string, err error) {
	key, known := build.RunKey(), build.Status.PipelineRunUID
	if key.Namespace != s.BuildNamespace {
		key.Namespace = build.Namespace
	}
	have := process.MetadataOf(tektonv1.SchemeGroupVersion.String(), "PipelineRun")
	err = s.Live.Get(ctx, key, have)
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return "", fmt.Errorf("looking for run %s: %w", key, err)
	case err != nil || known != "" && have.UID != known:
		return api.ReasonRunDeleted, nil
	case !s.belongsTo(have, build) || have.Labels[compose.LabelManagedBy] != compose.ManagedBy:
		return api.ReasonRunForeign, nil
	}
	return "", nil
}

// copied reports whether a run in a tenant's namespace has the number of one that its build's
// status knows under another UID.
func (r Run) copied(status api.AgentBuildStatus) bool {
	return r.Number == status.RunNumber && status.PipelineRunUID != "" &&
		status.PipelineRunUID != r.UID
}

// SlotOf returns the build whose slot of the queue a run under way uses. Copies of runs, which a
// tenant could create in its namespace to delay other tenants, use no slot, nor do runs older than
// the one in their build's status. Kubernetes deletes copies of the runs of deleted builds.
func (s *Store) SlotOf(ctx context.Context, run *PipelineRun) (key types.NamespacedName, ok bool) {
	if key, ok = s.BuildOf(run); !ok || s.IsIsolated(run) {
		return key, ok
	}
	build, read := &api.AgentBuild{}, Read(run)
	return key, s.Client.Get(ctx, key, build, client.UnsafeDisableDeepCopy) == nil &&
		metav1.IsControlledBy(run, build) && read.Number >= build.Status.RunNumber &&
		!read.copied(build.Status)
}
