// Package controller builds the images that AgentBuilds ask for. One reconcile
// is: observe, decide, act, status. Decisions are recorded in the names and the
// annotations of the runs, so that a restart, a second replica or a lost answer
// never starts a second run.
package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fluxcd/pkg/ssa"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render/sign"
)

// Reconciler brings AgentBuilds and their runs together.
type Reconciler struct {
	// Client reads from the caches and writes to the API server.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Runs creates PipelineRuns: a client of tekton.dev/v1.
	Runs rest.Interface
	// Logs reads the logs of a failed step; nil leaves them out.
	Logs kubernetes.Interface
	// Apply does server-side apply.
	Apply *ssa.ResourceManager
	// Events reports to users what went wrong.
	Events events.EventRecorder
	// Settings of all builds.
	Settings compose.Settings
	// Namespace of the controller, where shared templates are.
	Namespace string
	// Namespaces that the controller looks after; empty means all.
	Namespaces []string
	// RunKey proves which runs are ours.
	RunKey []byte
	// AttestKey is the Secret in Namespace with the key that attests, or a key of a KMS.
	AttestKey string
	// Keyless makes the controller's identity attest instead; nil leaves it at AttestKey.
	Keyless *Keyless
	// SummaryPolicy is the ConfigMap in Namespace with the policy by which attested images
	// get a summary; empty means none.
	SummaryPolicy string
	// ChainsKey is the ConfigMap in Namespace with the public key of Tekton Chains, which
	// attests; empty means that the controller does.
	ChainsKey string
	// WaitForChains keeps a run until Tekton Chains has signed it.
	WaitForChains bool
	// LogLines of a failed step that status keeps; zero keeps none.
	LogLines int64

	lostAfter time.Duration // a pod has to be lost before its run is stopped

	metrics  *metrics
	texts    texts
	git      resolver
	attests  questions[api.Attestation]
	kms      atomic.Pointer[sign.KMSKey] // nil until it signs, and after it failed
	woken    chan event.GenericEvent
	verdicts compose.Verdicts
	rebuilds rebuilds
	queue    *queue
	waits    sync.Map // build by name -> how long the last recheck waited
	created  sync.Map // build by name -> UID of the run that was made and that status does not know yet
}

// How long to wait before a refused or incomplete build is looked at again:
// secrets and quotas come without an event.
const (
	firstRecheck = 10 * time.Second
	lastRecheck  = 10 * time.Minute
)

func (r *Reconciler) watches(namespace string) bool {
	return len(r.Namespaces) == 0 || namespace == r.Namespace || slices.Contains(r.Namespaces, namespace)
}

// Reconcile one AgentBuild.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	waits, pending := false, false // in the queue; for a Git server
	defer func() { r.queue.reconciled(request.NamespacedName, waits, pending) }()
	s, err := r.observe(ctx, request.NamespacedName)
	if s == nil && err == nil {
		r.waits.Delete(request.NamespacedName)
		r.created.Delete(request.NamespacedName)
		r.rebuilds.leave(request.NamespacedName)
		r.git.forget(request.NamespacedName)
		r.attests.forget(request.NamespacedName)
	}
	if s == nil || err != nil {
		// A build that was judged before is not doubted because a server is down.
		if s != nil && s.build.Status.ObservedGeneration != s.build.Generation {
			r.retrying(ctx, s, err)
		}
		return reconcile.Result{}, err
	}
	if !s.build.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, r.finalize(ctx, s)
	}
	v := decide(s)
	if v.missing {
		if v, err = r.confirmMissing(ctx, s, v); err != nil {
			return reconcile.Result{}, err
		}
	}
	v = r.lookForLost(ctx, s, v)
	done, err := r.act(ctx, s, v)
	var later *notYet
	if errors.As(err, &later) {
		pending = later.cause == nil
		if later.cause != nil || later.waited > patience {
			r.retrying(ctx, s, err)
		}
		return reconcile.Result{RequeueAfter: later.again}, nil
	}
	if err != nil {
		r.retrying(ctx, s, err)
		return reconcile.Result{}, err
	}
	if done.created {
		// The run's own event brings the status, after other builds' runs exist.
		// A place that the build has it keeps: it is its run's.
		return reconcile.Result{RequeueAfter: done.again}, nil
	}
	waits = done.queued != ""
	if err := r.writeStatus(ctx, s, v.reported(done), done.problem); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return reconcile.Result{RequeueAfter: 50 * time.Millisecond}, nil // the cache is behind
		}
		return reconcile.Result{}, err
	}
	for _, old := range v.prune {
		if err := r.deleteRun(ctx, old); err != nil {
			return reconcile.Result{}, err
		}
	}
	return reconcile.Result{RequeueAfter: sooner(v.after, done.again)}, nil
}

// outcome is what came of acting on a verdict.
type outcome struct {
	// created: a run now exists.
	created bool
	// problem is what a user must fix, or nil.
	problem error
	// again is when to look again; zero is never.
	again time.Duration
	// queued says what the build waits for, where the queue has no place for it.
	queued string

	// Of attesting a run one is set; none while it is under way.
	attested *api.Attestation
	refused  *krm.Finding
	retried  error
	// retrying is what an earlier attempt was reported with, which holds until the next
	// one ends.
	retrying *metav1.Condition
}

// act does what was decided.
func (r *Reconciler) act(ctx context.Context, s *seen, v verdict) (outcome, error) {
	switch {
	case v.cancel != nil:
		return outcome{problem: v.problem}, r.cancel(ctx, v.cancel, v.lost)
	case v.start != "":
		return r.start(ctx, s, v)
	case v.attest:
		return r.attest(s, v), nil
	case v.problem != nil && v.after == 0:
		return r.hold(s, v.problem), nil
	}
	return outcome{problem: v.problem}, nil
}

// hold gives the outcome where a problem keeps a run from starting. The next look
// comes after a wait that doubles, since some remedies come without an event: a
// Secret, a quota, a policy.
func (r *Reconciler) hold(s *seen, problem error) outcome {
	key, wait := client.ObjectKeyFromObject(s.build), firstRecheck
	if last, ok := r.waits.Load(key); ok {
		wait = min(2*last.(time.Duration), lastRecheck)
	}
	r.waits.Store(key, wait)
	return outcome{problem: problem, again: wait}
}

// start composes and creates a run. What a user must fix is the problem of the
// outcome; the error is for faults that may pass by themselves.
func (r *Reconciler) start(ctx context.Context, s *seen, v verdict) (outcome, error) {
	in := compose.Input{
		Build: s.build, Template: s.template, Steps: s.steps, Settings: r.Settings, Platform: r.Namespace,
		Attempt: v.attempt, Trigger: v.start, Number: nextNumber(s), Commit: v.commit, Ref: v.ref, Verdicts: &r.verdicts,
	}
	revision := compose.Revision(s.build, s.template)
	if in.Commit == "" && fullCommit.MatchString(revision) {
		in.Commit = revision
	}
	out, problem := compose.Pipeline(in)
	if out == nil {
		return r.hold(s, problem), nil
	}
	found, err := r.secrets(ctx, s, out.Needs)
	if err != nil {
		return outcome{}, err
	}
	if s.template.Attest {
		problem, err := r.attestable(ctx, s.build)
		if err != nil {
			return outcome{}, err
		}
		if problem != nil {
			found.problem = compose.Join(found.problem, problem)
		}
	}
	if found.problem != nil {
		return r.hold(s, found.problem), nil
	}
	again, err := r.source(ctx, s, v, &in, found.source)
	var refusal *krm.Finding
	if errors.As(err, &refusal) {
		return r.hold(s, refusal), nil
	}
	if err != nil {
		return outcome{}, err
	}
	if queued, err := r.line(ctx, s, resolved{commit: in.Commit, branch: strings.TrimPrefix(in.Ref, "refs/heads/"), verified: in.Verified}); queued != "" || err != nil {
		return outcome{queued: queued}, err
	}
	if in.SecretKeys = found.keys; len(in.SecretKeys) > 0 {
		again = true
	}
	if again {
		if out, problem = compose.Pipeline(in); out == nil {
			return r.hold(s, problem), nil
		}
	}
	for _, o := range out.Apply {
		if problem, err := r.apply(ctx, s, o); err != nil {
			return outcome{}, err
		} else if problem != nil {
			return r.hold(s, problem), nil
		}
	}
	for _, w := range out.Warnings {
		log.FromContext(ctx).Info("a build will not do all that it says", "warning", w)
	}
	return r.create(ctx, s, v, out)
}

// create the run, once. An answer that got lost leads to AlreadyExists, and then
// the run must be ours and of the same content.
func (r *Reconciler) create(ctx context.Context, s *seen, v verdict, out *compose.Output) (outcome, error) {
	run := out.Run
	run.Annotations[keys.AnnotationProof] = r.prove(run, s.build.UID)
	body, err := out.RunJSON()
	if err != nil {
		return outcome{}, fmt.Errorf("marshalling run %s: %w", run.Name, err)
	}
	name := client.ObjectKeyFromObject(run)
	if !r.queue.creates(client.ObjectKeyFromObject(s.build), name) {
		return outcome{created: true, again: firstRecheck}, nil // the caches will show the run that was
	}
	// The UID is read of the answer. Without this header it would repeat the whole run.
	answer := &metav1.PartialObjectMetadata{}
	err = r.Runs.Post().Namespace(run.Namespace).Resource("pipelineruns").SetHeader("Content-Type", runtime.ContentTypeJSON).
		SetHeader("Accept", metadataOnly).Body(body).Do(ctx).Into(answer)
	switch {
	case err == nil:
		r.queue.created(name, answer.UID)
		r.created.Store(client.ObjectKeyFromObject(s.build), answer.UID)
		r.waits.Delete(client.ObjectKeyFromObject(s.build))
		r.metrics.created(s, v.start, time.Now())
		return outcome{created: true}, nil
	case apierrors.IsAlreadyExists(err):
		have := &PipelineRun{}
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(run), have); err != nil {
			return outcome{}, fmt.Errorf("reading run %s, which exists already: %w", run.Name, err)
		}
		counted, err := r.ours(ctx, s.build, runs(&PipelineRunList{Items: []PipelineRun{*have}}, s.build))
		if err != nil {
			return outcome{}, err
		}
		if len(counted) > 0 && have.Labels[compose.LabelManagedBy] == compose.ManagedBy {
			if r.queue.created(name, have.UID); readRun(have).done() {
				r.queue.ended(name, have.UID)
			}
			return outcome{created: true, again: firstRecheck}, nil // in case that its event does not come
		}
		r.queue.ended(name, "")
		return r.hold(s, place(s.build).Fault(api.ReasonRunForeign,
			fmt.Sprintf("a PipelineRun %s exists that is not this build's", run.Name), "delete it, if nothing needs it; the build then continues by itself")), nil
	case denied(err):
		r.queue.ended(name, "")
		return r.hold(s, r.refused(s, err)), nil
	case apierrors.IsConflict(err), apierrors.IsTooManyRequests(err), apierrors.IsUnauthorized(err):
		r.queue.ended(name, "") // it was not created
	}
	return outcome{}, fmt.Errorf("creating run %s: %w", run.Name, err)
}

// metadataOnly asks the API server to leave out of its answer all but metadata.
const metadataOnly = runtime.ContentTypeProtobuf + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1," + runtime.ContentTypeJSON

// denied reports whether the API server refused for good: a 4xx that is neither a
// conflict nor a request to come later.
func denied(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusConflict, http.StatusTooManyRequests, http.StatusRequestTimeout, http.StatusUnauthorized:
		return false
	default:
		return code >= 400 && code < 500
	}
}

// refused is a denial in the server's words.
func (r *Reconciler) refused(s *seen, refusal error) *krm.Finding {
	r.metrics.denied(s)
	return place(s.build).Fault(api.ReasonRunDenied, "the API server refuses the run: "+refusal.Error(),
		"change the build or the policy; it is tried again by itself")
}

// foreign reports a volume that has the name of the build's and is
// not its own: applied, it would be deleted with the build.
func (r *Reconciler) foreign(ctx context.Context, s *seen, o compose.Object) (*krm.Finding, error) {
	claim, is := o.(*corev1.PersistentVolumeClaim)
	if !is {
		return nil, nil
	}
	have := metadataOf("v1", "PersistentVolumeClaim")
	switch err := r.Live.Get(ctx, client.ObjectKeyFromObject(claim), have); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("looking for PersistentVolumeClaim %s: %w", claim.Name, err)
	case metav1.IsControlledBy(have, s.build):
		return nil, nil
	}
	return place(s.build).At("spec.workspace.keep").Fault(api.ReasonClaimForeign,
		fmt.Sprintf("a PersistentVolumeClaim %s exists that is not this build's", claim.Name),
		"delete it, or bind it in spec.pipeline.workspaces as shared-workspace, without keep"), nil
}

// apply an object that may be applied: Pipeline, volume, ServiceAccount. The
// problem is an object of somebody else's, or a denial.
func (r *Reconciler) apply(ctx context.Context, s *seen, o compose.Object) (*krm.Finding, error) {
	if problem, err := r.foreign(ctx, s, o); problem != nil || err != nil {
		return problem, err
	}
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, fmt.Errorf("converting %T: %w", o, err)
	}
	delete(raw, "status")
	object := &unstructured.Unstructured{Object: raw}
	if _, err := r.Apply.Apply(ctx, object, ssa.DefaultApplyOptions()); err != nil {
		err = fmt.Errorf("applying %s %s: %w", object.GetKind(), object.GetName(), err)
		if denied(err) {
			return r.refused(s, err), nil
		}
		return nil, err
	}
	return nil, nil
}

// found is what the API server returned about the build's Secrets.
type found struct {
	source *corev1.Secret
	keys   map[string][]string
	// problem lists all that is missing or unfit, nil for nothing.
	problem error
}

// secrets makes sure that everything a run needs is there, and reads the source
// Secret.
func (r *Reconciler) secrets(ctx context.Context, s *seen, needs []compose.Need) (found, error) {
	out := found{keys: map[string][]string{}}
	var missing []error
	for _, n := range needs {
		key := types.NamespacedName{Namespace: s.build.Namespace, Name: n.Name}
		var err error
		switch n.Kind {
		case "Secret":
			var secret corev1.Secret
			if err = r.Live.Get(ctx, key, &secret); err == nil {
				if !n.Purpose.Fits(secret.Type, secret.Labels) {
					missing = append(missing, n.Unfit(string(secret.Type)))
					continue
				}
				for name := range secret.Data {
					out.keys[n.Name] = append(out.keys[n.Name], name)
				}
				if n.Purpose == compose.PurposeGit {
					out.source = &secret
				}
			}
		case "ConfigMap":
			r.texts.note(n.Name)
			err = r.Client.Get(ctx, key, configMapMetadata())
		case "ServiceAccount":
			err = r.Live.Get(ctx, key, metadataOf("v1", "ServiceAccount"))
		case "PersistentVolumeClaim":
			err = r.Live.Get(ctx, key, metadataOf("v1", "PersistentVolumeClaim"))
		}
		switch {
		case apierrors.IsNotFound(err):
			missing = append(missing, n.Missing(s.build.Namespace))
		case err != nil:
			return out, fmt.Errorf("looking for %s %s: %w", n.Kind, key, err)
		}
	}
	out.problem = compose.Join(missing...)
	return out, nil
}

func metadataOf(apiVersion, kind string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: kind}}
}

func configMapMetadata() *metav1.PartialObjectMetadata { return metadataOf("v1", "ConfigMap") }

// deleteRun deletes exactly this run, unless Chains still has to sign it.
func (r *Reconciler) deleteRun(ctx context.Context, run run) error {
	if r.WaitForChains && run.Annotations[chainsSigned] == "" {
		return nil
	}
	target := &PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: run.Namespace, Name: run.Name}}
	err := r.Client.Delete(ctx, target, client.Preconditions{UID: &run.UID}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if apierrors.IsConflict(err) {
		return nil // another object under the same name
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting run %s: %w", run.Name, err)
	}
	return nil
}

const chainsSigned = "chains.tekton.dev/signed"

// finalize deletes the runs of a build that is being deleted, even when the
// user orphans them, then lets it go.
func (r *Reconciler) finalize(ctx context.Context, s *seen) error {
	finalizer := api.Finalizer(s.group)
	if !controllerutil.ContainsFinalizer(s.build, finalizer) {
		return nil
	}
	runs, err := r.liveRuns(ctx, s.build)
	if err != nil && !noTekton(err) {
		return err
	}
	for _, run := range runs {
		target := &PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: run.Namespace, Name: run.Name}}
		err := r.Client.Delete(ctx, target, client.Preconditions{UID: &run.UID}, client.PropagationPolicy(metav1.DeletePropagationBackground))
		if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting run %s of the deleted build: %w", run.Name, err)
		}
	}
	return release(ctx, r.Client, s.build, s.group)
}
