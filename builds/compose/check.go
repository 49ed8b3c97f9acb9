package compose

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"knative.dev/pkg/apis"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/recipe"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/functions/text"
)

// maxRunBytes is the largest run that Tekton survives with room to spare: its
// controller copies the spec into the status.
const maxRunBytes = 700 * 1024

func background() context.Context { return context.Background() }

// check looks for what Tekton's Validate misses, then lets Tekton judge. What
// was judged before, by the pipeline and the shape of the run, is not again. Before is what was
// found until now.
func check(in Input, spec derived, steps []step, o ordered, podOf map[string]string, before faults,
	broken bool) (found faults) {
	in.Verdicts.once(shape(steps, o, podOf), func() bool {
		found = checkSteps(spec, steps, o.run, broken)
		if len(steps) > 0 && !broken && !in.Template.Broken {
			found = append(found, validate(in, steps, o, slices.Concat(before, found))...)
			return len(before)+len(found) == 0
		}
		return false
	})
	size := 0
	for _, text := range o.texts {
		size += len(text)
	}
	if size > maxRunBytes {
		found.add(in.Place.Fault(api.ReasonPipelineTooLarge,
			fmt.Sprintf("the composed PipelineRun has %d KiB, and Tekton handles at most %d KiB",
				size/1024, maxRunBytes/1024),
			"move long scripts into the step's image or into a mounted ConfigMap"))
	}
	return found
}

// checkSteps refuses steps that wait for, or refer to, what does not exist, and those that may
// outlast their pipeline.
func checkSteps(spec derived, steps []step, run *tektonv1.PipelineRun, broken bool) (found faults) {
	used := usedOf(spec, steps)
	for _, s := range steps {
		for _, name := range s.task.RunAfter {
			if named(steps, name) == nil {
				found.of(s.row.Name,
					s.place.At(s.place.Field+".runAfter").Fault(api.ReasonInvalidTemplate,
						fmt.Sprintf("step %q waits for step %q, which does not exist", s.row.Name,
							name),
						"use one of "+strings.Join(stepNames(steps), ", ")))
			}
		}
		if s.row.Finally && s.row.RunAfter != nil {
			found.of(s.row.Name,
				s.place.At(s.place.Field+".runAfter").Fault(api.ReasonInvalidTemplate,
					fmt.Sprintf("finally step %q cannot wait for others", s.row.Name),
					"remove runAfter, or finally"))
		}
		found = append(found, checkResults(steps, s, broken)...)
		for _, name := range referredTo(s.task) {
			if base, _, _ := strings.Cut(name, "."); !used[name] && !used[base] {
				found.of(s.row.Name, s.place.Fault(api.ReasonInvalidPipeline,
					fmt.Sprintf(
						"step %q refers to $(params.%s), and the pipeline has no such parameter",
						s.row.Name, name),
					"use one of "+strings.Join(sortedKeys(used), ", ")))
			}
		}
		if limits := run.Spec.Timeouts; s.task.Timeout != nil && limits != nil &&
			limits.Pipeline != nil && s.task.Timeout.Duration > limits.Pipeline.Duration {
			found.of(s.row.Name,
				s.place.At(s.place.Field+".timeout").Fault(api.ReasonInvalidPipeline,
					fmt.Sprintf("step %q may take %s, but the pipeline only %s", s.row.Name,
						s.task.Timeout.Duration, limits.Pipeline.Duration),
					"shorten it, or raise spec.timeout or the template's pipeline-timeout"))
		}
	}
	return found
}

// checkResults follows each $(tasks.STEP.results.NAME) of a step to a declared result.
func checkResults(steps []step, s step, broken bool) (found faults) {
	bad := func(message, hint string) {
		found.of(s.row.Name, s.place.Fault(api.ReasonInvalidPipeline, message, hint))
	}
	for _, ref := range tektonv1.PipelineTaskResultRefs(&s.task) {
		from := named(steps, ref.PipelineTask)
		text := fmt.Sprintf("$(tasks.%s.results.%s)", ref.PipelineTask, ref.Result)
		if from == nil && broken {
			continue
		}
		if from == nil {
			bad(fmt.Sprintf("step %q refers to %s, and no enabled step is named %q", s.row.Name,
				text, ref.PipelineTask),
				"enable that step, or use one of "+strings.Join(stepNames(steps), ", "))
			continue
		}
		results := from.task.TaskSpec.Results
		i := slices.IndexFunc(results, func(r tektonv1.TaskResult) bool {
			return r.Name == ref.Result
		})
		if i < 0 {
			var names []string
			for _, r := range results {
				names = append(names, r.Name)
			}
			hint := fmt.Sprintf("declare it under results: of %s", from.file.Doc.From)
			if len(names) > 0 {
				hint += ", or use one of " + strings.Join(names, ", ")
			}
			bad(fmt.Sprintf("step %q refers to %s, and step %q declares no such result", s.row.Name,
				text, ref.PipelineTask), hint)
			continue
		}
		if _, ok := results[i].Properties[ref.Property]; ref.Property != "" && !ok {
			bad(fmt.Sprintf("step %q refers to the key %q of %s, which has none of that name",
				s.row.Name, ref.Property, text),
				"use one of its properties: "+strings.Join(sortedKeys(results[i].Properties), ", "))
		}
		if from.row.Name == s.row.Name {
			bad(fmt.Sprintf("step %q refers to its own result %s", s.row.Name, text),
				"refer to a step before it")
		}
	}
	return found
}

// warnOfClaims that Tekton's default coscheduling refuses.
func warnOfClaims(steps []step, o ordered) (warnings []string) {
	volumes := map[string]bool{}
	for _, b := range o.run.Spec.Workspaces {
		volumes[b.Name] = b.PersistentVolumeClaim != nil || b.VolumeClaimTemplate != nil
	}
	for _, s := range steps {
		claims := map[string]bool{}
		for task := range tekton.Tasks(&o.pipeline.Spec) {
			for _, w := range task.Workspaces {
				if task.Name == s.row.Name && volumes[w.Workspace] {
					claims[w.Workspace] = true
				}
			}
		}
		if len(claims) > 1 {
			warnings = append(warnings,
				fmt.Sprintf("step %q uses %d volumes (%s): Tekton refuses that unless its "+
					"feature flag coschedule is disabled",
					s.row.Name, len(claims), strings.Join(sortedKeys(claims), ", ")))
		}
	}
	return warnings
}

// shape is all that is judged once: the run, with the types of its parameters
// but without their values.
func shape(steps []step, o ordered, podOf map[string]string) string {
	kinds := make([]string, 0, len(o.run.Spec.Params))
	for _, param := range o.run.Spec.Params {
		kinds = append(kinds, param.Name+" "+string(param.Value.Type))
	}
	bare := o.run.Spec
	bare.Params, bare.PipelineSpec = nil, nil
	parts := []string{o.texts[1], tekton.JSON(bare), strings.Join(kinds, ",")}
	if len(podOf) > 0 { // the text has other names in its references than are judged
		parts = append(parts, tekton.JSON(podOf))
		for _, s := range steps {
			parts = append(parts, tekton.JSON(s.task.Params), tekton.JSON(s.task.When))
		}
	}
	return fingerprint(parts...)
}

// validate lets Tekton judge the composed objects. What it says of a task that already has a
// problem is left out, since it would say the same again.
func validate(in Input, steps []step, o ordered, before faults) (found faults) {
	faulty := map[string]bool{}
	for _, one := range before {
		if one.task != "" {
			faulty[one.task] = true
		}
	}
	pipeline := o.pipeline.DeepCopy()
	pipeline.SetDefaults(background())
	found = translated(in, steps, pipeline.Validate(background()), pipeline, faulty)
	if len(before)+len(found) > 0 {
		return found
	}
	run := o.run.DeepCopy()
	run.SetDefaults(background())
	return translated(in, steps, run.Validate(background()), pipeline, faulty)
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

var taskPath = text.Pattern(`\b(tasks|finally)\[(\d+)\]\.?(.*)$`)

// translated are Tekton's findings with the places where the user wrote it.
func translated(in Input, steps []step, refused *apis.FieldError, p *tektonv1.Pipeline,
	faulty map[string]bool) (found faults) {
	for _, e := range refused.WrappedErrors() {
		place, task := in.Template.Doc.At("steps").At(strings.Join(e.Paths, ", ")), ""
		if len(e.Paths) > 0 {
			if m := taskPath().FindStringSubmatch(e.Paths[0]); m != nil {
				list := p.Spec.Tasks
				if m[1] == "finally" {
					list = p.Spec.Finally
				}
				if i, err := strconv.Atoi(m[2]); err == nil && i < len(list) {
					task = list[i].Name
					s := named(steps, task)
					place = s.place
					if inner, ok := strings.CutPrefix(m[3], "taskSpec."); ok {
						place = s.file.Doc.At(inner)
					} else if m[3] != "" {
						place.Field += "." + m[3]
					}
				}
			}
		}
		if faulty[task] ||
			task == "" && len(faulty) > 0 && strings.Contains(e.Message, "couldn't add link") {
			continue
		}
		found.of(task, place.Fault(api.ReasonInvalidPipeline, recipe.Sentence(e),
			"Tekton refuses this; change the step or the template there"))
	}
	return found
}
