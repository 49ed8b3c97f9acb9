package controller

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render/oci"
	"github.com/armature-dev/armature/render/sign"
)

// A run of an attested mode that succeeded is not the end: the controller looks at
// all that the run left, asks the registry what is under the image's name, signs the
// image, its bill of materials and its provenance as the platform, and
// only then is the build Ready. Registries are strangers like Git servers, so that this happens in a
// queue of its own, and no reconcile waits for it.
//
// Nothing is remembered between the end of a run and status.attestation. Whoever is
// killed in between begins again: what is there already stays, and the same run has
// the same statement and the same signature, which an ECDSA key at hand makes again and
// which is kept with the run for others.

const (
	// attestTimeout bounds one attempt: three or four signatures of an image, as many for
	// each of its platforms, and the reading around them. What an attempt has attached, the next one
	// finds.
	attestTimeout = 3 * time.Minute
	// attestRunning and attestRunningOfOne bound the attempts at once: of all, and of one
	// namespace. One with a bill of materials of maxSBOM takes about 100 MiB of memory.
	attestRunning, attestRunningOfOne = 6, 2
	// maxChildren of a run that are looked at.
	maxChildren = 128
)

// pledged reports whether a run is of an attested mode: the controller attests it
// before its image counts.
func pledged(r run) bool { return r.Annotations[keys.AnnotationRunDigest] != "" }

// concluded reports whether status has the end of a run, and how it ended.
func concluded(s *seen, r run) (api.Phase, bool) {
	status := s.build.Status
	if status.PipelineRunUID != r.UID || status.CompletionTime == nil {
		return "", false
	}
	return status.LastRunPhase, status.LastRunPhase != ""
}

// refused reports whether a run succeeded and was not attested for good.
func refused(s *seen, r run) bool {
	phase, is := concluded(s, r)
	return is && r.succeeded() && pledged(r) && phase == api.PhaseFailed
}

// setAttested writes the condition Attested of an attested mode's run; runs of other
// modes have none.
func setAttested(v verdict, reason string, status *api.AgentBuildStatus, set func(kind string, state metav1.ConditionStatus, reason, message string)) {
	run, a := *v.current, status.Attestation
	switch {
	case !pledged(run):
		meta.RemoveStatusCondition(&status.Conditions, api.ConditionAttested)
	case v.refused:
		set(api.ConditionAttested, metav1.ConditionFalse, reason, v.message)
	case a != nil && a.RunUID == run.UID && a.Signature == "":
		set(api.ConditionAttested, metav1.ConditionTrue, api.ReasonAttested, fmt.Sprintf("the provenance by %s is signed by Tekton Chains", a.BuilderID))
	case a != nil && a.RunUID == run.UID:
		set(api.ConditionAttested, metav1.ConditionTrue, api.ReasonAttested, fmt.Sprintf("%s by %s are signed%s", signedThings(a), a.BuilderID, judged(a.Policy)))
	case v.attest, !run.succeeded():
		set(api.ConditionAttested, metav1.ConditionUnknown, reason, status.Message)
	}
}

func signedThings(a *api.Attestation) string {
	if len(a.Platforms) > 0 {
		bills := ""
		if a.SBOM != "" || slices.ContainsFunc(a.Platforms, func(p api.PlatformAttestation) bool { return p.SBOMDigest != "" }) {
			bills = ", their SBOMs"
		}
		return fmt.Sprintf("the index, the images of %d platforms%s and their provenance", len(a.Platforms), bills)
	}
	if a.SBOM == "" {
		return "the image and its provenance"
	}
	return "the image, its SBOM and its provenance"
}

// judged says what the platform's policy thinks of an image.
func judged(v *api.PolicyVerdict) string {
	switch {
	case v == nil:
		return ""
	case v.Refusal != "":
		return fmt.Sprintf("; the policy %s refuses the image: %s", v.Policy, v.Refusal)
	}
	return fmt.Sprintf("; the policy %s accepts the image", v.Policy)
}

// attest a run, or look what came of it.
func (r *Reconciler) attest(s *seen, v verdict) outcome {
	build, run := client.ObjectKeyFromObject(s.build), *v.current
	answer, err := r.attests.get(build, string(run.UID), false, func(ctx context.Context) (api.Attestation, error) {
		return r.vouch(ctx, build, s.build.UID, run.Name, run.UID)
	})
	var later *notYet
	var problem *krm.Finding
	switch {
	case errors.As(err, &later):
		return outcome{again: later.again, retried: later.cause, retrying: lastAttempt(s.build.Status, run.UID)}
	case errors.As(err, &problem):
		return outcome{refused: problem}
	}
	return outcome{attested: &answer}
}

// lastAttempt is what status says of an earlier attempt to attest a run, nil for nothing.
func lastAttempt(status api.AgentBuildStatus, run types.UID) *metav1.Condition {
	c := meta.FindStatusCondition(status.Conditions, api.ConditionAttested)
	if c == nil || status.PipelineRunUID != run || c.Status != metav1.ConditionUnknown || c.Reason != api.ReasonRetrying && c.Reason != api.ReasonChainsNotSigned {
		return nil
	}
	return c
}

// vouch for a run: gather, check, sign. A *krm.Finding is final for this run;
// every other error may pass.
func (r *Reconciler) vouch(ctx context.Context, key types.NamespacedName, build types.UID, runName string, uid types.UID) (api.Attestation, error) {
	var none api.Attestation
	observed, err := r.observeRun(ctx, key, build, types.NamespacedName{Namespace: key.Namespace, Name: runName}, uid)
	if err != nil {
		return none, err
	}
	built, err := attest.Check(*observed)
	if err != nil {
		return none, err
	}
	if r.ChainsKey != "" {
		return r.awaitChains(ctx, observed, built)
	}
	to, problem, err := r.signer(ctx, observed.Build)
	if err != nil {
		return none, err
	}
	if problem != nil {
		return none, errors.New(problem.Error()) // the platform can still give one
	}
	if to.Keychain, err = r.registryLogin(ctx, observed.Build); err != nil {
		return none, err
	}
	to.Transport, to.Keep = oci.TransportTo(r.git.dial), r.keepOn(observed.Run)
	policy, err := r.summaryPolicy(ctx, to)
	if err != nil {
		return none, err
	}
	artifact, err := r.inRegistry(ctx, observed.Build, built, to)
	if err != nil {
		return none, err
	}
	parts, err := r.partsInRegistry(ctx, observed.Build, built, artifact, to)
	if err != nil {
		return none, err
	}
	for _, b := range built.Bills { // all of them are right before anything is signed
		if _, err := r.readBill(ctx, observed.Build, built, b, artifact, to); err != nil {
			return none, err
		}
	}
	session, err := r.open(ctx, to)
	if err != nil {
		return none, r.signingFault(ctx, observed.Build, artifact, err)
	}
	bills := map[string]string{} // digests of documents by that of the image
	for _, b := range built.Bills {
		read, err := r.readBill(ctx, observed.Build, built, b, artifact, to)
		if err != nil {
			return none, err
		}
		if err := session.Attest(ctx, read.of, read.kind, read.document); err != nil {
			return none, r.signingFault(ctx, observed.Build, artifact, err)
		}
		bills[read.of.DigestStr()] = b.Digest
	}
	// An index is the last, so that who finds it signed finds its images signed. Each has a
	// statement of its own, as what looks at one image by digest expects.
	for _, image := range append(parts, artifact) {
		if err := session.Sign(ctx, image); err != nil {
			return none, r.signingFault(ctx, observed.Build, artifact, err)
		}
		if err := session.Attest(ctx, image, sign.PredicateType, built.Provenance); err != nil {
			return none, r.signingFault(ctx, observed.Build, artifact, err)
		}
	}
	var verdict *api.PolicyVerdict
	for _, image := range append(parts, artifact) {
		if verdict, err = r.summarize(ctx, observed.Build, session, image, policy); err != nil {
			return none, err
		}
		if verdict != nil && verdict.Refusal != "" {
			break
		}
	}
	by, err := session.By(ctx)
	if err != nil {
		return none, r.signingFault(ctx, observed.Build, artifact, err)
	}
	out, err := attestation(uid, built, artifact, bills, by)
	out.Policy = verdict
	return out, err
}

// attestation is what status says of what was signed. bills are the digests of the bills of
// materials by those of the images that they describe.
func attestation(run types.UID, built *attest.Built, artifact name.Digest, bills map[string]string, by sign.SignedBy) (api.Attestation, error) {
	text, err := json.Marshal(built.Provenance)
	if err != nil {
		return api.Attestation{}, fmt.Errorf("marshalling a provenance: %w", err)
	}
	out := attestedProvenance(run, built, artifact, text)
	out.Signature = attachedTag(artifact) + ".sig"
	out.Signer = &api.AttestationSigner{PublicKey: by.PublicKey, Identity: by.Identity, Issuer: by.Issuer}
	for i := range out.Platforms {
		out.Platforms[i].SBOMDigest = bills[out.Platforms[i].Digest]
	}
	for of, digest := range bills {
		if len(bills) == 1 {
			out.SBOM, out.SBOMDigest = attachedTag(artifact.Context().Digest(of))+".att", digest
		}
	}
	return out, nil
}

// attestedProvenance is what status says where the provenance is attested, whose text is
// given.
func attestedProvenance(run types.UID, built *attest.Built, artifact name.Digest, text []byte) api.Attestation {
	sum := sha256.Sum256(text)
	out := api.Attestation{
		RunUID: run, Image: built.Image + "@" + built.Digest, BuilderID: built.Provenance.RunDetails.Builder.ID, Level: attest.Level,
		Provenance: attachedTag(artifact) + ".att", ProvenanceDigest: "sha256:" + hex.EncodeToString(sum[:]),
	}
	for _, p := range built.Platforms {
		out.Platforms = append(out.Platforms, api.PlatformAttestation{Platform: p.Platform, Digest: p.Digest})
	}
	return out
}

// attachedTag is where cosign's tag format has what is attached to an image, less the
// suffix .sig or .att.
func attachedTag(d name.Digest) string {
	return d.Context().Name() + ":" + strings.Replace(d.DigestStr(), ":", "-", 1)
}

// observeRun reads from the API server what concerns a run.
func (r *Reconciler) observeRun(ctx context.Context, key types.NamespacedName, uid types.UID, runKey types.NamespacedName, runUID types.UID) (*attest.Observed, error) {
	build := &api.AgentBuild{}
	if err := r.Live.Get(ctx, key, build); err != nil || build.UID != uid {
		return nil, fmt.Errorf("reading AgentBuild %s: %w", key, cmp.Or(err, errors.New("it is another one now")))
	}
	foreign := func(message string) error {
		return place(build).Fault(api.ReasonRunForeign, message, "start again with `armature build rerun`")
	}
	run, err := r.wholeRun(ctx, runKey)
	if apierrors.IsNotFound(err) {
		return nil, foreign(fmt.Sprintf("run %s was deleted before it was attested", runKey.Name))
	} else if err != nil {
		return nil, err
	}
	if run.UID != runUID || !r.proven(run, uid) {
		return nil, foreign(fmt.Sprintf("somebody else changed run %s, so its result does not count", run.Name))
	}
	o := &attest.Observed{Build: build, RunUID: runUID, Run: run, Pods: map[types.UID]*corev1.Pod{}}
	if ref := run.Spec.PipelineRef; ref != nil && run.Spec.PipelineSpec == nil {
		if o.Pipeline, err = r.pipelineOf(ctx, run.Namespace, ref.Name); err != nil {
			return nil, err
		}
	}
	if len(run.Status.ChildReferences) > maxChildren {
		return nil, foreign(fmt.Sprintf("run %s has %d children, and at most %d are looked at", run.Name, len(run.Status.ChildReferences), maxChildren))
	}
	for _, child := range run.Status.ChildReferences {
		if child.Kind != "TaskRun" {
			return nil, foreign(fmt.Sprintf("run %s has a child of kind %s", run.Name, child.Kind))
		}
		task := &tektonv1.TaskRun{}
		err := r.Live.Get(ctx, types.NamespacedName{Namespace: run.Namespace, Name: child.Name}, task)
		if apierrors.IsNotFound(err) {
			return nil, foreign(fmt.Sprintf("TaskRun %s of run %s was deleted before it was attested", child.Name, run.Name))
		} else if err != nil {
			return nil, fmt.Errorf("reading TaskRun %s: %w", child.Name, err)
		}
		o.TaskRuns = append(o.TaskRuns, task)
		if task.Status.PodName == "" {
			continue // which the check refuses
		}
		pod := &corev1.Pod{}
		err = r.Live.Get(ctx, types.NamespacedName{Namespace: run.Namespace, Name: task.Status.PodName}, pod)
		if err == nil {
			o.Pods[task.UID] = pod
		} else if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("reading pod %s: %w", task.Status.PodName, err)
		}
	}
	return o, nil
}

// pipelineOf a run, nil where it is gone.
func (r *Reconciler) pipelineOf(ctx context.Context, namespace, name string) (*tektonv1.PipelineSpec, error) {
	data, err := r.Runs.Get().Namespace(namespace).Resource("pipelines").Name(name).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	p := &tektonv1.Pipeline{}
	if err == nil {
		err = json.Unmarshal(data, p)
	}
	if err != nil {
		return nil, fmt.Errorf("reading Pipeline %s: %w", name, err)
	}
	return &p.Spec, nil
}

// attestable looks before a run whether it could be attested. The problem is that the
// platform has not given the key for it.
func (r *Reconciler) attestable(ctx context.Context, build *api.AgentBuild) (problem *krm.Finding, err error) {
	if r.ChainsKey != "" {
		_, problem, err = r.chainsKey(ctx, build)
	} else {
		_, problem, err = r.signer(ctx, build)
	}
	return problem, err
}

// inRegistry finds the image under the name that was ordered: exactly the digest that
// the build reported.
func (r *Reconciler) inRegistry(ctx context.Context, build *api.AgentBuild, built *attest.Built, to sign.Signer) (name.Digest, error) {
	mismatch := func(format string, args ...any) error {
		return place(build).At("spec.buildOutput").Fault(api.ReasonImageMismatch, fmt.Sprintf(format, args...),
			"look who else pushes to this tag, give each build a tag of its own, then start again with `armature build rerun`")
	}
	var options []name.Option
	tag, err := name.NewTag(built.Image)
	if err == nil && r.plainHTTP(tag.RegistryStr()) {
		options = append(options, name.Insecure)
		tag, err = name.NewTag(built.Image, options...)
	}
	if err != nil {
		return name.Digest{}, mismatch("%s is not an image with a tag", built.Image)
	}
	reach := oci.Options{Keychain: to.Keychain}
	found, err := remote.Head(tag, append(reach.Remote(ctx), remote.WithTransport(to.Transport))...)
	if answer := (*transport.Error)(nil); errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound {
		return name.Digest{}, mismatch("the registry has no image %s, and the run reported %s", tag, built.Digest)
	}
	if err != nil {
		return name.Digest{}, registryFault(build, tag, err)
	}
	if found.Digest.String() != built.Digest || !(found.MediaType.IsImage() || found.MediaType.IsIndex()) {
		return name.Digest{}, mismatch("%s is %s (%s) in the registry, and the run built %s", tag, found.Digest, found.MediaType, built.Digest)
	}
	return tag.Context().Digest(built.Digest), nil
}

// partsInRegistry are the images of an index, nil for one image: exactly those that the
// run reported, each for its platform.
func (r *Reconciler) partsInRegistry(ctx context.Context, build *api.AgentBuild, built *attest.Built, artifact name.Digest, to sign.Signer) (parts []name.Digest, _ error) {
	if len(built.Platforms) == 0 {
		return nil, nil
	}
	reach := oci.Options{Keychain: to.Keychain}
	listed, err := images(artifact, append(reach.Remote(ctx), remote.WithTransport(sign.Bounded(to.Transport))))
	if err != nil {
		return nil, registryFault(build, artifact, err)
	}
	same := slices.EqualFunc(listed, built.Platforms, func(d v1.Descriptor, p api.PlatformStatus) bool {
		return d.Platform != nil && d.Platform.String() == p.Platform && d.Digest.String() == p.Digest
	})
	if !same {
		return nil, place(build).At("spec.platforms").Fault(api.ReasonImageMismatch,
			fmt.Sprintf("%s does not list the images of %s that the run reported, and those alone", artifact, strings.Join(build.Spec.Platforms, ", ")),
			"look who changed the step that pushes, then start again with `armature build rerun`")
	}
	for _, p := range built.Platforms {
		parts = append(parts, artifact.Context().Digest(p.Digest))
	}
	return parts, nil
}

func (r *Reconciler) plainHTTP(registry string) bool {
	host, _, _ := strings.Cut(registry, ":")
	return slices.Contains(r.Settings.PlainHTTPHosts, registry) || slices.Contains(r.Settings.PlainHTTPHosts, host)
}

// registryFault says what a registry answered, without its text: the tenant chose the
// server, and what it says may be another's. An address that may not be asked is final.
func registryFault(build *api.AgentBuild, ref name.Reference, err error) error {
	if errors.Is(err, ErrForbiddenAddress) {
		return place(build).At("spec.buildOutput.imageRegistry").Fault(api.ReasonRegistryRefused,
			ref.Context().RegistryStr()+" has an address that builds may not ask",
			"use another registry, or let the operator allow the network in --git-allow-network of the controller")
	}
	answer := (*transport.Error)(nil)
	if !errors.As(err, &answer) {
		return fmt.Errorf("asking the registry of %s: %w", ref, err)
	}
	switch answer.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("the registry of %s answers %d: the login in spec.buildOutput.imageRepoCredentials has to be one that may push and pull", ref, answer.StatusCode)
	}
	return fmt.Errorf("the registry of %s answers %d %s", ref, answer.StatusCode, http.StatusText(answer.StatusCode))
}
