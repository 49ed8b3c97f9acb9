package compose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/armature-dev/armature/builds/api"
)

// Steps share a volume, which tests, tenants' steps and even pods of a tenant's making
// can write to. A row with sourceFrom does not read the source there: a step packs it and
// reports its digest, and the first container of the row's pod unpacks what has this
// digest into a volume of the pod's own. The other containers have that one as their
// workspace source, and do not mount the volume that steps share.

const (
	// sourceDigest is the result of a step that packs the source.
	sourceDigest = "source-digest"
	// sourceWorkspace of a step.
	sourceWorkspace = "source"
	// handover is the workspace by which tasks that have a source of their own hand
	// things on. It is bound to what is the workspace source of other tasks.
	handover = "handover"
	// ownSource is the pipeline's workspace that is another empty folder for each task.
	ownSource = "own-source"
	// unpackStep is the container that unpacks.
	unpackStep = "unpack-source"
)

// checkSources of a template: sourceFrom names an earlier step.
func (t *Template) checkSources(problems *findings) {
	for i, row := range t.Steps {
		before := func(s TemplateStep) bool { return s.Name == row.SourceFrom && !s.Finally && s.SourceFrom == "" }
		if row.SourceFrom != "" && !slices.ContainsFunc(t.Steps[:i], before) {
			problems.add(t.doc.place(fmt.Sprintf("steps[%d].sourceFrom", i)).Fault(api.ReasonInvalidTemplate,
				fmt.Sprintf("is %q, and no step before this one has that name and works on the shared source", row.SourceFrom), "name an earlier step that packs the source, such as one of pack-source-step"))
		}
	}
}

// sourceConflict says why a step cannot be in the pod of another one, head, if they
// work on two sources. In the pod that packs it the source is what was packed.
func (c *composition) sourceConflict(head, step string) string {
	from := c.taskIn[step].row.SourceFrom
	packs := from != "" && (from == head || c.podOf[from] == head)
	if packs || from == c.taskIn[head].row.SourceFrom {
		return ""
	}
	return fmt.Sprintf("its source is another than that of step %q", head)
}

// ownSources gives the tasks of rows with sourceFrom a source of their own, and the task
// that packs it too where that clones it.
func (c *composition) ownSources(p *tektonv1.Pipeline) {
	if c.broken || len(c.problems.found) > 0 {
		return
	}
	from := map[string]string{} // the step that packs, by task
	for _, s := range c.steps {
		pack := s.row.SourceFrom
		if pack == "" || !c.checkOwnSource(s) {
			continue
		}
		packs := firstOf(c.podOf[pack], pack)
		if own := firstOf(c.podOf[s.row.Name], s.row.Name); own != packs {
			from[own] = pack
		}
		if c.podOf[pack] != "" {
			from[packs] = ""
		}
	}
	if len(from) == 0 {
		return
	}
	if build := c.in.Build.Spec.Pipeline; build != nil {
		for i, w := range build.Workspaces {
			if w.Name == ownSource || w.Name == handover {
				c.bad(api.ReasonInvalidBuild, fmt.Sprintf("spec.pipeline.workspaces[%d].name", i),
					fmt.Sprintf("%q is bound by the pipeline itself", w.Name), "use another name")
			}
		}
	}
	for _, list := range [][]tektonv1.PipelineTask{p.Spec.Tasks, p.Spec.Finally} {
		for i := range list {
			if pack, ok := from[list[i].Name]; ok {
				list[i] = c.withOwnSource(list[i], pack)
			}
		}
	}
	p.Spec.Workspaces = append(p.Spec.Workspaces, tektonv1.PipelineWorkspaceDeclaration{Name: ownSource})
}

// checkOwnSource of a row with sourceFrom.
func (c *composition) checkOwnSource(s *plannedStep) bool {
	place := c.rowPlace(s)
	place = place.At(place.Field + ".sourceFrom")
	bad := func(reason, message, hint string) bool {
		c.fault(s.row.Name, place.Fault(reason, message, hint))
		return false
	}
	pack := c.taskIn[s.row.SourceFrom]
	switch {
	case pack == nil:
		return bad(api.ReasonInvalidPipeline, fmt.Sprintf("step %q takes the source from step %q, which is not enabled", s.row.Name, s.row.SourceFrom), "enable that step")
	case !pack.reports(sourceDigest):
		return bad(api.ReasonInvalidPipeline, fmt.Sprintf("step %q takes the source from step %q, which has no result %s", s.row.Name, s.row.SourceFrom, sourceDigest),
			"use pack-source-step, or declare the result in "+pack.file.doc.from.String())
	case !slices.ContainsFunc(s.file.Task.Workspaces, isSource):
		return bad(api.ReasonUnboundWorkspace, fmt.Sprintf("step %q has no workspace %q", s.row.Name, sourceWorkspace), "declare it, or remove sourceFrom")
	}
	// The runtime makes a missing working directory when the container starts, as root.
	for i, step := range s.file.Task.Steps {
		if strings.HasPrefix(step.WorkingDir, "$(workspaces."+sourceWorkspace+".path)/") {
			c.fault(s.row.Name, s.file.doc.place(fmt.Sprintf("steps[%d].workingDir", i)).Fault(api.ReasonInvalidStep,
				fmt.Sprintf("is a folder of the source, which step %q has from step %q only after its containers were started", s.row.Name, s.row.SourceFrom),
				"use $(workspaces."+sourceWorkspace+".path), and change to the folder in the script"))
			return false
		}
	}
	return true
}

func isSource(w tektonv1.WorkspaceDeclaration) bool { return w.Name == sourceWorkspace }

// withOwnSource is a task whose workspace source is a volume of its pod. The source is
// unpacked into it, if pack is not empty.
func (c *composition) withOwnSource(task tektonv1.PipelineTask, pack string) tektonv1.PipelineTask {
	task = changeable(task)
	spec := task.TaskSpec
	task.Workspaces = slices.Clone(task.Workspaces)
	shared := tektonv1.WorkspacePipelineTaskBinding{Name: handover}
	for i := range task.Workspaces {
		if task.Workspaces[i].Name == sourceWorkspace {
			shared.Workspace, task.Workspaces[i].Workspace = task.Workspaces[i].Workspace, ownSource
		}
	}
	if pack != "" {
		c.unpackFirst(spec, &task, pack)
	}
	if slices.ContainsFunc(spec.Workspaces, func(w tektonv1.WorkspaceDeclaration) bool { return w.Name == handover }) {
		task.Workspaces = append(task.Workspaces, shared)
	}
	return task
}

// unpackFirst puts the container that unpacks before the others of a task. These keep
// the workspaces that they had, and it has the source and the handover alone.
func (c *composition) unpackFirst(spec *tektonv1.EmbeddedTask, task *tektonv1.PipelineTask, pack string) {
	spec.Workspaces = slices.Clone(spec.Workspaces)
	spec.Sidecars = slices.Clone(spec.Sidecars)
	hands := false
	for i, w := range spec.Workspaces {
		if w.Name == handover {
			hands = true
		}
		if w.Name == sourceWorkspace {
			spec.Workspaces[i].ReadOnly = false // this container writes to it
		}
		if named(spec.Steps, w.Name) || namedBySidecar(spec.Sidecars, w.Name) {
			continue
		}
		for n := range spec.Steps {
			spec.Steps[n].Workspaces = append(spec.Steps[n].Workspaces, tektonv1.WorkspaceUsage{Name: w.Name})
		}
		for n := range spec.Sidecars {
			spec.Sidecars[n].Workspaces = append(slices.Clip(spec.Sidecars[n].Workspaces), tektonv1.WorkspaceUsage{Name: w.Name})
		}
	}
	if !hands {
		spec.Workspaces = append(spec.Workspaces, tektonv1.WorkspaceDeclaration{Name: handover, Description: "Holds the packed source.", ReadOnly: true})
	}
	spec.Params = append(spec.Params, tektonv1.ParamSpec{Name: sourceDigest, Type: tektonv1.ParamTypeString, Description: "The digest of the packed source."})
	task.Params = append(task.Params, tektonv1.Param{Name: sourceDigest,
		Value: *tektonv1.NewStructuredValues(fmt.Sprintf("$(tasks.%s.results.%s)", firstOf(c.podOf[pack], pack), sourceDigest))})
	spec.Steps = append([]tektonv1.Step{c.unpack()}, spec.Steps...)
}

func namedBySidecar(sidecars []tektonv1.Sidecar, workspace string) bool {
	return slices.ContainsFunc(sidecars, func(s tektonv1.Sidecar) bool {
		return slices.ContainsFunc(s.Workspaces, func(u tektonv1.WorkspaceUsage) bool { return u.Name == workspace })
	})
}

// unpack is the container that unpacks the source, with the controller's program.
func (c *composition) unpack() tektonv1.Step {
	yes, no, user := true, false, int64(buildGroup)
	return tektonv1.Step{
		Name:    unpackStep,
		Image:   cmp.Or(c.in.Settings.ControllerImage, ControllerRepository+":latest"),
		Command: []string{"/ko-app/armature-controller"},
		Args: []string{unpackStep, "--from=$(workspaces." + handover + ".path)", "--digest=$(params." + sourceDigest + ")",
			"--to=$(workspaces." + sourceWorkspace + ".path)"},
		Workspaces: []tektonv1.WorkspaceUsage{{Name: sourceWorkspace}, {Name: handover}},
		ComputeResources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")},
		},
		SecurityContext: &corev1.SecurityContext{
			RunAsNonRoot: &yes, RunAsUser: &user, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
}
