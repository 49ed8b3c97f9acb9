// Package keys defines the labels and annotations that Armature writes and reads, in manifests and
// in clusters, and their prefixes. A test rejects literals of them anywhere else.
package keys

// Prefixes.
const (
	// Group is the API group of RenderConfig, ImageLock and VerifyPolicy.
	Group = "armature.dev"
	// V1alpha1 is the apiVersion of these kinds.
	V1alpha1 = Group + "/v1alpha1"
	// Own is the prefix of Armature's own labels and annotations.
	Own = Group + "/"
	// LabelPrefix is the default prefix of the labels and annotations by which
	// workloads opt in and are configured; spec.labelPrefix of the RenderConfig
	// sets another one.
	LabelPrefix = "kagenti.io"
	// RossoctlPrefix is the prefix of the profile rossoctl.
	RossoctlPrefix = "rossoctl.io"
	// Kagent is the API group of kagent, and the prefix of its annotations; Kagent1 is that of
	// kagent 1.0.
	Kagent  = "kagent.dev"
	Kagent1 = "api.kagent.dev"
	// Kagenti and Rossoctl are the API groups of the operator of both, and Asya that of Asya's.
	Kagenti  = "agent.kagenti.dev"
	Rossoctl = "agent.rossoctl.dev"
	Asya     = "asya.sh"
)

// Prefixes returns the prefixes of all profiles.
func Prefixes() []string { return []string{LabelPrefix, RossoctlPrefix} }

// Annotations and marks of manifests.
const (
	// RenderedFor is the annotation that marks generated objects. Its value is the Kind/name of the
	// object that they were generated for.
	RenderedFor = Own + "rendered-for"
	// Changed holds, as JSON on the object, the fields that were set and their previous text.
	Changed = Own + "changed"
	// Injected holds, as JSON on the workload, the injected fields: enough for any version to
	// remove exactly these again.
	Injected = Own + "injected"
	// Source holds, as JSON, the custom resource that an object was generated from, or a list of
	// several.
	Source = Own + "source"
	// Consumed marks a custom resource that was input and leaves the output: in a comment before
	// it, or as an annotation if the layout has no place for comments.
	Consumed = Own + "consumed"
	// Stream marks a stream that is YAML although JSON comes first.
	Stream = Own + "stream"
	// ConfigHash on pods rolls them when the configuration changes, on request.
	ConfigHash = Own + "config-hash"
	// LintIgnore on an object names rules, separated by commas, that skip it.
	LintIgnore = Own + "lint-ignore"
	// IgnoreFields on an object names fields, as JSON pointers separated by commas, that apply sets
	// when it creates the object and leaves to other writers from then on.
	IgnoreFields = Own + "ignore-fields"
	// ToolsDigest on an MCPServer or RemoteMCPServer is the digest of its tools in the lock. The
	// catalog compares it with the tools that the server offers.
	ToolsDigest = Own + "tools-digest"
	// KagentImage and KagentURL on a kagent Agent hold settings that kagent's controller reads from
	// its environment.
	KagentImage = Own + "kagent-image"
	KagentURL   = Own + "kagent-url"
	// Tools and Calls on a workload, or on the Agent that generates it, are the URLs of its tool
	// servers and of everything else that it calls, separated by spaces. The fragment of a tool
	// server's URL lists the names of the tools, separated by commas.
	Tools = Own + "tools"
	Calls = Own + "calls"
	// SkillPrefix on a workload or its pods, or on the Agent that generates it, followed by a name,
	// is the reference of a skill, such as oci://registry.example/skills/pdf:v1. The skill is
	// mounted in a folder of that name.
	SkillPrefix = "skill." + Own
	// SkillsInit on pods configures the init container that fetches their skills.
	SkillsInit = Own + "skills-init"
	// PublishedURL on a tool server is its address outside the cluster, which the catalog's
	// registry of MCP servers returns to clients.
	PublishedURL = Own + "published-url"
)

// Labels and annotations of applied objects.
const (
	// LabelName and LabelNamespace say which package an object belongs to.
	LabelName      = Own + "name"
	LabelNamespace = Own + "namespace"
	// LabelInventory on a ConfigMap names the package whose inventory it holds.
	LabelInventory = Own + "inventory"
	// Nudged is an annotation of pods. When it changes, the kubelet syncs the pod and updates its
	// mounted ConfigMaps immediately, instead of after up to a minute and a half.
	Nudged = Own + "nudged"
)

// Labels and annotations of builds' runs.
const (
	LabelBuild = Own + "build"
	LabelMode  = Own + "mode"
	// LabelInstance on a run in the build namespace is the controller that created it.
	LabelInstance = Own + "instance"
	// AnnotationBuildNamespace and AnnotationBuildUID on this run name its build. The UID is also a
	// label, by which the run is found; with shards the namespace is one as well.
	AnnotationBuildNamespace = Own + "build-namespace"
	AnnotationBuildUID       = Own + "build-uid"
	// AnnotationRequests holds the concurrent resource requests of the run's tasks, as JSON.
	AnnotationRequests = Own + "requests"
	// AnnotationHeld marks a run that may not begin yet, because the objects that it needs are not
	// copied.
	AnnotationHeld     = Own + "held"
	AnnotationBuild    = Own + "build-name"
	AnnotationSpec     = Own + "spec-hash"
	AnnotationTemplate = Own + "template-hash"
	AnnotationCommit   = Own + "commit"
	AnnotationAttempt  = Own + "attempt"
	// AnnotationHook on an AgentBuild is the time at which another shard accepted a webhook for it.
	AnnotationHook    = Own + "hook-delivered"
	AnnotationRerun   = Own + "rerun"
	AnnotationTrigger = Own + "run-reason"
	AnnotationNumber  = Own + "run-number"
	AnnotationImage   = Own + "image"
	AnnotationSource  = Own + "source-hash"
	// AnnotationRef is the full ref that the revision named, such as refs/heads/main, if a Git
	// server reported it.
	AnnotationRef = Own + "ref"
	// AnnotationVerified holds a list of SourceVerification of AgentBuild's API in JSON:
	// the policies that the commit was found to satisfy.
	AnnotationVerified = Own + "source-verified"
	// AnnotationMaterials holds compose.Materials in JSON, on runs of attested
	// templates, and AnnotationRunDigest the digest of the composed spec.
	AnnotationMaterials = Own + "materials"
	AnnotationRunDigest = Own + "run-digest"
	// AnnotationPipelineDigest is the digest of the Pipeline that the run refers to.
	AnnotationPipelineDigest = Own + "pipeline-digest"
	// AnnotationSignatures holds, in JSON, signatures of the run that may not be published yet, for
	// keys whose signatures differ each time.
	AnnotationSignatures = Own + "signatures"
	// AnnotationLost names, in JSON, the lost pod for which the controller stopped the run.
	AnnotationLost = Own + "lost-pod"
	// AnnotationTrace on an AgentBuild is the traceparent (W3C) of the request for its next run.
	AnnotationTrace = Own + "traceparent"
	// AnnotationApproved on an AgentBuild lists the full commits of pull requests of forks that
	// may be built, separated by commas.
	AnnotationApproved = Own + "approved-commits"
	// AnnotationMaxRunning on a Namespace lowers how many of its builds run at once.
	AnnotationMaxRunning = Own + "max-running"
	// SharePrefix on a template or step ConfigMap, followed by a namespace, lets builds of
	// that namespace use it. The value is "true".
	SharePrefix = "share." + Own
	// LabelCredentials on a Secret says which purpose it serves.
	LabelCredentials = Own + "credentials"
)

// FinalizerSource keeps a RenderedSource until its archives are deleted.
const FinalizerSource = Own + "artifact"

// Identifiers in provenance.
const (
	RenderBuildType = "https://" + Own + "render/v1"
	// SkillBuildType is the build type of skills: the inputs are the files of the folder.
	SkillBuildType = "https://" + Own + "skill/v1"
	// AgentBuildType is the build type of images that AgentBuilds make. Builders begins the id of
	// their builder; the mode follows.
	AgentBuildType = "https://" + Own + "agent-build/v1"
	Builders       = "https://" + Own + "builders/"
	// LocalBuilder is the id of builds on a user's own machine; no policy accepts it.
	LocalBuilder = "https://" + Own + "local"
	Builder      = "https://" + Own + "armature"
)
