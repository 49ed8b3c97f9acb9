// Package attester attests the images of runs of attested modes. A build is Ready only after the
// attester has verified the objects of its run that succeeded, compared them with the registry, and
// signed the image, its bill of materials and its provenance as the platform. Registries are not
// trusted, so this happens in a separate queue, and no reconcile waits for it.
//
// No state is stored between the end of a run and status.attestation. A controller that is killed
// in between begins again: signatures that are already attached stay, and the same run has the same
// statement and the same signature. A local ECDSA key produces the same signature again; other
// signatures are kept with the run.
package attester

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/controller/runs"
	"github.com/armature-dev/armature/builds/registry"
	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render/deliver/oci"
	"github.com/armature-dev/armature/render/deliver/sign"
	"github.com/armature-dev/armature/render/process/managers"
)

// Options select the signing key or identity.
type Options struct {
	// Key names the Secret in the controller's namespace with the signing key in cosign's format,
	// or a key of a KMS whose program is on the PATH (sign.KMSProgram): awskms:///alias/attest.
	// Empty means the Secret armature-attest-key.
	Key string
	// Keyless signs with the identity of the controller instead of a key if Fulcio is set.
	Keyless Keyless
	// SummaryPolicy names the ConfigMap in the controller's namespace with the VerifyPolicy for
	// verification summaries of attested images; empty means that there are no summaries.
	SummaryPolicy string
	// Observe is called at the end of each attempt; it may be nil.
	Observe managers.Observe
}

// Keyless configures signing with the identity of the controller's workload. All fields are
// required.
type Keyless struct {
	// Token is a file with an OpenID token for the audience sigstore. It is read for each run and
	// may be replaced at any time.
	Token string
	// TrustedRoot is a file with a trusted root of Sigstore in JSON, which contains the authorities
	// at Fulcio and Timestamps. It is read for each run.
	TrustedRoot string
	// Fulcio is the URL that issues certificates to the identity. Timestamps is the URL (RFC 3161)
	// that confirms the validity of the certificate at the time of a signature.
	Fulcio, Timestamps string
}

// DefaultKey is the Secret with the signing key if Options name none.
const DefaultKey = "armature-attest-key"

const (
	// timeout bounds one attempt: three or four signatures of an image, as many for each of its
	// platforms, and the requests around them. The next attempt finds the attached signatures.
	timeout = 3 * time.Minute
	// workers attest concurrently, and at most workersOfOne of them for one namespace. A run with a
	// bill of materials of maxSBOM bytes takes about 100 MiB of memory.
	workers, workersOfOne = 6, 2
	// answerKeeps is how long an answer is kept for a reconcile whose status was not written.
	answerKeeps = 2 * time.Second
)

// Attester attests runs.
type Attester struct {
	options   Options
	namespace string // of the controller
	plainHTTP []string
	live      client.Reader // of the API server
	runs      *runs.Store
	transport http.RoundTripper // to registries
	questions *managers.Questions[api.Attestation]
	kms       atomic.Pointer[sign.KMSKey] // nil until it signs, and after it failed
	opening   sync.Mutex                  // guards opened
	opened    *sign.OpenedKey             // the key of the Secret, nil until it signs
}

// New returns an attester that works until ctx ends, and calls wake with each build whose attempt
// has ended. plainHTTP lists hosts of registries without TLS.
func New(ctx context.Context, o Options, namespace string, plainHTTP []string, store *runs.Store,
	dial gitremote.Dial, wake func(types.NamespacedName)) *Attester {
	o.Key = cmp.Or(o.Key, DefaultKey)
	return &Attester{options: o, namespace: namespace, plainHTTP: plainHTTP, live: store.Live,
		runs: store, transport: oci.TransportTo(dial),
		questions: managers.NewQuestions[api.Attestation](ctx, managers.QuestionOptions{
			Name: "attest", Workers: workers, MostOfOne: workersOfOne, Timeout: timeout,
			Shared: answerKeeps, Wake: wake, Observe: o.Observe,
		})}
}

// Forget drops the attempts for a build that was deleted.
func (a *Attester) Forget(build types.NamespacedName) { a.questions.Forget(build) }

// Ready reports, as a nil error, that a run could be attested. A *finding.Finding means that the
// platform has not configured the signing key or identity.
func (a *Attester) Ready(ctx context.Context, build *api.AgentBuild) error {
	_, err := a.signer(ctx, build)
	return err
}

// Attest starts to attest a run that succeeded, or returns the outcome. A *finding.Finding is final
// for this run; a *managers.NotYet is not.
func (a *Attester) Attest(build *api.AgentBuild, run *runs.Run) (api.Attestation, error) {
	key, uid := client.ObjectKeyFromObject(build), build.UID
	// A waiting question keeps only these in memory.
	runKey, runUID := client.ObjectKeyFromObject(run), run.UID
	answer, err := a.questions.Get(key, string(runUID), nil,
		func(ctx context.Context) (api.Attestation, error) {
			return a.attempt(ctx, key, uid, runKey, runUID)
		})
	if !errors.As(err, new(*managers.NotYet)) {
		a.questions.Forget(key)
	}
	return answer, err
}

// attempt reads, checks and signs a run. A *finding.Finding is final for this run; every other
// error is temporary.
func (a *Attester) attempt(ctx context.Context, key types.NamespacedName, build types.UID,
	run types.NamespacedName, uid types.UID) (none api.Attestation, _ error) {
	observed, err := a.observe(ctx, key, build, run, uid)
	if err != nil {
		return none, err
	}
	built, err := attest.Check(*observed)
	if err != nil {
		return none, err
	}
	to, err := a.signer(ctx, observed.Build)
	if errors.As(err, new(*finding.Finding)) {
		return none, errors.New(err.Error()) // not final: the platform can still configure one
	} else if err != nil {
		return none, err
	}
	if to.Keychain, err = registry.Login(ctx, a.live, observed.Build); err != nil {
		return none, err
	}
	to.Transport, to.Keep = a.transport, a.keepOn(observed.Run)
	policy, err := a.summaryPolicy(ctx, to)
	if err != nil {
		return none, err
	}
	pushed, err := a.findImages(ctx, observed.Build, built, to.Keychain)
	if err != nil {
		return none, err
	}
	return a.sign(ctx, pushed, uid, to, policy)
}

// sign signs the images of a run and attaches summaries by the policy, which may be nil.
func (a *Attester) sign(ctx context.Context, p *pushed, run types.UID, to sign.Signer,
	policy *sign.Policy) (none api.Attestation, _ error) {
	for _, b := range p.built.Bills { // verify all bills before the first signature
		if _, _, err := p.readBill(ctx, b); err != nil {
			return none, err
		}
	}
	fault := func(err error) error { return a.signingFault(ctx, p.build, p.artifact, err) }
	session, err := a.open(ctx, to)
	if err != nil {
		return none, fault(err)
	}
	out := api.Attestation{RunUID: run, Image: p.built.Image + "@" + p.built.Digest,
		BuilderID: p.built.Provenance.RunDetails.Builder.ID, Level: p.built.Level}
	bills := map[string]string{} // digests of bills by that of the image
	for _, b := range p.built.Bills {
		read, document, err := p.readBill(ctx, b)
		if err != nil {
			return none, err
		}
		if out.SBOM, err = session.Attest(ctx, p.artifact.Context().Digest(read.Of), read.Type,
			document); err != nil {
			return none, fault(err)
		}
		bills[read.Of], out.SBOMDigest = b.Digest, b.Digest
	}
	for _, image := range p.images() { // the whole image is the last one
		if out.Signature, err = session.Sign(ctx, image); err == nil {
			out.Provenance, err = session.Attest(ctx, image, sign.PredicateType, p.built.Provenance)
		}
		if tested := p.built.TestResult(image.DigestStr()); tested != nil && err == nil {
			_, err = session.Attest(ctx, image, sign.TestResultType, tested)
		}
		if err != nil {
			return none, fault(err)
		}
	}
	if out.Policy, err = a.summarize(ctx, p, session, policy); err != nil {
		return none, err
	}
	by, err := session.By()
	if err != nil {
		return none, fault(err)
	}
	out.Signer = &api.AttestationSigner{PublicKey: by.PublicKey, Identity: by.Identity, Issuer: by.Issuer}
	text, err := json.Marshal(p.built.Provenance)
	if err != nil {
		return none, fmt.Errorf("marshalling a provenance: %w", err)
	}
	out.ProvenanceDigest = fmt.Sprintf("sha256:%x", sha256.Sum256(text))
	for _, t := range p.built.Tests {
		out.Tests = append(out.Tests, t.TestVerdict)
	}
	for _, part := range p.built.Platforms {
		out.Platforms = append(out.Platforms, api.PlatformAttestation{Platform: part.Platform,
			Digest: part.Digest, SBOMDigest: bills[part.Digest]})
	}
	if len(bills) > 1 { // each platform has its own
		out.SBOM, out.SBOMDigest = "", ""
	}
	return out, nil
}

// observe reads the objects of a run from the API server.
func (a *Attester) observe(ctx context.Context, key types.NamespacedName, uid types.UID,
	runKey types.NamespacedName, runUID types.UID) (*attest.Observed, error) {
	build := &api.AgentBuild{}
	if err := a.live.Get(ctx, key, build); err != nil || build.UID != uid {
		return nil, fmt.Errorf("reading AgentBuild %s: %w", key,
			cmp.Or(err, errors.New("it is another one now")))
	}
	foreign := func(format string, args ...any) error {
		return compose.Place(build).Fault(api.ReasonRunForeign, fmt.Sprintf(format, args...),
			"start again with `armature build rerun`")
	}
	run, err := a.runs.Whole(ctx, runKey)
	if apierrors.IsNotFound(err) {
		return nil, foreign("run %s was deleted before it was attested", runKey.Name)
	} else if err != nil {
		return nil, err
	}
	if run.UID != runUID || !a.runs.IsOf(run, build) {
		return nil, foreign("run %s is not the isolated run of UID %s that was made for this build",
			run.Name, runUID)
	}
	o := &attest.Observed{Build: build, Run: run, TaskRuns: map[string]*tektonv1.TaskRun{}}
	if ref := run.Spec.PipelineRef; ref != nil && run.Spec.PipelineSpec == nil {
		if o.Pipeline, err = a.runs.Pipeline(ctx,
			types.NamespacedName{Namespace: run.Namespace, Name: ref.Name}); err != nil {
			return nil, err
		}
	}
	for _, child := range run.Status.ChildReferences {
		task := &tektonv1.TaskRun{}
		err := a.live.Get(ctx, types.NamespacedName{Namespace: run.Namespace, Name: child.Name}, task)
		switch {
		case err != nil && !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("reading TaskRun %s: %w", child.Name, err)
		case err != nil || !metav1.IsControlledBy(task, run):
			return nil, foreign("TaskRun %s of run %s was deleted before it was attested",
				child.Name, run.Name)
		}
		o.TaskRuns[child.PipelineTaskName] = task
	}
	return o, nil
}
