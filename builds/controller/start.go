package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/fluxcd/pkg/ssa"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest/attester"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/controller/library"
	"github.com/armature-dev/armature/builds/controller/queue"
	"github.com/armature-dev/armature/builds/controller/runs"
	"github.com/armature-dev/armature/builds/failure/findings"
	"github.com/armature-dev/armature/builds/registry"
	"github.com/armature-dev/armature/builds/source/git"
	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
)

// starter composes runs and creates them.
type starter struct {
	settings compose.Settings
	verdicts *compose.Verdicts
	attester *attester.Attester
	pushes   *registry.Pushes
	queue    *queue.Queue
	kueue    *queue.Kueue // nil where Kueue is not asked
	objects  *ssa.ResourceManager
	cache    client.Reader
	live     client.Reader
	library  *library.Library
	git      *git.Resolver
	runs     *runs.Store
	metrics  *recorder
	waits    workqueue.TypedRateLimiter[types.NamespacedName] // of builds with a problem
}

// start composes and creates a run. Findings are what a user must fix, and the problem of the
// outcome; another error is a fault that may pass by itself.
func (r *starter) start(ctx context.Context, s *seen, a attempt) (outcome, error) {
	done, err := r.try(ctx, s, a)
	if errors.As(err, new(*finding.Finding)) {
		return r.hold(s.build, findings.Join(err)), nil
	}
	return done, err
}

// try to start a run: compose it, see that all that it needs is there, complete it with that,
// wait for its turn, apply what it refers to, create it.
func (r *starter) try(ctx context.Context, s *seen, a attempt) (outcome, error) {
	in := r.input(s, a)
	out, problem := compose.Pipeline(in)
	if problem != nil {
		return outcome{}, problem
	}
	found, err := r.find(ctx, s.build, out.Needs)
	if err != nil {
		return outcome{}, err
	}
	if err := r.checkAccount(ctx, s.build, out.Run.Spec.TaskRunTemplate.ServiceAccountName); err != nil {
		return outcome{}, err
	}
	if err := r.checkAttester(ctx, s, found.problem); err != nil {
		return outcome{}, err
	}
	known, err := r.resolve(ctx, s, in.Resolved, found)
	if err != nil {
		return outcome{}, err
	}
	if err := out.Resolve(known); err != nil {
		return outcome{}, err
	}
	if err := r.pushes.Check(s.build, s.want); err != nil {
		return outcome{}, err
	}
	if message, err := r.admit(ctx, s.build, out); message != "" || err != nil {
		return outcome{queued: message, run: out.Run.Name}, err
	}
	for _, o := range out.Apply {
		if err := r.apply(ctx, s.build, o); err != nil {
			return outcome{}, err
		}
	}
	for _, w := range out.Warnings {
		log.FromContext(ctx).Info("a build will not do all that it says", "warning", w)
	}
	return r.create(ctx, s, a, out, found.secrets)
}

// input of a run's composition, before its Secrets and its commit are looked up.
func (r *starter) input(s *seen, a attempt) compose.Input {
	in := compose.Input{
		Build: s.build, Template: s.template, Steps: s.steps, Settings: r.settings, Platform: r.library.Namespace,
		Attempt: a.number, Number: s.build.Status.RunNumber + 1, Verdicts: r.verdicts,
		Resolves: true, Resolved: compose.Resolved{Commit: a.commit, Ref: a.ref, Trigger: a.why},
	}
	if len(s.runs) > 0 {
		in.Number = max(in.Number, s.runs[0].Number+1)
	}
	if revision := compose.Revision(s.build, s.template); in.Commit == "" && git.IsFullSHA(revision) {
		in.Commit = revision
	}
	return in
}

// checkAccount holds the build of a fork whose ServiceAccount has Secrets: Tekton mounts logins
// among them into every step.
func (r *starter) checkAccount(ctx context.Context, build *api.AgentBuild, name string) error {
	if p := build.Spec.Source.PullRequest; p == nil || !p.Fork || name == compose.BuildAccount {
		return nil
	}
	key := types.NamespacedName{Namespace: build.Namespace, Name: cmp.Or(name, "default")}
	var account corev1.ServiceAccount
	switch err := r.live.Get(ctx, key, &account); {
	case apierrors.IsNotFound(err): // it is missing, or about to be made without any
		return nil
	case err != nil:
		return fmt.Errorf("looking for ServiceAccount %s: %w", key, err)
	case len(account.Secrets) == 0:
		return nil
	}
	return compose.Place(build).At("spec.source.pullRequest.fork").Fault(api.ReasonForkRestricted,
		fmt.Sprintf("the commit is of another repository, and ServiceAccount %s has the Secret %s, which Tekton could mount into its steps", key, account.Secrets[0].Name),
		"remove what its field secrets lists, and let the builds that need those name an account of their own in spec.serviceAccountName")
}

// checkAttester adds to what is missing that the platform could not attest the run.
func (r *starter) checkAttester(ctx context.Context, s *seen, missing error) error {
	if compose.Attests(s.build, s.template) {
		err := r.attester.Ready(ctx, s.build)
		if errors.As(err, new(*finding.Finding)) {
			missing = findings.Join(missing, err)
		} else if err != nil {
			return err
		}
	}
	return missing
}

// admit a run now, or say what it waits for.
func (r *starter) admit(ctx context.Context, build *api.AgentBuild, out *compose.Output) (message string, err error) {
	if r.kueue != nil {
		return r.kueue.Admit(ctx, build, out)
	}
	return r.queue.Join(ctx, build, out)
}

// create the run, once, with copies of the Secrets that it reads if it is isolated.
func (r *starter) create(ctx context.Context, s *seen, a attempt, out *compose.Output, secrets map[string]*corev1.Secret) (outcome, error) {
	span := r.metrics.startSpan(s, a, out.Run)
	uid, err := r.runs.Create(ctx, out)
	switch {
	case err == nil:
		if message, err := r.release(ctx, s.build, out, uid, secrets); message != "" || err != nil {
			return outcome{queued: message, run: out.Run.Name, again: wait.Jitter(queue.Tick, 1)}, err
		}
		r.waits.Forget(client.ObjectKeyFromObject(s.build))
		r.metrics.created(s.build, a.why, time.Now())
		span.End(time.Now(), false)
		return outcome{created: true}, nil
	case apierrors.IsAlreadyExists(err):
		have, err := r.runs.Existing(ctx, s.build, out.Run)
		if err != nil {
			return outcome{}, err
		}
		if have != nil {
			if have.Held() {
				if message, err := r.release(ctx, s.build, out, have.UID, secrets); message != "" || err != nil {
					return outcome{queued: message, run: out.Run.Name, again: wait.Jitter(queue.Tick, 1)}, err
				}
			}
			_, err := r.runs.Move(ctx, s.build)
			return outcome{created: true, again: firstRecheck}, err // in case that its event does not come
		}
		return outcome{}, compose.Place(s.build).Fault(api.ReasonRunForeign,
			fmt.Sprintf("a PipelineRun %s exists that is not this build's", out.Run.Name), "delete it, if nothing needs it; the build then continues by itself")
	case denied(err):
		return outcome{}, r.refused(s.build, err)
	}
	return outcome{}, fmt.Errorf("creating run %s: %w", out.Run.Name, err)
}

// release a run that was created held. Otherwise it has begun already. With a message, the run waits
// for those of other shards.
func (r *starter) release(ctx context.Context, build *api.AgentBuild, out *compose.Output, uid types.UID, secrets map[string]*corev1.Secret) (message string, _ error) {
	if out.Run.Annotations[keys.AnnotationHeld] == "" {
		return "", nil
	}
	if r.kueue == nil {
		message, err := r.queue.Crowded(ctx, build, out)
		if message != "" {
			have, failed := r.runs.Existing(ctx, build, out.Run)
			if err = failed; have != nil && have.UID == uid && have.Held() {
				err = r.runs.Delete(ctx, *have)
			}
		}
		if message != "" || err != nil {
			return message, err
		}
	}
	var owned []client.Object
	for _, c := range out.Copies {
		secret := &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, Immutable: new(true), Data: maps.Clone(secrets[c.From].Data)}
		maps.DeleteFunc(secret.Data, func(key string, _ []byte) bool { return !slices.Contains(c.Keys, key) })
		secret.Name, secret.Labels = c.To, map[string]string{compose.LabelManagedBy: compose.ManagedBy, keys.LabelInstance: out.Run.Labels[keys.LabelInstance]}
		owned = append(owned, secret)
		log.FromContext(ctx).Info("a run gets a copy of a Secret", "run", out.Run.Name, "secret", c.From, "resourceVersion", secrets[c.From].ResourceVersion)
	}
	if out.Run.Spec.PipelineRef != nil {
		owned = append(owned, out.Pipeline.DeepCopy())
	}
	err := r.runs.Release(ctx, client.ObjectKeyFromObject(out.Run), uid, owned...)
	if err == nil {
		return "", nil
	}
	// The next attempt begins anew, unless another controller has let the run begin meanwhile.
	// What is left after a failure here, Sweep deletes.
	if have, failed := r.runs.Existing(ctx, build, out.Run); failed == nil && have != nil && have.UID == uid {
		if !have.Held() {
			return "", nil
		}
		err = errors.Join(err, r.runs.Delete(ctx, *have))
	}
	if denied(err) && !apierrors.IsNotFound(err) {
		return "", r.refused(build, err)
	}
	return "", err
}

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

// refused holds a build with a denial in the server's words.
func (r *starter) refused(build *api.AgentBuild, refusal error) error {
	r.metrics.denied(build)
	return compose.Place(build).Fault(api.ReasonRunDenied, "the API server refuses the run: "+refusal.Error(),
		"change the build or the policy; it is tried again by itself")
}

// apply an object that may be applied: Pipeline, volume, ServiceAccount. An object of
// somebody else, or a denial, holds the build.
func (r *starter) apply(ctx context.Context, build *api.AgentBuild, o compose.Object) error {
	if claim, is := o.(*corev1.PersistentVolumeClaim); is {
		if err := r.checkClaim(ctx, build, claim); err != nil {
			return err
		}
	}
	object, err := unstructuredOf(o)
	if err != nil {
		return err
	}
	if _, err := r.objects.Apply(ctx, object, ssa.DefaultApplyOptions()); err != nil {
		err = fmt.Errorf("applying %s %s: %w", object.GetKind(), object.GetName(), err)
		if denied(err) {
			return r.refused(build, err)
		}
		return err
	}
	return nil
}

func unstructuredOf(o compose.Object) (*unstructured.Unstructured, error) {
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, fmt.Errorf("converting %T: %w", o, err)
	}
	delete(raw, "status")
	return &unstructured.Unstructured{Object: raw}, nil
}

// checkClaim holds a build whose volume would replace another one of its name: applied, it
// would be deleted with the build.
func (r *starter) checkClaim(ctx context.Context, build *api.AgentBuild, claim *corev1.PersistentVolumeClaim) error {
	have := metadataOf("v1", "PersistentVolumeClaim")
	switch err := r.live.Get(ctx, client.ObjectKeyFromObject(claim), have); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("looking for PersistentVolumeClaim %s: %w", claim.Name, err)
	case metav1.IsControlledBy(have, build):
		return nil
	}
	return compose.Place(build).At("spec.workspace.keep").Fault(api.ReasonClaimForeign,
		fmt.Sprintf("a PersistentVolumeClaim %s exists that is not this build's", claim.Name),
		"delete it, or bind it in spec.pipeline.workspaces as shared-workspace, without keep")
}

// How long to wait before a refused or incomplete build is looked at again:
// secrets and quotas come without an event.
const (
	firstRecheck = 10 * time.Second
	lastRecheck  = 10 * time.Minute
)

// hold returns the outcome where a problem keeps a run from starting. The next look
// comes after a wait that doubles, since some remedies come without an event: a
// Secret, a quota, a policy.
func (r *starter) hold(build *api.AgentBuild, problem error) outcome {
	return outcome{problem: problem, again: r.waits.When(client.ObjectKeyFromObject(build))}
}

// leave the queue: the build does not wait. The next time, servers are asked again.
func (r *starter) leave(ctx context.Context, build types.NamespacedName) {
	r.git.Forget(build)
	r.pushes.Forget(build)
	r.queue.Leave(ctx, build)
}

// forget a build that is gone.
func (r *starter) forget(ctx context.Context, build types.NamespacedName) {
	r.waits.Forget(build)
	r.leave(ctx, build)
}

// found is what the API server has of the objects that a run needs.
type found struct {
	source  *corev1.Secret
	keys    map[string][]string
	secrets map[string]*corev1.Secret
	// problem lists all that is missing or unfit, nil for nothing.
	problem error
}

// find the objects in the build's namespace, and read the login of its source.
func (r *starter) find(ctx context.Context, build *api.AgentBuild, wanted []compose.Need) (found, error) {
	out := found{keys: map[string][]string{}, secrets: map[string]*corev1.Secret{}}
	var missing []error
	for _, w := range wanted {
		key := types.NamespacedName{Namespace: build.Namespace, Name: w.Name}
		var err error
		switch w.Kind {
		case "Secret":
			var secret corev1.Secret
			if err = r.live.Get(ctx, key, &secret); err != nil {
				break
			}
			if !w.Purpose.Fits(secret.Type, secret.Labels) {
				missing = append(missing, w.Unfit(string(secret.Type)))
				break
			}
			out.secrets[w.Name], out.keys[w.Name] = &secret, nil
			for name := range secret.Data {
				out.keys[w.Name] = append(out.keys[w.Name], name)
			}
			if w.Purpose == compose.PurposeGit {
				out.source = &secret
			}
			for _, address := range w.Addresses {
				if _, unfit := gitremote.Take(&secret, address, r.settings.PlainHTTPHosts); unfit != nil {
					missing = append(missing, w.Place.Fault(api.ReasonSecretPurpose, unfit.Message, unfit.Hint))
				}
			}
		case "ConfigMap":
			r.library.Note(client.ObjectKeyFromObject(build), w.Name)
			err = r.cache.Get(ctx, key, metadataOf("v1", "ConfigMap"))
		case "ServiceAccount", "PersistentVolumeClaim":
			err = r.live.Get(ctx, key, metadataOf("v1", w.Kind))
		}
		switch {
		case apierrors.IsNotFound(err):
			missing = append(missing, w.Missing(build.Namespace))
		case err != nil:
			return out, fmt.Errorf("looking for %s %s: %w", w.Kind, key, err)
		}
	}
	out.problem = findings.Join(missing...)
	return out, nil
}

func metadataOf(apiVersion, kind string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: kind}}
}

// resolve returns the commit of a run, which all policies for it accept.
func (r *starter) resolve(
	ctx context.Context, s *seen, out compose.Resolved, has found,
) (compose.Resolved, error) {
	out.SecretKeys = has.keys
	policies := git.Policies(s.build, r.library.Namespace, s.template.VerifySource)
	for _, p := range policies {
		r.library.Note(client.ObjectKeyFromObject(s.build), p.Key.Name)
	}
	policies, err := git.ReadPolicies(ctx, r.live, s.build, policies)
	if err != nil || out.Commit != "" && len(policies) == 0 {
		return out, err
	}
	q := git.Question{
		Repository: compose.Repository(s.build, s.template), Revision: compose.Revision(s.build, s.template),
		Commit: out.Commit, Policies: policies,
	}
	manual := out.Trigger == api.TriggerManual
	if manual {
		q.Rerun = s.want.Rerun
	}
	// A build that waits in the queue asks once, while its inputs and the policies stay as they are.
	answer, err := r.git.Resolve(s.build, q, has.source, s.want)
	if err != nil {
		return out, err
	}
	if out.Commit == "" {
		if out.Commit = answer.SHA; answer.Branch != "" {
			out.Ref = "refs/heads/" + answer.Branch
		}
		if manual && s.knownCommit() != answer.SHA {
			out.Trigger = api.TriggerCommit
		}
	}
	out.Verified = answer.Verified
	return out, nil
}
