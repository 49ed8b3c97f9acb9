package compose

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"knative.dev/pkg/apis"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/functions/text"
)

// maxRunBytes is the size of a run that Tekton handles safely: its controller copies the spec into
// the status.
const maxRunBytes = 700 * 1024

func background() context.Context { return context.Background() }

// check finds problems that Tekton's Validate misses, then calls Validate. It skips both for a
// pipeline and a shape of the run that were found valid before.
func check(c *composer, o *Output) {
	c.Verdicts.once(shape(c, o), func() bool {
		checkSteps(c, o.Run)
		if len(c.steps) == 0 || c.broken || c.Template.Broken {
			return false
		}
		validate(c, o)
		return c.whole()
	})
	if c.size > maxRunBytes {
		c.fault("", c.Place, api.ReasonPipelineTooLarge,
			"move long scripts into the step's image or into a mounted ConfigMap",
			"the composed PipelineRun has %d KiB, and Tekton handles at most %d KiB", c.size/1024,
			maxRunBytes/1024)
	}
}

// checkSteps refuses steps that wait for or refer to missing steps, results or parameters, and
// steps that may outlast their pipeline.
func checkSteps(c *composer, run *tektonv1.PipelineRun) {
	used := c.used()
	for _, s := range c.steps {
		bad := func(field, reason, hint, format string, args ...any) {
			c.fault(s.row.Name, s.at(field), reason, hint, format, args...)
		}
		for _, name := range s.task.RunAfter {
			if c.named(name) == nil {
				bad(".runAfter", api.ReasonInvalidTemplate, c.useOne(),
					"step %q waits for step %q, which does not exist", s.row.Name, name)
			}
		}
		if s.row.Finally && s.row.RunAfter != nil {
			bad(".runAfter", api.ReasonInvalidTemplate, "remove runAfter, or finally",
				"finally step %q cannot wait for others", s.row.Name)
		}
		checkResults(c, s)
		for _, name := range referredTo(s.task) {
			if base, _, _ := strings.Cut(name, "."); !used[name] && !used[base] {
				hint := "use one of " + strings.Join(sortedKeys(used), ", ")
				bad("", api.ReasonInvalidPipeline, hint,
					"step %q refers to $(params.%s), and the pipeline has no such parameter",
					s.row.Name, name)
			}
		}
		if limits := run.Spec.Timeouts; s.task.Timeout != nil && limits != nil &&
			limits.Pipeline != nil && s.task.Timeout.Duration > limits.Pipeline.Duration {
			bad(".timeout", api.ReasonInvalidPipeline,
				"shorten it, or raise spec.timeout or the template's pipeline-timeout",
				"step %q may take %s, but the pipeline only %s", s.row.Name,
				s.task.Timeout.Duration, limits.Pipeline.Duration)
		}
	}
}

// checkResults compares each $(tasks.STEP.results.NAME) of a step with the declared results.
func checkResults(c *composer, s step) {
	bad := func(hint, format string, args ...any) {
		c.fault(s.row.Name, s.place, api.ReasonInvalidPipeline, hint, format, args...)
	}
	for _, ref := range tektonv1.PipelineTaskResultRefs(&s.task) {
		from := c.named(ref.PipelineTask)
		text := fmt.Sprintf("$(tasks.%s.results.%s)", ref.PipelineTask, ref.Result)
		if from == nil {
			if !c.broken {
				bad("enable that step, or "+c.useOne(), "step %q refers to %s, and no enabled "+
					"step is named %q", s.row.Name, text, ref.PipelineTask)
			}
			continue
		}
		results := map[string]tektonv1.TaskResult{}
		var names []string
		for _, r := range from.task.TaskSpec.Results {
			results[r.Name], names = r, append(names, r.Name)
		}
		result, ok := results[ref.Result]
		if !ok {
			hint := fmt.Sprintf("declare it under results: of %s", from.file.Doc.From)
			if len(names) > 0 {
				hint += ", or use one of " + strings.Join(names, ", ")
			}
			bad(hint, "step %q refers to %s, and step %q declares no such result", s.row.Name, text,
				ref.PipelineTask)
			continue
		}
		if _, ok := result.Properties[ref.Property]; ref.Property != "" && !ok {
			bad("use one of its properties: "+strings.Join(sortedKeys(result.Properties), ", "),
				"step %q refers to the key %q of %s, which has none of that name", s.row.Name,
				ref.Property, text)
		}
		if from.row.Name == s.row.Name {
			bad("refer to a step before it", "step %q refers to its own result %s", s.row.Name,
				text)
		}
	}
}

// warnOfClaims adds a warning for each task with several volumes, which Tekton's default
// coscheduling refuses.
func warnOfClaims(c *composer, o *Output) {
	volumes := map[string]bool{}
	for _, b := range o.Run.Spec.Workspaces {
		volumes[b.Name] = b.PersistentVolumeClaim != nil || b.VolumeClaimTemplate != nil
	}
	for task := range tekton.Tasks(&o.Pipeline.Spec) {
		claims := map[string]bool{}
		for _, w := range task.Workspaces {
			if volumes[w.Workspace] {
				claims[w.Workspace] = true
			}
		}
		if len(claims) > 1 {
			c.warn("step %q uses %d volumes (%s): Tekton refuses that unless its feature flag "+
				"coschedule is disabled", task.Name, len(claims),
				strings.Join(sortedKeys(claims), ", "))
		}
	}
}

// shape returns a hash of everything that validation depends on: the run, with the types of its
// parameters but without their values.
func shape(c *composer, o *Output) string {
	var kinds []string
	for _, param := range o.Run.Spec.Params {
		kinds = append(kinds, param.Name+" "+string(param.Value.Type))
	}
	bare := o.Run.Spec
	bare.Params, bare.PipelineSpec = nil, nil
	parts := []string{c.text, tekton.JSON(bare), strings.Join(kinds, ",")}
	if len(c.podOf) > 0 { // the text refers to tasks, and checkSteps judges the steps
		parts = append(parts, tekton.JSON(c.podOf))
		for _, s := range c.steps {
			parts = append(parts, tekton.JSON(s.task.Params), tekton.JSON(s.task.When))
		}
	}
	return fingerprint(parts...)
}

// validate calls Tekton's validation for the composed objects. It drops errors about tasks that
// already have findings, since they repeat those.
func validate(c *composer, o *Output) {
	pipeline := o.Pipeline.DeepCopy()
	pipeline.SetDefaults(background())
	translate(c, pipeline.Validate(background()), pipeline)
	if len(c.found) > 0 {
		return
	}
	run := o.Run.DeepCopy()
	run.SetDefaults(background())
	translate(c, run.Validate(background()), pipeline)
}

// Verdicts caches, by content, pipelines that were found valid, so that many builds of one template
// cost one validation. The zero value is ready to use by concurrent goroutines.
type Verdicts struct {
	mu sync.Mutex
	ok map[string]bool
}

// maxVerdicts bounds the cache; a full cache is cleared.
const maxVerdicts = 4096

// once calls judge unless judge accepted the same key before. Concurrent callers wait: in a burst
// they mostly ask for the same key.
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

// translate adds Tekton's errors as findings at the places of the template and the steps.
func translate(c *composer, refused *apis.FieldError, p *tektonv1.Pipeline) {
	faulty := maps.Clone(c.faulty)
	delete(faulty, "")
	for _, e := range refused.WrappedErrors() {
		place, task := c.Template.Doc.At("steps").At(strings.Join(e.Paths, ", ")), ""
		if m := taskPath().FindStringSubmatch(append(e.Paths, "")[0]); m != nil {
			list := p.Spec.Tasks
			if m[1] == "finally" {
				list = p.Spec.Finally
			}
			if i, err := strconv.Atoi(m[2]); err == nil && i < len(list) {
				task = list[i].Name
				s := c.named(task)
				place = s.place
				if inner, ok := strings.CutPrefix(m[3], "taskSpec."); ok {
					place = s.file.Doc.At(inner)
				} else if m[3] != "" {
					place = s.at("." + m[3])
				}
			}
		}
		if faulty[task] ||
			task == "" && len(faulty) > 0 && strings.Contains(e.Message, "couldn't add link") {
			continue
		}
		c.fault(task, place, api.ReasonInvalidPipeline,
			"Tekton refuses this; change the step or the template there", "%s", templates.Sentence(e))
	}
}
