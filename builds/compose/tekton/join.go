package tekton

import (
	"fmt"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
)

// LayoutDigest is the result of a task that writes an image as an OCI layout, and the parameter of
// the task that pushes it.
const LayoutDigest = "layout-digest"

// TakesOtherResult is the conflict of a task that takes the result of a third task.
const TakesOtherResult = "it takes the result of another step"

// Join returns head with the steps of next after its own, or the conflict that prevents this. If
// controllers is true, the controller's image runs next, which can then take a layout of head.
func Join(head, next tektonv1.PipelineTask,
	controllers bool) (whole tektonv1.PipelineTask, conflict string) {
	whole, added := *head.DeepCopy(), *next.DeepCopy()
	takes := false
	if controllers {
		added, takes = takingLayout(head, added)
	}
	a, b := whole.TaskSpec, added.TaskSpec
	bad := func(format string, args ...any) (tektonv1.PipelineTask, string) {
		return head, fmt.Sprintf(format, args...)
	}
	for _, t := range []tektonv1.PipelineTask{head, next} {
		// Tekton skips a task if it skips a task whose result it takes.
		skipped := len(t.When) > 0 && !(takes && t.Name == head.Name)
		switch {
		case skipped || t.Timeout != nil || t.Retries > 0 || t.OnError != "":
			return bad("step %q has whenExpressions, a timeout, retries or onError", t.Name)
		case len(t.TaskSpec.Sidecars) > 0 && !(takes && t.Name == head.Name) ||
			t.TaskSpec.StepTemplate != nil:
			return bad("step %q has sidecars or a stepTemplate", t.Name)
		}
	}
	if Contains(added.Params, "$(tasks.") {
		return bad(TakesOtherResult)
	}
	for _, p := range b.Params {
		at := slices.IndexFunc(a.Params,
			func(q tektonv1.ParamSpec) bool { return q.Name == p.Name })
		given := slices.IndexFunc(added.Params,
			func(q tektonv1.Param) bool { return q.Name == p.Name })
		if at < 0 {
			a.Params = append(a.Params, p)
			if given >= 0 {
				whole.Params = append(whole.Params, added.Params[given])
			}
			continue
		}
		if meaning(a.Params[at], whole.Params) != meaning(p, added.Params) {
			return bad("its parameter %q differs in value or type from that of step %q", p.Name,
				head.Name)
		}
	}
	if conflict := joinWorkspaces(&whole, &added); conflict != "" {
		return head, conflict
	}
	for _, r := range b.Results {
		if Reports(&a.TaskSpec, r.Name) {
			return bad("step %q too has a result %q", head.Name, r.Name)
		}
	}
	for _, s := range b.Steps {
		if s.Name == "" || slices.ContainsFunc(a.Steps,
			func(q tektonv1.Step) bool { return q.Name == s.Name || q.Name == "" }) {
			return bad("a container of it and one of step %q have the same name, or none", head.Name)
		}
	}
	for _, v := range b.Volumes {
		if slices.ContainsFunc(a.Volumes, func(q corev1.Volume) bool { return q.Name == v.Name }) {
			return bad("step %q too has a volume %q", head.Name, v.Name)
		}
	}
	a.Results, a.Steps, a.Volumes = append(a.Results, b.Results...), append(a.Steps, b.Steps...),
		append(a.Volumes, b.Volumes...)
	return whole, ""
}

// takingLayout returns next, which pushes the layout of head by push-layout, with the digest taken
// from the file of the result in the same pod instead of from a parameter. It reports false, and
// returns next unchanged, if next does not push this layout.
func takingLayout(head, next tektonv1.PipelineTask) (tektonv1.PipelineTask, bool) {
	const parameter, file = "--digest=$(params." + LayoutDigest + ")",
		"--digest=$(results." + LayoutDigest + ".path)"
	isLayout := func(p tektonv1.Param) bool {
		return p.Name == LayoutDigest &&
			p.Value.StringVal == fmt.Sprintf("$(tasks.%s.results.%s)", head.Name, LayoutDigest)
	}
	spec, otherUse := next.TaskSpec.DeepCopy(), false
	for i := range spec.Steps {
		step := &spec.Steps[i]
		for _, words := range [][]string{step.Command, step.Args} {
			for i, word := range words {
				if word == parameter {
					words[i] = file
				}
			}
		}
		Edit(*step, func(text string) string {
			otherUse = otherUse || text != file && strings.Contains(text, LayoutDigest)
			return text
		})
	}
	if otherUse || !slices.ContainsFunc(next.Params, isLayout) {
		return next, false
	}
	spec.Params = slices.DeleteFunc(spec.Params,
		func(p tektonv1.ParamSpec) bool { return p.Name == LayoutDigest })
	next.Params, next.TaskSpec = slices.DeleteFunc(next.Params, isLayout), spec
	return next, true
}

// meaning returns what a parameter means to a task's containers: its type and its value, as JSON.
func meaning(p tektonv1.ParamSpec, given tektonv1.Params) string {
	p.Description = ""
	for _, g := range given {
		if g.Name == p.Name {
			p.Default = nil
			return JSON(p) + JSON(g.Value)
		}
	}
	return JSON(p)
}

// joinWorkspaces adds the workspaces of next to whole. A workspace of only one of the two stays
// with its containers: Tekton mounts a workspace that a step names into the steps that name it
// only. A workspace that only next reads becomes writable, because the steps of whole write it.
func joinWorkspaces(whole, next *tektonv1.PipelineTask) (conflict string) {
	a, b := whole.TaskSpec, next.TaskSpec
	both := map[string]bool{}
	for _, w := range b.Workspaces {
		at := slices.IndexFunc(a.Workspaces,
			func(q tektonv1.WorkspaceDeclaration) bool { return q.Name == w.Name })
		if at < 0 {
			continue
		}
		have := a.Workspaces[at]
		have.Description = w.Description
		w.ReadOnly = w.ReadOnly && have.ReadOnly
		if have != w || BoundTo(whole, w.Name) != BoundTo(next, w.Name) {
			return fmt.Sprintf("its workspace %q differs from that of step %q", w.Name, whole.Name)
		}
		both[w.Name] = !named(a.Steps, w.Name) && !named(b.Steps, w.Name)
	}
	for _, part := range []*tektonv1.EmbeddedTask{a, b} {
		for _, w := range part.Workspaces {
			if both[w.Name] || named(part.Steps, w.Name) {
				continue
			}
			for i := range part.Steps {
				part.Steps[i].Workspaces = append(part.Steps[i].Workspaces,
					tektonv1.WorkspaceUsage{Name: w.Name})
			}
		}
	}
	for _, w := range b.Workspaces {
		if HasWorkspace(&a.TaskSpec, w.Name) {
			continue
		}
		a.Workspaces = append(a.Workspaces, w)
		if bound := BoundTo(next, w.Name); bound.Name != "" {
			whole.Workspaces = append(whole.Workspaces, bound)
		}
	}
	return ""
}

// Isolates reports whether Tekton mounts a workspace only into the containers that name it.
func Isolates(task *tektonv1.TaskSpec, workspace string) bool {
	return named(task.Steps, workspace) || slices.ContainsFunc(task.Sidecars,
		func(s tektonv1.Sidecar) bool { return uses(s.Workspaces, workspace) })
}

// named reports whether a step names a workspace, which hides it from the other steps.
func named(steps []tektonv1.Step, workspace string) bool {
	return slices.ContainsFunc(steps,
		func(s tektonv1.Step) bool { return uses(s.Workspaces, workspace) })
}

func uses(usages []tektonv1.WorkspaceUsage, workspace string) bool {
	return slices.ContainsFunc(usages,
		func(u tektonv1.WorkspaceUsage) bool { return u.Name == workspace })
}
