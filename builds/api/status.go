package api

import (
	"cmp"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Phase sums up a build in one word.
type Phase string

// The phases. Pending, Building, Succeeded and Failed are the published ones;
// a cancelled build is not a failed one.
const (
	PhasePending   Phase = "Pending"
	PhaseBuilding  Phase = "Building"
	PhaseSucceeded Phase = "Succeeded"
	PhaseFailed    Phase = "Failed"
	PhaseCancelled Phase = "Cancelled"
)

// The condition types, as published.
const (
	// ConditionReady is True when status.builtImage is the image of this spec.
	ConditionReady = "Ready"
	// ConditionRunExists is True when the PipelineRun for this spec was created.
	ConditionRunExists = "PipelineRunExists"
	// ConditionSucceeded is True when the last run succeeded, Unknown while it
	// runs.
	ConditionSucceeded = "BuildSucceeded"
	// ConditionAttested is True when the image of the last run is signed and its
	// provenance attached, False when that was refused, Unknown until then. Builds of
	// modes without attest do not have it.
	ConditionAttested = "Attested"
	// ConditionVerified is True when the commit of the last run satisfies the policies for
	// it, False when that was refused. Builds without a policy do not have it.
	ConditionVerified = "SourceVerified"
)

// The reasons that conditions and failure details carry. They follow
// Shipwright's words where it has one. Why a step failed is in the table of builds/failure.
const (
	ReasonSucceeded     = "Succeeded"
	ReasonRunning       = "Running"
	ReasonPending       = "Pending"
	ReasonQueued        = "Queued"
	ReasonRetrying      = "Retrying"
	ReasonFailed        = "Failed"
	ReasonCancelled     = "BuildRunCanceled"
	ReasonChangeIgnored = "ChangeIgnored"
	ReasonTimeout       = "BuildRunTimeout"
	ReasonEvicted       = "PodEvicted"
	ReasonRunDeleted    = "PipelineRunDeleted"
	ReasonRunDenied     = "PipelineRunDenied"
	ReasonRunForeign    = "PipelineRunNotOurs"

	ReasonRegistryUnauthorized = "RegistryUnauthorized"
	ReasonRegistryUnreachable  = "RegistryUnreachable"

	ReasonAttested  = "Attested"
	ReasonAttesting = "Attesting"
	// What keeps a run from being attested. It is final for that run.
	ReasonNotAsOrdered     = "RunNotAsOrdered"
	ReasonSpecChanged      = "SpecChanged"
	ReasonResultInvalid    = "ResultInvalid"
	ReasonResultsForged    = "ResultsForged"
	ReasonImageMismatch    = "ImageMismatch"
	ReasonRegistryRefused  = "RegistryRefused"
	ReasonSBOMInvalid      = "SBOMInvalid"
	ReasonAttestKeyMissing = "AttestKeyMissing"
	// The controller has no namespace for isolated runs.
	ReasonBuildNamespaceMissing = "BuildNamespaceMissing"
	// The controller attests by its identity, and has no token or no trusted root.
	ReasonAttestIdentityMissing = "AttestIdentityMissing"
	// The registry has no statement of the platform that confirms what status says of an image.
	ReasonNotAttested = "NotAttested"

	ReasonMissingParameters  = "MissingParameterValues"
	ReasonUndefinedParameter = "UndefinedParameter"
	ReasonWrongParameterType = "WrongParameterValueType"
	ReasonTemplateNotFound   = "TemplateNotFound"
	ReasonTemplateForbidden  = "TemplateForbidden"
	ReasonInvalidTemplate    = "InvalidTemplate"
	ReasonStepNotFound       = "StepNotFound"
	ReasonInvalidStep        = "InvalidStep"
	ReasonInvalidBuild       = "InvalidBuild"
	ReasonInvalidPipeline    = "InvalidPipeline"
	ReasonPipelineTooLarge   = "PipelineTooLarge"
	ReasonUnboundWorkspace   = "UnboundWorkspace"
	// A build changes what its mode's template locks.
	ReasonLocked = "LockedByTemplate"
	// A build sets what one step hands to another.
	ReasonWiredParameter = "WiredParameter"
	// A pull request of another repository would get a Secret, a token, or a volume that stays.
	ReasonForkRestricted = "ForkRestricted"
	// A step that signs is outside of the platform's templates.
	ReasonPlatformStep = "PlatformStep"
	// A template with attest: true or isolate: true, or its step, is not the platform's.
	ReasonNotPlatform = "NotFromPlatform"

	ReasonSourceSecretNotFound = "SpecSourceSecretRefNotFound"
	ReasonOutputSecretNotFound = "SpecOutputSecretRefNotFound"
	ReasonSecretNotFound       = "SecretNotFound"
	ReasonConfigMapNotFound    = "ConfigMapNotFound"
	ReasonClaimNotFound        = "PersistentVolumeClaimNotFound"
	ReasonClaimForeign         = "PersistentVolumeClaimNotOurs"
	ReasonSecretInvalid        = "SecretInvalid"
	ReasonSecretPurpose        = "SecretNotForPurpose"
	ReasonServiceAccount       = "ServiceAccountNotFound"

	ReasonRevisionNotFound   = "GitRevisionNotFound"
	ReasonRepositoryNotFound = "GitRemoteRepositoryNotFound"
	ReasonRepositoryPrivate  = "GitRemoteRepositoryPrivate"
	ReasonGitAuthInvalid     = "GitAuthInvalidUserOrPass"
	ReasonInsecureSource     = "InsecureSourceURL"

	ReasonVerified = "SourceVerified"
	// What keeps a commit from being built under a policy. It is looked at again by itself.
	ReasonSourcePolicy    = "SourcePolicyInvalid"
	ReasonNotReachable    = "SourceNotReachable"
	ReasonNotSigned       = "SourceNotSigned"
	ReasonHistoryTooLarge = "SourceHistoryTooLarge"
	// A step cloned another commit than the one that was verified.
	ReasonSourceReplaced = "SourceReplaced"
)

// Trigger says why a run was started.
type Trigger string

// The triggers of status.runReason. A rerun is COMMIT where the revision has another
// commit than the last run was made of, and MANUAL otherwise.
const (
	TriggerConfig   Trigger = "CONFIG"
	TriggerCommit   Trigger = "COMMIT"
	TriggerTemplate Trigger = "TEMPLATE"
	TriggerRetry    Trigger = "RETRY"
	TriggerManual   Trigger = "MANUAL"
)

// AgentBuildStatus holds observations only.
type AgentBuildStatus struct {
	// Phase sums up: Pending, Building, Succeeded, Failed or Cancelled.
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// Message explains the phase, for people.
	// +optional
	Message string `json:"message,omitempty"`

	// ObservedGeneration is the generation of the spec that the status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions Ready, PipelineRunExists and BuildSucceeded, Attested in modes that are
	// attested, and SourceVerified if a policy judges the commit.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// PipelineRunName of the last run.
	// +optional
	PipelineRunName string `json:"pipelineRunName,omitempty"`

	// PipelineRunNamespace is where the last run is, if that is not the build's namespace.
	// +optional
	PipelineRunNamespace string `json:"pipelineRunNamespace,omitempty"`

	// PipelineRunUID of the last run, as the API server returned it.
	// +optional
	PipelineRunUID types.UID `json:"pipelineRunUID,omitempty"`

	// RunReason says why the last run was started: CONFIG, COMMIT, TEMPLATE,
	// RETRY or MANUAL.
	// +optional
	RunReason Trigger `json:"runReason,omitempty"`

	// RunNumber is the number of the last run, counted from 1.
	// +optional
	RunNumber int32 `json:"runNumber,omitempty"`

	// LastRunPhase is the outcome of the last run that ended: Succeeded, Failed or
	// Cancelled. Phase may describe something newer, such as an invalid spec.
	// +optional
	LastRunPhase Phase `json:"lastRunPhase,omitempty"`

	// Attempt of the last run, from 1.
	// +optional
	Attempt int32 `json:"attempt,omitempty"`

	// LastBuildTime is when the last run was created.
	// +optional
	LastBuildTime *metav1.Time `json:"lastBuildTime,omitempty"`

	// StartTime is when Tekton started the last run.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// CompletionTime is when the last run ended.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`

	// BuiltImage of the last success, by digest.
	// +optional
	BuiltImage string `json:"builtImage,omitempty"`

	// Platforms of builtImage, in the order of spec.platforms.
	// +optional
	// +listType=map
	// +listMapKey=platform
	Platforms []PlatformStatus `json:"platforms,omitempty"`

	// Attestation of builtImage, if its mode is attested.
	// +optional
	Attestation *Attestation `json:"attestation,omitempty"`

	// Source that the last run builds.
	// +optional
	Source *SourceStatus `json:"source,omitempty"`

	// Tags are those for which spec.trigger.push.tags starts no build any more.
	// +optional
	Tags *TagsStatus `json:"tags,omitempty"`

	// Tasks of the last run, in the order of the pipeline.
	// +optional
	// +listType=map
	// +listMapKey=name
	Tasks []TaskStatus `json:"tasks,omitempty"`

	// FailureDetails of the last run.
	// +optional
	FailureDetails *FailureDetails `json:"failureDetails,omitempty"`

	// Inputs of the last run, which decide whether another one starts.
	// +optional
	Inputs *Inputs `json:"inputs,omitempty"`

	// TraceParent is the W3C trace context of the last run, if traces are exported.
	// +optional
	TraceParent string `json:"traceParent,omitempty"`

	// Report is what was shown on the forge, if spec.report is set.
	// +optional
	Report *ReportStatus `json:"report,omitempty"`

	// Ignored inputs changed during a run while onChange was Ignore.
	// +optional
	Ignored *Inputs `json:"ignored,omitempty"`
}

// Claim returns the attestation of builtImage in status as a text for people. It proves nothing;
// only the statement in the registry does.
func (b *AgentBuild) Claim() string {
	if a := b.Status.Attestation; a != nil && a.Image == b.Status.BuiltImage {
		return fmt.Sprintf("SLSA level %d, %s (claimed by status, not verified)", a.Level,
			a.ProvenanceDigest)
	}
	return "unattested"
}

// Over reports whether the build makes no more progress by itself: it succeeded, was cancelled, or
// failed and is not retried.
func (b *AgentBuild) Over() bool {
	s := b.Status
	switch s.Phase {
	case PhaseSucceeded, PhaseCancelled:
		return true
	case PhaseFailed:
		if meta.IsStatusConditionFalse(s.Conditions, ConditionAttested) {
			return true
		}
		ran := s.LastRunPhase == PhaseFailed &&
			meta.IsStatusConditionTrue(s.Conditions, ConditionRunExists)
		return !ran || b.Spec.Cancel || !b.Spec.Retries.Covers(s.Attempt, s.FailureDetails)
	}
	return false
}

// PlatformStatus is the image of one platform.
type PlatformStatus struct {
	// Platform such as linux/arm64.
	Platform string `json:"platform"`
	// Digest of its image, in the repository of builtImage. For a single platform, that
	// is builtImage itself.
	Digest string `json:"digest"`
}

// Attestation is what the controller attested of a run.
type Attestation struct {
	// RunUID is the UID of the PipelineRun.
	RunUID types.UID `json:"runUID"`
	// Image that is signed, by digest.
	Image string `json:"image"`
	// BuilderID is runDetails.builder.id of the provenance.
	BuilderID string `json:"builderID"`
	// Level is the SLSA build level that the controller claims: 3, or 2 where the container that
	// runs the author's code reports the digest.
	Level int32 `json:"level"`
	// Signature is the reference by digest of the Sigstore bundle with the image's
	// signature.
	// +optional
	Signature string `json:"signature,omitempty"`
	// Provenance is the reference by digest of the Sigstore bundle with the provenance. The
	// bundles of all that the controller attests refer to the image.
	Provenance string `json:"provenance"`
	// ProvenanceDigest is the digest of the provenance, the predicate of its statement,
	// in JSON.
	ProvenanceDigest string `json:"provenanceDigest"`
	// SBOM is the reference by digest of the Sigstore bundle with the bill of materials. It
	// is omitted if no step makes one, or if each platform has its own.
	// +optional
	SBOM string `json:"sbom,omitempty"`
	// SBOMDigest is the digest of the document as the step wrote it.
	// +optional
	SBOMDigest string `json:"sbomDigest,omitempty"`
	// Tests are the verdicts of the platform's test steps, which are attested as test
	// results. The list is empty if no step reports a verdict.
	// +optional
	Tests []TestVerdict `json:"tests,omitempty"`
	// Platforms are the images of an image for several platforms. Each has its own
	// signature, provenance and SBOM, which refer to its digest.
	// +optional
	Platforms []PlatformAttestation `json:"platforms,omitempty"`
	// Policy is the verdict of the platform's policy about the image. It is omitted if
	// the controller has no policy.
	// +optional
	Policy *PolicyVerdict `json:"policy,omitempty"`
	// Signer is who signed.
	// +optional
	Signer *AttestationSigner `json:"signer,omitempty"`
}

// TestVerdict is what a test step reported.
type TestVerdict struct {
	// Step of the template.
	Step string `json:"step"`
	// Digest of the image of a platform that was tested. It is omitted if the verdict is
	// about the whole image.
	// +optional
	Digest string `json:"digest,omitempty"`
	// Result is PASSED, WARNED or FAILED.
	Result string `json:"result"`
}

// PlatformAttestation is what was signed about the image of one platform.
type PlatformAttestation struct {
	// Platform, such as linux/arm64.
	Platform string `json:"platform"`
	// Digest of its image.
	Digest string `json:"digest"`
	// SBOMDigest is the digest of the bill of materials as the step wrote it. It is
	// omitted if no step makes one for this platform.
	// +optional
	SBOMDigest string `json:"sbomDigest,omitempty"`
}

// PolicyVerdict is the controller's judgement of an attested image by the platform's
// VerifyPolicy. An accepted image has a verification summary.
type PolicyVerdict struct {
	// Policy is the ConfigMap, as NAMESPACE/NAME.
	Policy string `json:"policy"`
	// PolicyDigest is the digest of its policy.yaml.
	PolicyDigest string `json:"policyDigest"`
	// Summary is the reference by digest of the Sigstore bundle with the summary. It is
	// omitted if the image is refused.
	// +optional
	Summary string `json:"summary,omitempty"`
	// Refusal says why the image is refused.
	// +optional
	Refusal string `json:"refusal,omitempty"`
}

// AttestationSigner is a key, or an identity that was certified.
type AttestationSigner struct {
	// PublicKey is the SHA-256 digest of the public key (PKIX, DER), after "sha256:".
	// +optional
	PublicKey string `json:"publicKey,omitempty"`
	// Identity is the subject of the certificate, such as the controller's ServiceAccount.
	// +optional
	Identity string `json:"identity,omitempty"`
	// Issuer is the OpenID provider that vouched for the identity.
	// +optional
	Issuer string `json:"issuer,omitempty"`
}

// SourceStatus is the revision that was built.
type SourceStatus struct {
	Git GitStatus `json:"git"`
}

// GitStatus is a resolved Git revision.
type GitStatus struct {
	// CommitSHA is the full commit.
	CommitSHA string `json:"commitSha"`

	// BranchName is the requested revision, if that was a branch.
	// +optional
	BranchName string `json:"branchName,omitempty"`

	// Ref is the full name of the branch that the revision named when it was resolved,
	// such as refs/heads/main.
	// +optional
	Ref string `json:"ref,omitempty"`

	// Verified are the policies that the commit satisfied right before the run was
	// created.
	// +optional
	// +listType=atomic
	Verified []SourceVerification `json:"verified,omitempty"`
}

// Inputs identify what a run was composed from.
type Inputs struct {
	// SpecHash of the fields of the spec that shape a run.
	SpecHash string `json:"specHash"`
	// TemplateHash of the template's and the steps' text.
	TemplateHash string `json:"templateHash"`
	// Rerun is the value of the rerun annotation.
	// +optional
	Rerun string `json:"rerun,omitempty"`
	// SourceHash of the requested repository and revision.
	// +optional
	SourceHash string `json:"sourceHash,omitempty"`
	// Commit that the revision was resolved to.
	// +optional
	Commit string `json:"commit,omitempty"`
}

// TagsStatus are the tags that were built, or that were there when the patterns were set.
type TagsStatus struct {
	// Patterns that the tags were compared with.
	// +listType=atomic
	Patterns []string `json:"patterns"`
	// Seen are the names of the tags.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2000
	// +kubebuilder:validation:items:MaxLength=255
	Seen []string `json:"seen,omitempty"`
}

// TaskStatus is the state of one task.
type TaskStatus struct {
	Name string `json:"name"`
	// State is Pending, Running, Succeeded, Failed, Cancelled or Skipped.
	State string `json:"state"`
	// Reason in one word, as Tekton gives it.
	// +optional
	Reason string `json:"reason,omitempty"`
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
	// Message that the task has for people although it succeeded, such as that the folder has
	// no Dockerfile.
	// +optional
	Message string `json:"message,omitempty"`
}

// FailureDetails say where and why the last run failed.
type FailureDetails struct {
	// Reason in one word, such as StepOutOfMemory.
	Reason string `json:"reason"`
	// Cause, if the build itself is not to blame: Evicted, NodeLost, PodFailed,
	// ImagePull or ServerError. Retries depend on it, so it stays while another problem
	// keeps the next attempt from starting.
	// +optional
	Cause FailureCause `json:"cause,omitempty"`
	// Message for people.
	// +optional
	Message string `json:"message,omitempty"`
	// Task and Step that failed.
	// +optional
	Task string `json:"task,omitempty"`
	// +optional
	Step string `json:"step,omitempty"`
	// ExitCode of the step.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`
	// Location of the container.
	// +optional
	Location *FailureLocation `json:"location,omitempty"`
	// LogTail has the last lines of the step's log.
	// +optional
	LogTail []string `json:"logTail,omitempty"`
}

// FailureCause is a failure for which the build is not to blame, so another attempt may
// succeed.
type FailureCause string

// The causes.
const (
	CauseEvicted     FailureCause = "Evicted"
	CauseNodeLost    FailureCause = "NodeLost"
	CausePodFailed   FailureCause = "PodFailed"
	CauseImagePull   FailureCause = "ImagePull"
	CauseServerError FailureCause = "ServerError"
)

// FailureLocation names a container.
type FailureLocation struct {
	Pod       string `json:"pod"`
	Container string `json:"container"`
}

// RunKey returns the namespace and the name of the last run.
func (b *AgentBuild) RunKey() types.NamespacedName {
	return types.NamespacedName{Namespace: cmp.Or(b.Status.PipelineRunNamespace, b.Namespace),
		Name: b.Status.PipelineRunName}
}
