package compose

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/builds/api"
)

// Starting a pod takes longer than most small steps. A row of a template with podOf
// has its containers in the pod of an earlier row, after the containers of that one:
// the pipeline then has one task for both, with the name of the earlier row. Everything
// else in this package works on the rows; this is the last change of a pipeline.

// checkPods of a template: podOf names an earlier step that has a pod, and the step
// has nothing that only a whole task can have.
func (t *Template) checkPods(problems *findings) {
	for i, row := range t.Steps {
		if row.PodOf == "" {
			continue
		}
		bad := func(message, hint string) {
			problems.add(t.doc.place(fmt.Sprintf("steps[%d].podOf", i)).Fault(api.ReasonInvalidTemplate, message, hint))
		}
		at := slices.IndexFunc(t.Steps[:i], func(before TemplateStep) bool { return before.Name == row.PodOf })
		switch {
		case at < 0:
			bad(fmt.Sprintf("is %q, and no step before this one has that name", row.PodOf), "name an earlier step")
		case t.Steps[at].PodOf != "":
			bad(fmt.Sprintf("is %q, which runs in the pod of %q", row.PodOf, t.Steps[at].PodOf), fmt.Sprintf("use %q", t.Steps[at].PodOf))
		case t.Steps[at].Finally || row.Finally || row.RunAfter != nil || row.Timeout != nil || row.Retries > 0 || row.OnError != "" || len(row.WhenExpressions) > 0:
			bad("goes with none of whenExpressions, runAfter, timeout, retries, onError and finally", "remove those, or podOf")
		}
	}
}

// sharePods makes one task of a row with podOf and the row that it names. A row stays
// a task of its own where the build lists the whole pipeline, where that other row is
// switched off, and, with a warning, where the two cannot be one task.
func (c *composition) sharePods(p *tektonv1.Pipeline) {
	if listsAll(c.in.Build) || c.broken || len(c.problems.found) > 0 {
		return
	}
	var tasks []tektonv1.PipelineTask
	for _, task := range p.Spec.Tasks {
		head := c.taskIn[task.Name].row.PodOf
		at := slices.IndexFunc(tasks, func(t tektonv1.PipelineTask) bool { return t.Name == head })
		if head == "" || at < 0 {
			tasks = append(tasks, task)
			continue
		}
		if c.staysApart(tasks[at], task) {
			tasks = append(tasks, task)
			continue
		}
		whole, conflict := joined(tasks[at], task)
		if c.taskIn[task.Name].file.refers {
			conflict = otherResult
		}
		if after := task.RunAfter; len(after) != 1 || after[0] != head && c.podOf[after[0]] != head {
			conflict = fmt.Sprintf("it waits for %s", strings.Join(after, ", "))
		}
		if conflict == "" {
			conflict = c.sourceConflict(head, task.Name)
		}
		if conflict != "" {
			place := c.rowPlace(c.taskIn[task.Name])
			c.warnings = append(c.warnings, fmt.Sprintf("%s: %s.podOf: step %q has a pod of its own: %s", place, place.Field, task.Name, conflict))
			tasks = append(tasks, task)
			continue
		}
		tasks[at] = whole
		if c.podOf == nil {
			c.podOf = map[string]string{}
		}
		c.podOf[task.Name] = head
	}
	if len(c.podOf) == 0 {
		return
	}
	p.Spec.Tasks = tasks
	c.renameTasks(p)
}

// staysApart reports whether a step has a pod of its own although its row names another one's,
// which is not worth a warning: the pod runs what a Dockerfile says, and the step has a login or
// reports what is attested.
func (c *composition) staysApart(head, next tektonv1.PipelineTask) bool {
	if !makesContainers(head) {
		return false
	}
	return c.in.Template.Attest || slices.ContainsFunc(next.Workspaces, func(w tektonv1.WorkspacePipelineTaskBinding) bool {
		return boundTo(&head, w.Name) == tektonv1.WorkspacePipelineTaskBinding{}
	})
}

// renameTasks makes all that refers to a task which is now a part of another one
// refer to that one.
func (c *composition) renameTasks(p *tektonv1.Pipeline) {
	var pairs []string
	for _, name := range sortedKeys(c.podOf) {
		pairs = append(pairs, "$(tasks."+name+".", "$(tasks."+c.podOf[name]+".")
	}
	names := strings.NewReplacer(pairs...)
	for _, list := range [][]tektonv1.PipelineTask{p.Spec.Tasks, p.Spec.Finally} {
		for i := range list {
			list[i].Params, list[i].When = replaced(list[i].Params, names), replaced(list[i].When, names)
			if c.taskIn[list[i].Name].file.refers {
				list[i].TaskSpec = replaced(list[i].TaskSpec, names)
			}
			var after []string
			for _, name := range list[i].RunAfter {
				if head, ok := c.podOf[name]; ok {
					name = head
				}
				if !slices.Contains(after, name) {
					after = append(after, name)
				}
			}
			list[i].RunAfter = after
		}
	}
	p.Spec.Results = replaced(p.Spec.Results, names)
}

// replaced is v with other texts in it, a copy where it differs.
func replaced[T any](v T, texts *strings.Replacer) T {
	before := mustJSON(v)
	after := texts.Replace(before)
	if after == before {
		return v
	}
	var out T
	if err := json.Unmarshal([]byte(after), &out); err != nil {
		panic(fmt.Sprintf("compose: reading a %T of our own: %v", v, err)) // a task's name is a DNS label
	}
	return out
}

const otherResult = "it takes the result of another step"

// joined is head with the steps of next behind its own, or what is in the way.
func joined(head, next tektonv1.PipelineTask) (whole tektonv1.PipelineTask, conflict string) {
	whole, added := changeable(head), changeable(next)
	takes := takeLayout(head, &added)
	a, b := whole.TaskSpec, added.TaskSpec
	bad := func(format string, args ...any) (tektonv1.PipelineTask, string) {
		return head, fmt.Sprintf(format, args...)
	}
	for _, t := range []tektonv1.PipelineTask{head, next} {
		// A task that is skipped takes those with it that take its results.
		skipped := len(t.When) > 0 && !(takes && t.Name == head.Name)
		switch {
		case skipped || t.Timeout != nil || t.Retries > 0 || t.OnError != "":
			return bad("step %q has whenExpressions, a timeout, retries or onError", t.Name)
		case len(t.TaskSpec.Sidecars) > 0 && !(takes && t.Name == head.Name) || t.TaskSpec.StepTemplate != nil:
			return bad("step %q has sidecars or a stepTemplate", t.Name)
		}
	}
	if refersToTasks(added.Params) {
		return bad(otherResult)
	}
	for _, p := range b.Params {
		at := slices.IndexFunc(a.Params, func(q tektonv1.ParamSpec) bool { return q.Name == p.Name })
		given := slices.IndexFunc(added.Params, func(q tektonv1.Param) bool { return q.Name == p.Name })
		if at < 0 {
			a.Params = append(a.Params, p)
			if given >= 0 {
				whole.Params = append(whole.Params, added.Params[given])
			}
			continue
		}
		if paramText(a.Params[at], whole.Params) != paramText(p, added.Params) {
			return bad("its parameter %q has another value or type than that of step %q", p.Name, head.Name)
		}
	}
	if conflict := joinWorkspaces(&whole, &added); conflict != "" {
		return head, conflict
	}
	for _, r := range b.Results {
		if slices.ContainsFunc(a.Results, func(q tektonv1.TaskResult) bool { return q.Name == r.Name }) {
			return bad("step %q too has a result %q", head.Name, r.Name)
		}
	}
	for _, s := range b.Steps {
		if s.Name == "" || slices.ContainsFunc(a.Steps, func(q tektonv1.Step) bool { return q.Name == s.Name || q.Name == "" }) {
			return bad("a container of it and one of step %q have the same name, or none", head.Name)
		}
	}
	for _, v := range b.Volumes {
		if slices.ContainsFunc(a.Volumes, func(q corev1.Volume) bool { return q.Name == v.Name }) {
			return bad("step %q too has a volume %q", head.Name, v.Name)
		}
	}
	a.Results, a.Steps, a.Volumes = append(a.Results, b.Results...), append(a.Steps, b.Steps...), append(a.Volumes, b.Volumes...)
	return whole, ""
}

// takeLayout makes a step that pushes the layout of head, by push-layout, take its digest from
// the file of that result, where it is in the same pod, instead of from a parameter. It reports
// whether the step does take one.
func takeLayout(head tektonv1.PipelineTask, next *tektonv1.PipelineTask) bool {
	const parameter, file = "--digest=$(params." + layoutDigest + ")", "--digest=$(results." + layoutDigest + ".path)"
	isLayout := func(p tektonv1.Param) bool {
		return p.Name == layoutDigest && p.Value.StringVal == fmt.Sprintf("$(tasks.%s.results.%s)", head.Name, layoutDigest)
	}
	spec := *next.TaskSpec
	spec.Steps = replaced(spec.Steps, strings.NewReplacer(strconv.Quote(parameter), strconv.Quote(file)))
	steps := mustJSON(spec.Steps)
	if !slices.ContainsFunc(next.Params, isLayout) || strings.Count(steps, layoutDigest) != strings.Count(steps, file) {
		return false // it is used in another way too
	}
	next.Params = slices.DeleteFunc(slices.Clone(next.Params), isLayout)
	spec.Params = slices.DeleteFunc(slices.Clone(spec.Params), func(p tektonv1.ParamSpec) bool { return p.Name == layoutDigest })
	next.TaskSpec = &spec
	return true
}

// changeable is a copy of a task whose lists can be appended to, and whose steps can be
// given workspaces, without a change of the task.
func changeable(t tektonv1.PipelineTask) tektonv1.PipelineTask {
	spec := *t.TaskSpec
	spec.Params, spec.Workspaces, spec.Results, spec.Volumes = slices.Clip(spec.Params), slices.Clip(spec.Workspaces), slices.Clip(spec.Results), slices.Clip(spec.Volumes)
	spec.Steps = slices.Clone(spec.Steps)
	for i := range spec.Steps {
		spec.Steps[i].Workspaces = slices.Clip(spec.Steps[i].Workspaces)
	}
	t.TaskSpec, t.Params, t.Workspaces = &spec, slices.Clip(t.Params), slices.Clip(t.Workspaces)
	return t
}

// refersToTasks reports whether a value has a variable of another task.
func refersToTasks(v any) bool { return strings.Contains(mustJSON(v), "$(tasks.") }

// paramText says what a parameter is to a task's containers: its type and its value.
func paramText(p tektonv1.ParamSpec, given tektonv1.Params) string {
	for _, g := range given {
		if g.Name == p.Name {
			p.Default = nil
			p.Description = ""
			return mustJSON(p) + mustJSON(g.Value)
		}
	}
	p.Description = ""
	return mustJSON(p)
}

// joinWorkspaces adds the workspaces of next to whole. One that only some of the
// containers had stays with these: Tekton mounts a workspace that a step names into
// such steps alone. One that only next reads is written by the containers before.
func joinWorkspaces(whole, next *tektonv1.PipelineTask) (conflict string) {
	a, b := whole.TaskSpec, next.TaskSpec
	both := map[string]bool{}
	for _, w := range b.Workspaces {
		at := slices.IndexFunc(a.Workspaces, func(q tektonv1.WorkspaceDeclaration) bool { return q.Name == w.Name })
		if at < 0 {
			continue
		}
		have := a.Workspaces[at]
		have.Description = w.Description
		w.ReadOnly = w.ReadOnly && have.ReadOnly
		if have != w || boundTo(whole, w.Name) != boundTo(next, w.Name) {
			return fmt.Sprintf("its workspace %q is another than that of step %q", w.Name, whole.Name)
		}
		both[w.Name] = !named(a.Steps, w.Name) && !named(b.Steps, w.Name)
	}
	for _, part := range []*tektonv1.EmbeddedTask{a, b} {
		for _, w := range part.Workspaces {
			if both[w.Name] || named(part.Steps, w.Name) {
				continue
			}
			for i := range part.Steps {
				part.Steps[i].Workspaces = append(part.Steps[i].Workspaces, tektonv1.WorkspaceUsage{Name: w.Name})
			}
		}
	}
	for _, w := range b.Workspaces {
		if slices.ContainsFunc(a.Workspaces, func(q tektonv1.WorkspaceDeclaration) bool { return q.Name == w.Name }) {
			continue
		}
		a.Workspaces = append(a.Workspaces, w)
		for _, bound := range next.Workspaces {
			if bound.Name == w.Name {
				whole.Workspaces = append(whole.Workspaces, bound)
			}
		}
	}
	return ""
}

// named reports whether a step asks for a workspace, which keeps it from those that do not.
func named(steps []tektonv1.Step, workspace string) bool {
	return slices.ContainsFunc(steps, func(s tektonv1.Step) bool {
		return slices.ContainsFunc(s.Workspaces, func(u tektonv1.WorkspaceUsage) bool { return u.Name == workspace })
	})
}

// boundTo is what a task's workspace is bound to; the zero value for nothing.
func boundTo(t *tektonv1.PipelineTask, workspace string) tektonv1.WorkspacePipelineTaskBinding {
	for _, b := range t.Workspaces {
		if b.Name == workspace {
			return b
		}
	}
	return tektonv1.WorkspacePipelineTaskBinding{}
}
