package tekton

import (
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/functions/text"
)

// Tekton writes the scripts of a pod to files in an init container, which takes the kubelet a
// second or more. A shell also accepts its script as an argument.

// shebang matches the first line of a script that a shell runs without options.
var shebang = text.Pattern(`^#!(/\S*/(?:sh|bash))\n`)

// maxScriptBytes is far below the 128 KiB that Linux accepts as one argument, because Tekton
// inserts paths.
const maxScriptBytes = 64 * 1024

// InlineScripts returns a task whose scripts are arguments of their shells, or the task itself if
// that could change the effect of a script.
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

// command returns a command that runs a script; the shell prefixes its messages with the name. It
// returns nil if the script could differ as an argument: there, Kubernetes replaces $$ and $(NAME)
// of variables, which a parameter's value may contain.
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
	// anyVariable matches variables of Kubernetes and of Tekton, such as $(params["NAME"]).
	anyVariable = text.Pattern(`\$\(([A-Za-z0-9_.-]+|params[.\[][^)]*)\)`)
	// resultPath matches the variable for the file of a result, which Tekton replaces.
	resultPath = text.Pattern(`^\$\(results\.[A-Za-z0-9_-]+\.path\)$`)
)
