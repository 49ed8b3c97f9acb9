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
	"github.com/armature-dev/armature/render/process"
)

// starter composes runs and creates them.
type starter struct {
	settings compose.Settings
	verdicts *compose.Verdicts
	client   client.Client // reads from the cache
	live     client.Reader
	runs     *runs.Store
	library  *library.Library
	git      *git.Resolver
	pushes   *registry.Pushes
	attester *attester.Attester
	queue    *queue.Queue
	kueue    *queue.Kueue // nil if Kueue does not admit runs
	metrics  *recorder
}

// start starts a run: it composes the run, checks that the objects it needs exist, resolves the
// commit, waits for a slot, applies the objects that the run refers to, and creates it. Findings
// are what a user must fix; a retry may resolve other errors.
func (r *starter) start(ctx context.Context, s *observation, in *compose.Input) (result, error) {
	in.Settings, in.Platform, in.Verdicts = r.settings, r.library.Namespace, r.verdicts
	if revision := compose.Revision(s.build, s.Template); in.Commit == "" && api.IsCommit(revision) {
		in.Commit = revision
	}
	out, problem := compose.Pipeline(*in)
	if problem != nil {
		return result{}, problem
	}
	secrets, missing, err := r.find(ctx, s.build, out.Needs)
	if err != nil {
		return result{}, err
	}
	if err := r.checkAccount(ctx, s.build, out.Run.Spec.TaskRunTemplate.ServiceAccountName); err != nil {
		return result{}, err
	}
	if err := r.checkAttester(ctx, s, missing); err != nil {
		return result{}, err
	}
	known, err := r.resolve(ctx, s, in.Resolved, secrets)
	if err != nil {
		return result{}, err
	}
	if err := out.Resolve(known); err != nil {
		return result{}, err
	}
	if err := r.pushes.Check(s.build, s.want); err != nil {
		return result{}, err
	}
	admit := r.queue.Join
	if r.kueue != nil {
		admit = r.kueue.Admit
	}
	if message, err := admit(ctx, s.build, out); message != "" || err != nil {
		return result{queued: message, run: out.Run.Name}, err
	}
	for _, o := range out.Apply {
		if err := r.apply(ctx, s.build, o); err != nil {
			return result{}, err
		}
	}
	for _, w := range out.Warnings {
		log.FromContext(ctx).Info("a build will not do all that it says", "warning", w)
	}
	return r.create(ctx, s, in, out, secrets)
}

// checkAccount returns a finding for the build of a fork whose ServiceAccount has Secrets: Tekton
// mounts the logins among them into every step.
func (r *starter) checkAccount(ctx context.Context, build *api.AgentBuild, name string) error {
	if p := build.Spec.Source.PullRequest; p == nil || !p.Fork || name == compose.BuildAccount {
		return nil
	}
	key := types.NamespacedName{Namespace: build.Namespace, Name: cmp.Or(name, "default")}
	var account corev1.ServiceAccount
	switch err := r.live.Get(ctx, key, &account); {
	case apierrors.IsNotFound(err): // find reports it, or it is created without Secrets.
		return nil
	case err != nil:
		return fmt.Errorf("looking for ServiceAccount %s: %w", key, err)
	case len(account.Secrets) == 0:
		return nil
	}
	return compose.Place(build).At("spec.source.pullRequest.fork").Fault(api.ReasonForkRestricted,
		fmt.Sprintf("the commit is of another repository, and ServiceAccount %s has the Secret "+
			"%s, which Tekton could mount into its steps", key, account.Secrets[0].Name),
		"remove what its field secrets lists, and let the builds that need those name an account "+
			"of their own in spec.serviceAccountName")
}

// checkAttester adds a finding to missing if the platform could not attest the run.
func (r *starter) checkAttester(ctx context.Context, s *observation, missing error) error {
	if compose.Attests(s.build, s.Template) {
		err := r.attester.Ready(ctx, s.build)
		if errors.As(err, new(*finding.Finding)) {
			missing = findings.Join(missing, err)
		} else if err != nil {
			return err
		}
	}
	return missing
}

// create creates the run once. An isolated run gets copies of the Secrets that it reads.
func (r *starter) create(ctx context.Context, s *observation, in *compose.Input,
	out *compose.Output, secrets map[string]*corev1.Secret) (result, error) {
	span := r.metrics.startSpan(s, in.Trigger, out.Run)
	uid, err := r.runs.Create(ctx, out)
	var have *runs.Run
	switch {
	case apierrors.IsAlreadyExists(err):
		if have, err = r.runs.Existing(ctx, s.build, out.Run); err != nil {
			return result{}, err
		}
		if have == nil {
			return result{}, compose.Place(s.build).Fault(api.ReasonRunForeign,
				fmt.Sprintf("a PipelineRun %s exists that is not this build's", out.Run.Name),
				"delete it, if nothing needs it; the build then continues by itself")
		}
		uid = have.UID
	case denied(err):
		return result{}, r.refused(s.build, err)
	case err != nil:
		return result{}, fmt.Errorf("creating run %s: %w", out.Run.Name, err)
	}
	if have == nil || have.Held() {
		if message, err := r.release(ctx, s.build, out, uid, secrets); message != "" || err != nil {
			return result{queued: message, run: out.Run.Name, again: wait.Jitter(queue.Tick, 1)}, err
		}
	}
	if have != nil {
		_, err := r.runs.Move(ctx, s.build)
		return result{created: true, again: firstRecheck}, err // Its event may not arrive.
	}
	r.metrics.created(s.build, in.Trigger, time.Now())
	span.End(time.Now(), false)
	return result{created: true}, nil
}

// release lets a held run begin. A message says that it waits for runs of other shards.
func (r *starter) release(ctx context.Context, build *api.AgentBuild, out *compose.Output,
	uid types.UID, secrets map[string]*corev1.Secret) (message string, _ error) {
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
		secret := &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			Immutable: new(true), Data: maps.Clone(secrets[c.From].Data)}
		maps.DeleteFunc(secret.Data, func(key string, _ []byte) bool {
			return !slices.Contains(c.Keys, key)
		})
		secret.Name = c.To
		secret.Labels = map[string]string{compose.LabelManagedBy: compose.ManagedBy,
			keys.LabelInstance: out.Run.Labels[keys.LabelInstance]}
		owned = append(owned, secret)
		log.FromContext(ctx).Info("a run gets a copy of a Secret", "run", out.Run.Name, "secret",
			c.From, "resourceVersion", secrets[c.From].ResourceVersion)
	}
	if out.Run.Spec.PipelineRef != nil {
		owned = append(owned, out.Pipeline.DeepCopy())
	}
	err := r.runs.Release(ctx, client.ObjectKeyFromObject(out.Run), uid, owned...)
	if err == nil {
		return "", nil
	}
	// The next attempt starts over, unless another controller has released the run meanwhile. Sweep
	// deletes what a failure here leaves.
	if have, failed := r.runs.Existing(ctx, build, out.Run); failed == nil && have != nil &&
		have.UID == uid {
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

// denied reports whether the API server refused for good, with a 4xx that does not ask for a retry.
func denied(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= 400 && code < 500 && !slices.Contains([]int32{http.StatusConflict,
		http.StatusTooManyRequests, http.StatusRequestTimeout, http.StatusUnauthorized}, code)
}

// refused returns a finding with the API server's message.
func (r *starter) refused(build *api.AgentBuild, refusal error) error {
	r.metrics.denied(build)
	return compose.Place(build).Fault(api.ReasonRunDenied,
		"the API server refuses the run: "+refusal.Error(),
		"change the build or the policy; it is tried again by itself")
}

// apply applies a Pipeline, a volume or a ServiceAccount. It returns a finding if another volume
// has the name, or the API server refuses the object.
func (r *starter) apply(ctx context.Context, build *api.AgentBuild, o compose.Object) error {
	if claim, is := o.(*corev1.PersistentVolumeClaim); is {
		if err := r.checkClaim(ctx, build, claim); err != nil {
			return err
		}
	}
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return fmt.Errorf("converting %T: %w", o, err)
	}
	delete(raw, "status")
	objects := ssa.NewResourceManager(r.client, nil,
		ssa.Owner{Field: fieldOwner, Group: keys.Group})
	_, err = objects.Apply(ctx, &unstructured.Unstructured{Object: raw}, ssa.DefaultApplyOptions())
	if err == nil {
		return nil
	}
	err = fmt.Errorf("applying %s %s: %w", o.GetObjectKind().GroupVersionKind().Kind, o.GetName(), err)
	if denied(err) {
		return r.refused(build, err)
	}
	return err
}

// checkClaim returns a finding if the build's volume would replace an existing volume of the same
// name, which would then be deleted with the build.
func (r *starter) checkClaim(ctx context.Context, build *api.AgentBuild,
	claim *corev1.PersistentVolumeClaim) error {
	have := process.MetadataOf("v1", "PersistentVolumeClaim")
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

// firstRecheck and lastRecheck are the first and the longest wait until a refused or incomplete
// build is reconciled again: Secrets and quotas change without an event.
const (
	firstRecheck = 10 * time.Second
	lastRecheck  = 10 * time.Minute
)

// find returns the Secrets in the build's namespace that a run needs. The problem lists all that is
// missing or unfit.
func (r *starter) find(
	ctx context.Context, build *api.AgentBuild, wanted []compose.Need,
) (secrets map[string]*corev1.Secret, problem, _ error) {
	secrets = map[string]*corev1.Secret{}
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
			secrets[w.Name] = &secret
			for _, address := range w.Addresses {
				if _, unfit := gitremote.Take(&secret, address,
					r.settings.PlainHTTPHosts); unfit != nil {
					missing = append(missing,
						w.Place.Fault(api.ReasonSecretPurpose, unfit.Message, unfit.Hint))
				}
			}
		case "ConfigMap":
			r.library.Note(client.ObjectKeyFromObject(build), w.Name)
			err = r.client.Get(ctx, key, process.MetadataOf("v1", "ConfigMap"))
		case "ServiceAccount", "PersistentVolumeClaim":
			err = r.live.Get(ctx, key, process.MetadataOf("v1", w.Kind))
		}
		switch {
		case apierrors.IsNotFound(err):
			missing = append(missing, w.Missing(build.Namespace))
		case err != nil:
			return nil, nil, fmt.Errorf("looking for %s %s: %w", w.Kind, key, err)
		}
	}
	return secrets, findings.Join(missing...), nil
}

// resolve returns the commit of a run, which all policies for it accept.
func (r *starter) resolve(
	ctx context.Context, s *observation, out compose.Resolved, secrets map[string]*corev1.Secret,
) (compose.Resolved, error) {
	out.SecretKeys = map[string][]string{}
	for name, secret := range secrets {
		out.SecretKeys[name] = slices.Collect(maps.Keys(secret.Data))
	}
	var login *corev1.Secret
	if c := s.build.Spec.Source.SourceCredentials; c != nil {
		login = secrets[c.Name]
	}
	policies := git.Policies(s.build, r.library.Namespace, s.Template.VerifySource)
	for _, p := range policies {
		r.library.Note(client.ObjectKeyFromObject(s.build), p.Key.Name)
	}
	policies, err := git.ReadPolicies(ctx, r.live, s.build, policies)
	if err != nil || out.Commit != "" && len(policies) == 0 {
		return out, err
	}
	q := git.Question{
		Repository: compose.Repository(s.build, s.Template),
		Revision:   compose.Revision(s.build, s.Template), Commit: out.Commit, Policies: policies,
	}
	manual := out.Trigger == api.TriggerManual
	if manual {
		q.Rerun = s.want.Rerun
	}
	// A build that waits in the queue asks once for the same inputs and policies.
	answer, err := r.git.Resolve(s.build, q, login, s.want)
	if err != nil {
		return out, err
	}
	if out.Commit == "" {
		if out.Commit = answer.SHA; answer.Branch != "" {
			out.Ref = "refs/heads/" + answer.Branch
		}
		if manual && knownCommit(s) != answer.SHA {
			out.Trigger = api.TriggerCommit
		}
	}
	out.Verified = answer.Verified
	return out, nil
}
