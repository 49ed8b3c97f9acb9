package compose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/recipe"
	"github.com/armature-dev/armature/builds/compose/tekton"
)

// Starting a pod takes longer than most small steps. A row of a template with podOf
// has its containers in the pod of an earlier row, after the containers of that one:
// the pipeline then has one task for both, with the name of the earlier row. Everything
// else in this package works on the rows; this is the last change of a pipeline.

// withSharedPods is the pipeline with one task for a row with podOf and the row that it names,
// and for each step in the pod of another one that task. A row stays
// a task of its own where the build lists the whole pipeline, where that other row is
// switched off, and, with a warning, where the two cannot be one task.
func withSharedPods(in Input, steps []step,
	p tektonv1.PipelineSpec) (_ tektonv1.PipelineSpec, podOf map[string]string, warnings []string) {
	if recipe.ListsAll(in.Build) {
		return p, nil, nil
	}
	podOf = map[string]string{}
	var tasks []tektonv1.PipelineTask
	for _, task := range p.Tasks {
		s := named(steps, task.Name)
		head := s.row.PodOf
		at := slices.IndexFunc(tasks, func(t tektonv1.PipelineTask) bool { return t.Name == head })
		if head == "" || at < 0 || staysApart(in.Template, tasks[at], task) {
			tasks = append(tasks, task)
			continue
		}
		whole, conflict := tekton.Join(tasks[at], task, s.file.OfController())
		if s.file.RefersToTasks {
			conflict = tekton.TakesOtherResult
		}
		if after := task.RunAfter; len(after) != 1 || after[0] != head && podOf[after[0]] != head {
			conflict = fmt.Sprintf("it waits for %s", strings.Join(after, ", "))
		}
		// In the pod that packs the source it is what was packed.
		from := s.row.SourceFrom
		packs := from != "" && (from == head || podOf[from] == head)
		if conflict == "" && !packs && from != named(steps, head).row.SourceFrom {
			conflict = fmt.Sprintf("its source differs from that of step %q", head)
		}
		if conflict != "" {
			warnings = append(warnings, fmt.Sprintf("%s: %s.podOf: step %q has its own pod: %s",
				s.place, s.place.Field, task.Name, conflict))
			tasks = append(tasks, task)
			continue
		}
		tasks[at], podOf[task.Name] = whole, head
	}
	if len(podOf) == 0 {
		return p, nil, warnings
	}
	// All that refers to a task which is now a part of another one refers to that one.
	of := func(task string) []string { return []string{cmp.Or(podOf[task], task)} }
	p.Tasks = tasks
	for task := range tekton.Tasks(&p) {
		*task = tekton.Retarget(*task, of)
		if named(steps, task.Name).file.RefersToTasks {
			task.TaskSpec = tekton.RetargetTexts(task.TaskSpec, of)
		}
	}
	p.Results = tekton.RetargetTexts(p.Results, of)
	return p, podOf, warnings
}

// staysApart reports whether a step has a pod of its own although its row names another one's,
// which is not worth a warning: the pod runs what a Dockerfile says, and the step has a login or
// reports what is attested.
func staysApart(t *recipe.Template, head, next tektonv1.PipelineTask) bool {
	if !tekton.MakesContainers(&head.TaskSpec.TaskSpec) {
		return false
	}
	return t.Isolates() ||
		slices.ContainsFunc(next.Workspaces, func(w tektonv1.WorkspacePipelineTaskBinding) bool {
			return tekton.BoundTo(&head, w.Name) == tektonv1.WorkspacePipelineTaskBinding{}
		})
}

// Steps share a volume, which tests, tenants' steps and even pods of a tenant's making
// can write to. A row with sourceFrom does not read the source there: a step packs it and
// reports its digest, and the first container of the row's pod unpacks what has this
// digest into a volume of the pod's own. The other containers have that one as their
// workspace source, and do not mount the volume that steps share.

// withOwnSources is the pipeline whose tasks of rows with sourceFrom have a source of their own,
// and the task that packs it too where that clones it.
func withOwnSources(in Input, steps []step, p tektonv1.PipelineSpec,
	podOf map[string]string) (_ tektonv1.PipelineSpec, found faults) {
	from := map[string]string{} // the step that packs, by task
	for _, s := range steps {
		pack := s.row.SourceFrom
		if pack == "" {
			continue
		}
		if faults := checkOwnSource(steps, s); len(faults) > 0 {
			found = append(found, faults...)
			continue
		}
		packs := cmp.Or(podOf[pack], pack)
		if own := cmp.Or(podOf[s.row.Name], s.row.Name); own != packs {
			from[own] = pack
		}
		if podOf[pack] != "" {
			from[packs] = ""
		}
	}
	if len(from) == 0 {
		return p, found
	}
	if build := in.Build.Spec.Pipeline; build != nil {
		for i, w := range build.Workspaces {
			if w.Name == tekton.OwnSource || w.Name == tekton.Handover {
				found.bad(in, api.ReasonInvalidBuild,
					fmt.Sprintf("spec.pipeline.workspaces[%d].name", i),
					fmt.Sprintf("%q is bound by the pipeline itself", w.Name), "use another name")
			}
		}
	}
	for task := range tekton.Tasks(&p) {
		pack, ok := from[task.Name]
		if !ok {
			continue
		}
		digest := ""
		if pack != "" {
			digest = fmt.Sprintf("$(tasks.%s.results.%s)", cmp.Or(podOf[pack], pack), tekton.SourceDigest)
		}
		*task = *tekton.WithOwnSource(task, digest, in.Settings.controllerImage())
	}
	p.Workspaces = append(p.Workspaces,
		tektonv1.PipelineWorkspaceDeclaration{Name: tekton.OwnSource})
	return p, found
}

// checkOwnSource of a row with sourceFrom.
func checkOwnSource(steps []step, s step) (found faults) {
	bad := func(reason, message, hint string) {
		found.of(s.row.Name, s.place.At(s.place.Field+".sourceFrom").Fault(reason, message, hint))
	}
	pack := named(steps, s.row.SourceFrom)
	// The runtime makes a missing working directory when the container starts, as root.
	below := tekton.WorksBelowSource(&s.file.Task)
	switch {
	case pack == nil:
		bad(api.ReasonInvalidPipeline,
			fmt.Sprintf("step %q takes the source from step %q, which is not enabled", s.row.Name,
				s.row.SourceFrom), "enable that step")
	case !tekton.Reports(&pack.file.Task, tekton.SourceDigest):
		bad(api.ReasonInvalidPipeline,
			fmt.Sprintf("step %q takes the source from step %q, which has no result %s", s.row.Name,
				s.row.SourceFrom, tekton.SourceDigest),
			"use pack-source-step, or declare the result in "+pack.file.Doc.From.String())
	case !tekton.HasWorkspace(&s.file.Task, tekton.SourceWorkspace):
		bad(api.ReasonUnboundWorkspace, fmt.Sprintf("step %q has no workspace %q", s.row.Name,
			tekton.SourceWorkspace), "declare it, or remove sourceFrom")
	case below >= 0:
		found.of(s.row.Name,
			s.file.Doc.At(fmt.Sprintf("steps[%d].workingDir", below)).Fault(api.ReasonInvalidStep,
				fmt.Sprintf("is a folder of the source, which step %q has from step %q only after "+
					"its containers were started", s.row.Name, s.row.SourceFrom),
				"use $(workspaces."+tekton.SourceWorkspace+
					".path), and change to the folder in the script"))
	}
	return found
}
