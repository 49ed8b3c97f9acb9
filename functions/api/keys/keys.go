// Package keys has the labels and annotations that Armature writes and reads, in
// manifests and in clusters, and the prefixes that they begin with. A test keeps
// them from being written out anywhere else.
package keys

// Prefixes.
const (
	// Group is the API group of RenderConfig, ImageLock and VerifyPolicy.
	Group = "armature.dev"
	// V1alpha1 is the apiVersion of these.
	V1alpha1 = Group + "/v1alpha1"
	// Own is what Armature's own labels and annotations begin with.
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
	// RenderedFor is the annotation by which generated objects are known. Its
	// value is the Kind/name of what they were made for.
	RenderedFor = Own + "rendered-for"
	// Changed holds, as JSON on the object, the fields that were set and how the
	// author wrote them.
	Changed = Own + "changed"
	// Injected holds, as JSON on the workload, what was injected: enough to take
	// out exactly that again, whatever version put it there.
	Injected = Own + "injected"
	// Source holds, as JSON, the custom resource that an object was made from: a
	// list, where more than one was read for it.
	Source = Own + "source"
	// Consumed marks a custom resource that was input and leaves the output: in a
	// comment before it, or as an annotation where there is no place for comments.
	Consumed = Own + "consumed"
	// Stream marks a stream that is YAML although JSON comes first.
	Stream = Own + "stream"
	// ConfigHash on pods rolls them when the configuration changes, on request.
	ConfigHash = Own + "config-hash"
	// LintIgnore on an object names rules, separated by commas, which do not judge
	// it.
	LintIgnore = Own + "lint-ignore"
	// IgnoreFields on an object names fields, as JSON pointers separated by commas,
	// that apply sets when it creates the object and leaves to others from then on.
	IgnoreFields = Own + "ignore-fields"
	// ToolsDigest on an MCPServer or RemoteMCPServer is the digest of the tools that the lock has
	// of it. The catalog compares what the server offers.
	ToolsDigest = Own + "tools-digest"
	// KagentImage and KagentURL on a kagent Agent say what kagent's controller has
	// from its environment.
	KagentImage = Own + "kagent-image"
	KagentURL   = Own + "kagent-url"
	// Tools and Calls on a workload, or on the Agent that it is made from, are the URLs of
	// the tool servers and of everything else that it calls, separated by spaces. The fragment
	// of a tool server's URL has the names of the tools, separated by commas.
	Tools = Own + "tools"
	Calls = Own + "calls"
	// SkillPrefix on a workload or its pods, or on the Agent that it is made from, followed by
	// a name, is the reference of a skill, such as oci://registry.example/skills/pdf:v1. The
	// skill is mounted in a folder of that name.
	SkillPrefix = "skill." + Own
	// SkillsInit on pods configures the init container that fetches their skills.
	SkillsInit = Own + "skills-init"
	// PublishedURL on a tool server is its address outside the cluster, which the catalog's
	// registry of MCP servers gives to clients.
	PublishedURL = Own + "published-url"
)

// Labels and annotations of applied objects.
const (
	// LabelName and LabelNamespace say which package an object belongs to.
	LabelName      = Own + "name"
	LabelNamespace = Own + "namespace"
	// LabelInventory on a ConfigMap names the package whose inventory it holds.
	LabelInventory = Own + "inventory"
	// Nudged is an annotation of pods. Whatever its value, the kubelet looks at a
	// pod that changed at once, and brings its mounted ConfigMaps up to date;
	// without it that takes it up to a minute and a half.
	Nudged = Own + "nudged"
)

// Labels and annotations of builds' runs.
const (
	LabelBuild = Own + "build"
	LabelMode  = Own + "mode"
	// LabelInstance on a run in the build namespace is the controller that made it.
	LabelInstance = Own + "instance"
	// AnnotationBuildNamespace and AnnotationBuildUID of such a run are of its build. It has the
	// second as a label, too, by which it is found, and with shards the first.
	AnnotationBuildNamespace = Own + "build-namespace"
	AnnotationBuildUID       = Own + "build-uid"
	// AnnotationRequests has what the tasks of such a run request at once, as JSON.
	AnnotationRequests = Own + "requests"
	// AnnotationHeld marks such a run that may not begin yet, because what it needs is not
	// copied.
	AnnotationHeld     = Own + "held"
	AnnotationBuild    = Own + "build-name"
	AnnotationSpec     = Own + "spec-hash"
	AnnotationTemplate = Own + "template-hash"
	AnnotationCommit   = Own + "commit"
	AnnotationAttempt  = Own + "attempt"
	// AnnotationHook on an AgentBuild is when another shard took a webhook for it.
	AnnotationHook    = Own + "hook-delivered"
	AnnotationRerun   = Own + "rerun"
	AnnotationTrigger = Own + "run-reason"
	AnnotationNumber  = Own + "run-number"
	AnnotationImage   = Own + "image"
	AnnotationSource  = Own + "source-hash"
	// AnnotationRef is the full ref that the revision named, such as refs/heads/main,
	// where a Git server reported it.
	AnnotationRef = Own + "ref"
	// AnnotationVerified holds a list of SourceVerification of AgentBuild's API in JSON:
	// the policies that the commit was found to satisfy.
	AnnotationVerified = Own + "source-verified"
	// AnnotationMaterials holds compose.Materials in JSON, on runs of attested
	// templates, and AnnotationRunDigest the digest of the composed spec.
	AnnotationMaterials = Own + "materials"
	AnnotationRunDigest = Own + "run-digest"
	// AnnotationPipelineDigest is of the Pipeline that such a run refers to.
	AnnotationPipelineDigest = Own + "pipeline-digest"
	// AnnotationSignatures holds the signatures of such a run that were made and may not be
	// published yet, in JSON, where a key signs each time with another one.
	AnnotationSignatures = Own + "signatures"
	// AnnotationLost says in JSON which pod of a run was lost, where the controller stopped
	// the run for that.
	AnnotationLost = Own + "lost-pod"
	// AnnotationTrace on an AgentBuild is the traceparent (W3C) of what asked for its next run.
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

// FinalizerSource holds a RenderedSource until its archives are gone.
const FinalizerSource = Own + "artifact"

// Identifiers in provenance.
const (
	RenderBuildType = "https://" + Own + "render/v1"
	// SkillBuildType is that of skills: the inputs are the files of the folder.
	SkillBuildType = "https://" + Own + "skill/v1"
	// AgentBuildType is the build type of images that AgentBuilds make, and Builders
	// begins the id of who built them; the mode follows.
	AgentBuildType = "https://" + Own + "agent-build/v1"
	Builders       = "https://" + Own + "builders/"
	// LocalBuilder is the id of who built on a machine of their own; no policy accepts it.
	LocalBuilder = "https://" + Own + "local"
	Builder      = "https://" + Own + "armature"
)
