package tekton

import (
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	// SourceDigest is the result of a step that packs the source, and the parameter of a task
	// that unpacks it.
	SourceDigest = "source-digest"
	// SourceWorkspace is the workspace of a step that holds the source.
	SourceWorkspace = "source"
	// Handover is the workspace by which tasks with their own source pass files to each other. It
	// is bound to the workspace source of other tasks.
	Handover = "handover"
	// OwnSource is the pipeline's workspace that is a separate empty folder for each task.
	OwnSource = "own-source"
	// unpackStep is the name of the container that unpacks the source.
	unpackStep = "unpack-source"
	// BuildGroup owns the files that the steps write, so that steps of different users can share
	// them.
	BuildGroup = 65532
)

// WithOwnSource returns a task whose workspace source is a volume of its pod. Unless digest is
// empty, a first container of the image unpacks the source with the digest into it.
func WithOwnSource(of *tektonv1.PipelineTask, digest, image string) *tektonv1.PipelineTask {
	task := of.DeepCopy()
	shared := tektonv1.WorkspacePipelineTaskBinding{Name: Handover}
	for i := range task.Workspaces {
		if task.Workspaces[i].Name == SourceWorkspace {
			shared.Workspace, task.Workspaces[i].Workspace = task.Workspaces[i].Workspace, OwnSource
		}
	}
	if digest != "" {
		task.TaskSpec.TaskSpec = unpackedFirst(task.TaskSpec.TaskSpec, image)
		task.Params = append(task.Params,
			tektonv1.Param{Name: SourceDigest, Value: *tektonv1.NewStructuredValues(digest)})
	}
	if HasWorkspace(&task.TaskSpec.TaskSpec, Handover) {
		task.Workspaces = append(task.Workspaces, shared)
	}
	return task
}

// unpackedFirst returns a task with an additional first container that unpacks the source and has
// only the workspaces source and handover. The other containers keep their workspaces.
func unpackedFirst(spec tektonv1.TaskSpec, image string) tektonv1.TaskSpec {
	for i, w := range spec.Workspaces {
		if w.Name == SourceWorkspace {
			spec.Workspaces[i].ReadOnly = false // this container writes to it
		}
		usage := tektonv1.WorkspaceUsage{Name: w.Name}
		if Isolates(&spec, w.Name) {
			continue
		}
		for n := range spec.Steps {
			spec.Steps[n].Workspaces = append(spec.Steps[n].Workspaces, usage)
		}
		for n := range spec.Sidecars {
			spec.Sidecars[n].Workspaces = append(spec.Sidecars[n].Workspaces, usage)
		}
	}
	if !HasWorkspace(&spec, Handover) {
		spec.Workspaces = append(spec.Workspaces, tektonv1.WorkspaceDeclaration{Name: Handover,
			Description: "Holds the packed source.", ReadOnly: true})
	}
	spec.Params = append(spec.Params, tektonv1.ParamSpec{Name: SourceDigest,
		Type: tektonv1.ParamTypeString, Description: "The digest of the packed source."})
	spec.Steps = append([]tektonv1.Step{unpack(image)}, spec.Steps...)
	return spec
}

// unpack returns the container that unpacks the source with the controller's program.
func unpack(image string) tektonv1.Step {
	yes, no, user := true, false, int64(BuildGroup)
	return tektonv1.Step{
		Name:    unpackStep,
		Image:   image,
		Command: []string{"/ko-app/armature-controller"},
		Args: []string{unpackStep, "--from=$(workspaces." + Handover + ".path)",
			"--digest=$(params." + SourceDigest + ")",
			"--to=$(workspaces." + SourceWorkspace + ".path)"},
		Workspaces: []tektonv1.WorkspaceUsage{{Name: SourceWorkspace}, {Name: Handover}},
		ComputeResources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"),
				corev1.ResourceMemory: resource.MustParse("32Mi")},
			Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")},
		},
		SecurityContext: &corev1.SecurityContext{
			RunAsNonRoot: &yes, RunAsUser: &user, AllowPrivilegeEscalation: &no,
			ReadOnlyRootFilesystem: &yes,
			Capabilities:           &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
}

// WorksBelowSource returns the index of the first container of a task whose working directory is a
// folder of its source, or -1.
func WorksBelowSource(task *tektonv1.TaskSpec) int {
	return slices.IndexFunc(task.Steps, func(s tektonv1.Step) bool {
		return strings.HasPrefix(s.WorkingDir, "$(workspaces."+SourceWorkspace+".path)/")
	})
}
