package compose

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"knative.dev/pkg/apis"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/krm"
)

// maxRunBytes is the largest run that Tekton survives with room to spare: its
// controller copies the spec into the status.
const maxRunBytes = 700 * 1024

// background is the context of Tekton's default configuration.
func background() context.Context { return context.Background() }

// check looks for what Tekton's Validate misses, then lets Tekton judge. What
// was judged before, by the pipeline and the shape of the run, is not again.
func (c *composition) check(p *tektonv1.Pipeline, run *tektonv1.PipelineRun) {
	for _, s := range c.steps {
		c.checkClaims(s, p, run)
	}
	c.in.Verdicts.once(c.shape(run), func() bool { return c.judge(p, run) })
	size := 0
	for _, text := range c.texts {
		size += len(text)
	}
	if size > maxRunBytes {
		c.problems.add(c.buildPlace().Fault(api.ReasonPipelineTooLarge,
			fmt.Sprintf("the composed PipelineRun has %d KiB, and Tekton handles at most %d KiB", size/1024, maxRunBytes/1024),
			"move long scripts into the step's image or into a mounted ConfigMap"))
	}
}

// judge the pipeline and the run; true means that all was looked at and nothing
// is wrong.
func (c *composition) judge(p *tektonv1.Pipeline, run *tektonv1.PipelineRun) bool {
	for _, s := range c.steps {
		c.checkOrder(s)
		c.checkResults(s)
		c.checkTimeout(s, run)
	}
	if len(c.steps) == 0 || c.broken {
		return false
	}
	c.checkRun(p, run)
	return !c.in.Template.broken && c.validate(p, run)
}

// checkOrder refuses to wait for steps that there are not.
func (c *composition) checkOrder(s *plannedStep) {
	for _, name := range s.task.RunAfter {
		if c.taskIn[name] == nil {
			place := c.rowPlace(s)
			c.fault(s.row.Name, place.At(place.Field+".runAfter").Fault(api.ReasonInvalidTemplate,
				fmt.Sprintf("step %q waits for step %q, which does not exist", s.row.Name, name),
				"use one of "+strings.Join(sortedKeys(c.taskIn), ", ")))
		}
	}
	if s.row.Finally && s.row.RunAfter != nil {
		place := c.rowPlace(s)
		c.fault(s.row.Name, place.At(place.Field+".runAfter").Fault(api.ReasonInvalidTemplate,
			fmt.Sprintf("finally step %q cannot wait for others", s.row.Name), "remove runAfter, or finally"))
	}
}

// checkResults follows each $(tasks.STEP.results.NAME) to a declared result.
func (c *composition) checkResults(s *plannedStep) {
	place := c.rowPlace(s)
	bad := func(message, hint string) {
		c.fault(s.row.Name, place.Fault(api.ReasonInvalidPipeline, message, hint))
	}
	for _, ref := range tektonv1.PipelineTaskResultRefs(&s.task) {
		from := c.taskIn[ref.PipelineTask]
		text := fmt.Sprintf("$(tasks.%s.results.%s)", ref.PipelineTask, ref.Result)
		if from == nil {
			if c.broken {
				continue
			}
			bad(fmt.Sprintf("step %q refers to %s, and no enabled step is named %q", s.row.Name, text, ref.PipelineTask),
				"enable that step, or use one of "+strings.Join(sortedKeys(c.taskIn), ", "))
			continue
		}
		i := slices.IndexFunc(from.task.TaskSpec.Results, func(r tektonv1.TaskResult) bool { return r.Name == ref.Result })
		if i < 0 {
			var names []string
			for _, r := range from.task.TaskSpec.Results {
				names = append(names, r.Name)
			}
			hint := fmt.Sprintf("declare it under results: of %s", from.file.doc.from)
			if len(names) > 0 {
				hint += ", or use one of " + strings.Join(names, ", ")
			}
			bad(fmt.Sprintf("step %q refers to %s, and step %q declares no such result", s.row.Name, text, ref.PipelineTask), hint)
			continue
		}
		if result := from.task.TaskSpec.Results[i]; ref.Property != "" {
			if _, ok := result.Properties[ref.Property]; !ok {
				bad(fmt.Sprintf("step %q refers to the key %q of %s, which has none of that name", s.row.Name, ref.Property, text),
					"use one of its properties: "+strings.Join(sortedKeys(result.Properties), ", "))
			}
		}
		if from == s {
			bad(fmt.Sprintf("step %q refers to its own result %s", s.row.Name, text), "refer to a step before it")
		}
	}
	c.checkReferenceNames(s)
}

// checkReferenceNames looks into the values of a task's parameters for
// variables that nobody fills.
func (c *composition) checkReferenceNames(s *plannedStep) {
	texts := mustJSON(s.task.Params) + mustJSON(s.task.When)
	for _, m := range paramReference().FindAllStringSubmatch(texts, -1) {
		name := m[1] + m[2]
		if base, _, _ := strings.Cut(name, "."); c.used[name] || c.used[base] {
			continue
		}
		place := c.rowPlace(s)
		c.fault(s.row.Name, place.Fault(api.ReasonInvalidPipeline,
			fmt.Sprintf("step %q refers to $(params.%s), and the pipeline has no such parameter", s.row.Name, name),
			"use one of "+strings.Join(sortedKeys(c.used), ", ")))
	}
}

// checkTimeout refuses a task that may outlast its pipeline.
func (c *composition) checkTimeout(s *plannedStep, run *tektonv1.PipelineRun) {
	if s.task.Timeout == nil || run.Spec.Timeouts == nil || run.Spec.Timeouts.Pipeline == nil {
		return
	}
	if whole := run.Spec.Timeouts.Pipeline.Duration; s.task.Timeout.Duration > whole {
		place := c.rowPlace(s)
		c.fault(s.row.Name, place.At(place.Field+".timeout").Fault(api.ReasonInvalidPipeline,
			fmt.Sprintf("step %q may take %s, but the pipeline only %s", s.row.Name, s.task.Timeout.Duration, whole),
			"shorten it, or raise spec.timeout or the template's pipeline-timeout"))
	}
}

// checkClaims warns of what Tekton's default coscheduling refuses.
func (c *composition) checkClaims(s *plannedStep, p *tektonv1.Pipeline, run *tektonv1.PipelineRun) {
	claims := map[string]bool{}
	for _, w := range boundOf(s.row.Name, p, run) {
		if w.PersistentVolumeClaim != nil || w.VolumeClaimTemplate != nil {
			claims[w.Name] = true
		}
	}
	if len(claims) > 1 {
		c.warnings = append(c.warnings, fmt.Sprintf("step %q uses %d volumes (%s): Tekton refuses that unless its feature flag coschedule is disabled",
			s.row.Name, len(claims), strings.Join(sortedKeys(claims), ", ")))
	}
}

// boundOf lists what the run binds to the workspaces of a task.
func boundOf(task string, p *tektonv1.Pipeline, run *tektonv1.PipelineRun) []tektonv1.WorkspaceBinding {
	var out []tektonv1.WorkspaceBinding
	for _, t := range append(slices.Clone(p.Spec.Tasks), p.Spec.Finally...) {
		if t.Name != task {
			continue
		}
		for _, w := range t.Workspaces {
			for _, b := range run.Spec.Workspaces {
				if b.Name == w.Workspace {
					out = append(out, b)
				}
			}
		}
	}
	return out
}

// checkRun makes sure that the run gives all that the pipeline declares.
func (c *composition) checkRun(p *tektonv1.Pipeline, run *tektonv1.PipelineRun) {
	for _, param := range p.Spec.Params {
		if param.Default == nil && !slices.ContainsFunc(run.Spec.Params, func(r tektonv1.Param) bool { return r.Name == param.Name }) {
			c.bad(api.ReasonMissingParameters, "", fmt.Sprintf("the run lacks the pipeline's parameter %q", param.Name), "report this as a fault of armature")
		}
	}
	for _, w := range p.Spec.Workspaces {
		if !w.Optional && !slices.ContainsFunc(run.Spec.Workspaces, func(b tektonv1.WorkspaceBinding) bool { return b.Name == w.Name }) {
			c.bad(api.ReasonUnboundWorkspace, "", fmt.Sprintf("the run lacks the pipeline's workspace %q", w.Name), "report this as a fault of armature")
		}
	}
}

// shape is all that judge looks at: the run, with the types of its parameters
// but without their values.
func (c *composition) shape(run *tektonv1.PipelineRun) string {
	kinds := make([]string, 0, len(run.Spec.Params))
	for _, param := range run.Spec.Params {
		kinds = append(kinds, param.Name+" "+string(param.Value.Type))
	}
	bare := run.Spec
	bare.Params, bare.PipelineSpec = nil, nil
	parts := []string{c.texts[1], mustJSON(bare), strings.Join(kinds, ",")}
	if len(c.podOf) > 0 { // the text has other names in its references than judge looks at
		parts = append(parts, mustJSON(c.podOf))
		for _, s := range c.steps {
			parts = append(parts, mustJSON(s.task.Params), mustJSON(s.task.When))
		}
	}
	return fingerprint(parts...)
}

// validate lets Tekton judge the composed objects; true means that nothing is
// wrong. What it says of a task that already has a problem is left out, since it
// would say the same again.
func (c *composition) validate(p *tektonv1.Pipeline, run *tektonv1.PipelineRun) bool {
	faulty := maps.Clone(c.faulty)
	pipeline := p.DeepCopy()
	pipeline.SetDefaults(background())
	c.report(pipeline.Validate(background()), pipeline, faulty)
	if len(c.problems.found) > 0 {
		return false
	}
	checked := run.DeepCopy()
	checked.SetDefaults(background())
	c.report(checked.Validate(background()), pipeline, faulty)
	return len(c.problems.found) == 0
}

// Verdicts remembers what was judged to be right, by content, so that many
// builds of one template cost one validation. The zero value is ready to use, by several
// goroutines at once.
type Verdicts struct {
	mu sync.Mutex
	ok map[string]bool
}

// maxVerdicts bounds the memory; beyond it everything is forgotten once.
const maxVerdicts = 4096

// once calls judge unless it has accepted the same before. Others wait: in a
// burst they mostly want the same verdict.
func (v *Verdicts) once(key string, judge func() bool) {
	if v == nil {
		judge()
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ok[key] || !judge() {
		return
	}
	if v.ok == nil || len(v.ok) >= maxVerdicts {
		v.ok = map[string]bool{}
	}
	v.ok[key] = true
}

var taskPath = krm.Pattern(`\b(tasks|finally)\[(\d+)\]\.?(.*)$`)

// report translates Tekton's paths to where the user wrote it.
func (c *composition) report(found *apis.FieldError, p *tektonv1.Pipeline, faulty map[string]bool) {
	for _, e := range leaves(found) {
		place, task := c.in.Template.doc.place("steps").At(strings.Join(e.Paths, ", ")), ""
		if len(e.Paths) > 0 {
			if m := taskPath().FindStringSubmatch(e.Paths[0]); m != nil {
				list := p.Spec.Tasks
				if m[1] == "finally" {
					list = p.Spec.Finally
				}
				if i, err := strconv.Atoi(m[2]); err == nil && i < len(list) {
					task = list[i].Name
					place = c.rowPlace(c.taskIn[task])
					if inner, ok := strings.CutPrefix(m[3], "taskSpec."); ok {
						place = c.taskIn[task].file.doc.place(inner)
					} else if m[3] != "" {
						place.Field += "." + m[3]
					}
				}
			}
		}
		if faulty[task] || task == "" && len(faulty) > 0 && strings.Contains(e.Message, "couldn't add link") {
			continue
		}
		c.fault(task, place.Fault(api.ReasonInvalidPipeline, sentence(e),
			"Tekton refuses this; change the step or the template there"))
	}
}

// leaves of a joined error.
func leaves(e *apis.FieldError) []*apis.FieldError {
	if e == nil {
		return nil
	}
	return e.WrappedErrors()
}

func sentence(e *apis.FieldError) string {
	text := e.Message
	if e.Details != "" {
		text += " (" + strings.Join(strings.Fields(e.Details), " ") + ")"
	}
	return text
}

// checkTask judges one step by itself: with Tekton's own rules, and for
// variables in places where Tekton does not look.
func checkTask(step *StepFile, problems *findings) {
	bad := func(path, message, hint string) {
		problems.add(step.doc.place(path).Fault(api.ReasonInvalidStep, message, hint))
	}
	task := step.Task.DeepCopy()
	task.SetDefaults(background())
	for _, e := range leaves(task.Validate(background())) {
		path := strings.Join(e.Paths, ", ")
		first := ""
		if len(e.Paths) > 0 {
			first = e.Paths[0]
		}
		problems.add(step.doc.place(first).At(path).Fault(api.ReasonInvalidStep, sentence(e), "Tekton refuses this; change the step there"))
	}
	parts := []struct {
		path string
		text string
	}{
		{"steps", mustJSON(task.Steps)}, {"stepTemplate", mustJSON(task.StepTemplate)}, {"sidecars", mustJSON(task.Sidecars)},
		{"volumes", mustJSON(task.Volumes)}, {"workspaces", mustJSON(task.Workspaces)},
	}
	for _, part := range parts {
		reported := map[string]bool{}
		for _, m := range paramReference().FindAllStringSubmatch(part.text, -1) {
			name := m[1] + m[2]
			if reported[name] || knowsParam(task.Params, name) {
				continue
			}
			reported[name] = true
			bad(part.path, fmt.Sprintf("refers to $(params.%s), which is not declared", name), "declare it under params:")
		}
		for _, m := range workspaceReference().FindAllStringSubmatch(part.text, -1) {
			if !reported["w:"+m[1]] && !slices.ContainsFunc(task.Workspaces, func(w tektonv1.WorkspaceDeclaration) bool { return w.Name == m[1] }) {
				reported["w:"+m[1]] = true
				bad(part.path, fmt.Sprintf("refers to the workspace %q, which is not declared", m[1]), "declare it under workspaces:")
			}
		}
		for _, m := range resultReference().FindAllStringSubmatch(part.text, -1) {
			if !reported["r:"+m[1]] && !slices.ContainsFunc(task.Results, func(r tektonv1.TaskResult) bool { return r.Name == m[1] }) {
				reported["r:"+m[1]] = true
				if !reportedByTekton(problems, m[1]) {
					bad(part.path, fmt.Sprintf("writes the result %q, which is not declared", m[1]), "declare it under results:")
				}
			}
		}
	}
	if emptyControllerImages(task); strings.Contains(mustJSON(task), controllerImage) {
		bad("steps", "refers to "+controllerImage+" in a place that is not the image of a step", "write it as the whole image, or name an image")
	}
}

// reportedByTekton reports whether a result in a script was reported already.
func reportedByTekton(problems *findings, result string) bool {
	return slices.ContainsFunc(problems.found, func(p *krm.Finding) bool { return strings.Contains(p.Message, "results."+result) })
}

var (
	paramReference     = krm.Pattern(`\$\(params(?:\.([_a-zA-Z][_a-zA-Z0-9.-]*)|\[(?:\\"|')([^"'\\]+)(?:\\"|')\])`)
	workspaceReference = krm.Pattern(`\$\(workspaces\.([_a-zA-Z0-9-]+)\.(?:path|bound|claim|volume)\)`)
	resultReference    = krm.Pattern(`\$\(results\.([_a-zA-Z0-9.-]+)\.path\)`)
)

// knowsParam reports whether name, or name without an object's key, is declared.
func knowsParam(params tektonv1.ParamSpecs, name string) bool {
	return slices.ContainsFunc(params, func(p tektonv1.ParamSpec) bool {
		return p.Name == name || (p.Type == tektonv1.ParamTypeObject && strings.HasPrefix(name, p.Name+"."))
	})
}
