package compose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/builds/compose/templates"
)

// Starting a pod takes longer than most small steps. A row of a template with podOf runs its
// containers in the pod of an earlier row, after the containers of that row: the pipeline has one
// task for both, with the name of the earlier row. The rest of this package works on the rows; this
// is the last change of a pipeline.

// sharePods joins each row with podOf and the row that it names into one task, and records this in
// c.podOf. A row stays a separate task if the build lists the whole pipeline, if the named row is
// disabled, and, with a warning, if the two cannot be one task.
func sharePods(c *composer) {
	if templates.ListsAll(c.Build) {
		return
	}
	became := map[string][]string{}
	c.podOf = map[string]string{}
	var tasks []tektonv1.PipelineTask
	for _, task := range c.pipeline.Tasks {
		s := c.named(task.Name)
		head := s.row.PodOf
		at := slices.IndexFunc(tasks, func(t tektonv1.PipelineTask) bool { return t.Name == head })
		if head == "" || at < 0 || staysApart(c.Template, tasks[at], task) {
			tasks = append(tasks, task)
			continue
		}
		whole, conflict := tekton.Join(tasks[at], task, s.file.OfController())
		if s.file.RefersToTasks {
			conflict = tekton.TakesOtherResult
		}
		if after := task.RunAfter; len(after) != 1 || c.taskOf(after[0]) != head {
			conflict = fmt.Sprintf("it waits for %s", strings.Join(after, ", "))
		}
		// The pod that packs the source has the packed source already.
		from := s.row.SourceFrom
		packs := from != "" && c.taskOf(from) == head
		if conflict == "" && !packs && from != c.named(head).row.SourceFrom {
			conflict = fmt.Sprintf("its source differs from that of step %q", head)
		}
		if conflict != "" {
			c.warn("%s: %s.podOf: step %q has its own pod: %s", s.place, s.place.Field, task.Name,
				conflict)
			tasks = append(tasks, task)
			continue
		}
		tasks[at], c.podOf[task.Name], became[task.Name] = whole, head, []string{head}
	}
	if len(c.podOf) == 0 {
		return
	}
	// Replace references to tasks that are now a part of another task.
	c.pipeline.Tasks = tasks
	for task := range tekton.Tasks(&c.pipeline) {
		*task = tekton.Retarget(*task, became)
		if c.named(task.Name).file.RefersToTasks {
			task.TaskSpec = tekton.RetargetTexts(task.TaskSpec, became)
		}
	}
	c.pipeline.Results = tekton.RetargetTexts(c.pipeline.Results, became)
}

// taskOf returns the name of the task that a step is, or is a part of.
func (c *composer) taskOf(step string) string { return cmp.Or(c.podOf[step], step) }

// staysApart reports whether a step keeps its own pod, without a warning, although its row has
// podOf: the named pod runs the instructions of a Dockerfile, and the step has a login or reports
// results that are attested.
func staysApart(t *templates.Template, head, next tektonv1.PipelineTask) bool {
	if !tekton.MakesContainers(&head.TaskSpec.TaskSpec) {
		return false
	}
	return t.Isolates() ||
		slices.ContainsFunc(next.Workspaces, func(w tektonv1.WorkspacePipelineTaskBinding) bool {
			return tekton.BoundTo(&head, w.Name) == tektonv1.WorkspacePipelineTaskBinding{}
		})
}

// Tests, tenants' steps and even pods that a tenant creates can write to the shared volume of the
// steps. A row with sourceFrom does not read the source there: a step packs the source and reports
// its digest, and the first container of the row's pod unpacks the archive with this digest into a
// volume of the pod. The other containers mount that volume as their workspace source, and not the
// shared one.

// takeOwnSources binds the tasks of rows with sourceFrom to their own source, and the task that packs
// the source if it also clones it.
func takeOwnSources(c *composer) {
	from := map[string]string{} // the step that packs, by task
	for _, s := range c.steps {
		pack := s.row.SourceFrom
		if pack == "" || !checkOwnSource(c, s) {
			continue
		}
		packs := c.taskOf(pack)
		if own := c.taskOf(s.row.Name); own != packs {
			from[own] = pack
		}
		if c.podOf[pack] != "" {
			from[packs] = ""
		}
	}
	if len(from) == 0 {
		return
	}
	for i, w := range c.workspaces() {
		if w.Name == tekton.OwnSource || w.Name == tekton.Handover {
			c.invalid(fmt.Sprintf("spec.pipeline.workspaces[%d].name", i), "use another name",
				"%q is bound by the pipeline itself", w.Name)
		}
	}
	for task := range tekton.Tasks(&c.pipeline) {
		pack, ok := from[task.Name]
		if !ok {
			continue
		}
		digest := ""
		if pack != "" {
			digest = fmt.Sprintf("$(tasks.%s.results.%s)", c.taskOf(pack), tekton.SourceDigest)
		}
		*task = *tekton.WithOwnSource(task, digest, c.Settings.controllerImage())
	}
	c.pipeline.Workspaces = append(c.pipeline.Workspaces,
		tektonv1.PipelineWorkspaceDeclaration{Name: tekton.OwnSource})
}

// checkOwnSource reports whether a row with sourceFrom can have its source.
func checkOwnSource(c *composer, s step) bool {
	bad := func(reason, hint, format string, args ...any) bool {
		c.fault(s.row.Name, s.at(".sourceFrom"), reason, hint, format, args...)
		return false
	}
	pack := c.named(s.row.SourceFrom)
	// The runtime creates a missing working directory as root when the container starts.
	below := tekton.WorksBelowSource(&s.file.Task)
	switch {
	case pack == nil:
		return bad(api.ReasonInvalidPipeline, "enable that step",
			"step %q takes the source from step %q, which is not enabled", s.row.Name,
			s.row.SourceFrom)
	case !tekton.Reports(&pack.file.Task, tekton.SourceDigest):
		return bad(api.ReasonInvalidPipeline,
			"use pack-source-step, or declare the result in "+pack.file.Doc.From.String(),
			"step %q takes the source from step %q, which has no result %s", s.row.Name,
			s.row.SourceFrom, tekton.SourceDigest)
	case !tekton.HasWorkspace(&s.file.Task, tekton.SourceWorkspace):
		return bad(api.ReasonUnboundWorkspace, "declare it, or remove sourceFrom",
			"step %q has no workspace %q", s.row.Name, tekton.SourceWorkspace)
	case below >= 0:
		c.fault(s.row.Name, s.file.Doc.At(fmt.Sprintf("steps[%d].workingDir", below)),
			api.ReasonInvalidStep, "use $(workspaces."+tekton.SourceWorkspace+
				".path), and change to the folder in the script",
			"is a folder of the source, which step %q has from step %q only after its containers "+
				"were started", s.row.Name, s.row.SourceFrom)
	}
	return below < 0
}
