package tekton

import (
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/functions/text"
)

// Tekton writes the scripts of a pod to files in an init container, and each of those takes the
// kubelet a second or more. A shell takes its script as an argument just as well.

// shebang of a script that a shell runs, without options.
var shebang = text.Pattern(`^#!(/\S*/(?:sh|bash))\n`)

// maxScriptBytes is far below the 128 KiB that Linux takes as one argument, so that there
// is room for the paths that Tekton puts in.
const maxScriptBytes = 64 * 1024

// InlineScripts passes each script of a task to its shell as an argument, if that has the same
// effect for all of them.
func InlineScripts(task tektonv1.PipelineTask) tektonv1.PipelineTask {
	spec, same := *task.TaskSpec, true
	spec.Steps, spec.Sidecars = slices.Clone(spec.Steps), slices.Clone(spec.Sidecars)
	change := func(script *string, to *[]string, name string) {
		if *script != "" {
			*to = command(*script, name)
			*script, same = "", same && *to != nil
		}
	}
	for i := range spec.Steps {
		change(&spec.Steps[i].Script, &spec.Steps[i].Command, spec.Steps[i].Name)
	}
	for i := range spec.Sidecars {
		change(&spec.Sidecars[i].Script, &spec.Sidecars[i].Command, spec.Sidecars[i].Name)
	}
	if same {
		task.TaskSpec = &spec
	}
	return task
}

// command that runs a script, whose name the shell puts before its messages. It is nil
// for a script that would not be the same as an argument: Kubernetes replaces $$ and the
// $(NAME) of variables there, and what Tekton puts in for a parameter could have those.
func command(script, name string) []string {
	shell := shebang().FindStringSubmatch(script)
	if shell == nil || len(script) > maxScriptBytes || strings.Contains(script, "$$") {
		return nil
	}
	for _, name := range anyVariable().FindAllString(script, -1) {
		if !resultPath().MatchString(name) {
			return nil
		}
	}
	return []string{shell[1], "-c", script, name}
}

var (
	anyVariable = text.Pattern(`\$\([A-Za-z0-9_.-]+\)`)
	// resultPath is the variable for the file of a result, which Tekton replaces.
	resultPath = text.Pattern(`^\$\(results\.[A-Za-z0-9_-]+\.path\)$`)
)
