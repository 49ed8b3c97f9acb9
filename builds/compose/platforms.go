package compose

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/recipe"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/functions/text"
)

// spec.platforms: a step with the parameter platform makes the image of one. For
// several platforms it becomes as many tasks, STEP-OS-ARCHITECTURE, which do not wait
// for each other. Another step that refers to one of its results gets those of all,
// separated by commas, in the order of spec.platforms, and with the parameter
// platforms that order. A step with the parameters platform and image-digest looks at the
// image of each: where it is given the digest of what was pushed as an index, it gets
// that of its platform, as the step that built it reported it and the one that pushed
// it found it.

// PlatformDigests is the result of the step that pushed the platforms: PLATFORM=DIGEST,
// separated by commas.
const PlatformDigests = "PLATFORM_DIGESTS"

// hasOwn reports whether a step has a string parameter of exactly that name.
func (s step) hasOwn(parameter string) bool {
	return slices.ContainsFunc(s.file.Task.Params, func(p tektonv1.ParamSpec) bool {
		return p.Name == parameter && (p.Type == "" || p.Type == tektonv1.ParamTypeString)
	})
}

// makes reports whether a step makes an image.
func (s step) makes() bool {
	return tekton.Reports(&s.file.Task, "IMAGE_DIGEST") ||
		tekton.Reports(&s.file.Task, tekton.LayoutDigest)
}

// looks reports whether a step looks at the image of a platform.
func (s step) looks() bool {
	return s.hasOwn(recipe.Platform) && !s.makes() &&
		recipe.Declares(s.file.Task.Params, recipe.ImageDigest)
}

// given is the text that a step's parameter gets from the composition.
func (s step) given(parameter string) string {
	for _, p := range s.task.Params {
		if p.Name == parameter {
			return p.Value.StringVal
		}
	}
	return ""
}

// ofPlatform is the reference to the digest of a platform's image, where a step that
// looks at it is given that of an index that an earlier step, pushed, made; or the one that it
// is given, if it is of a step of each platform. It is "" for any other digest.
func ofPlatform(steps []step, s step) (reference, pushed string) {
	eachOwn := func(reference string) bool {
		m := anyTaskResult().FindStringSubmatch(reference)
		if m == nil || m[0] != reference {
			return false
		}
		from := named(steps, m[1])
		return from != nil && from.hasOwn(recipe.Platform) && from.makes()
	}
	digest := s.given(recipe.ImageDigest)
	if eachOwn(digest) {
		return digest, ""
	}
	for _, push := range steps {
		if push.hasOwn(recipe.Platforms) && !push.hasOwn(recipe.Platform) &&
			digest == "$(tasks."+push.row.Name+".results.IMAGE_DIGEST)" &&
			eachOwn(push.given(tekton.LayoutDigest)) {
			return push.given(tekton.LayoutDigest), push.row.Name
		}
	}
	return "", ""
}

// nativeNodes reports whether each platform is built on nodes of its architecture.
func nativeNodes(b *api.AgentBuild) bool { return b.Spec.PlatformNodes != api.PlatformNodesAny }

func architecture(platform string) string {
	if parts := strings.Split(platform, "/"); len(parts) > 1 {
		return parts[1]
	}
	return platform
}

// checkPlatforms refuses platforms that are not built, and steps that would see one of
// several.
func checkPlatforms(in Input, steps []step, broken bool) (warnings []string, found faults) {
	spec := in.Build.Spec
	bad := func(field, message, hint string) {
		found.bad(in, api.ReasonInvalidBuild, field, message, hint)
	}
	for i, platform := range spec.Platforms {
		field := fmt.Sprintf("spec.platforms[%d]", i)
		switch {
		case !slices.Contains(api.Platforms, platform):
			bad(field, fmt.Sprintf("%q is not a platform that is built", platform),
				"use one of "+strings.Join(api.Platforms, ", "))
		case slices.Contains(spec.Platforms[:i], platform):
			bad(field, fmt.Sprintf("%q occurs twice", platform), "keep one of the two")
		}
	}
	switch nodes := spec.PlatformNodes; {
	case nodes != "" && nodes != api.PlatformNodesNative && nodes != api.PlatformNodesAny:
		bad("spec.platformNodes", fmt.Sprintf("%q is unknown", nodes), "use Native or Any")
	case nodes != "" && len(spec.Platforms) == 0:
		bad("spec.platformNodes", "has no effect without platforms",
			"name them in spec.platforms, or remove it")
	case spec.Platforms != nil && len(spec.Platforms) == 0:
		bad("spec.platforms", "names no platform", "name one, or remove it")
	}
	if broken {
		return nil, found
	}
	for _, s := range steps {
		for _, name := range []string{recipe.Platform, recipe.Platforms} {
			if given, field := fromBuild(in, s, name); given != nil && s.hasOwn(name) &&
				(len(spec.Platforms) > 0 || s.makes() || s.looks()) {
				bad(field, fmt.Sprintf("the %s of step %q comes from spec.platforms", name,
					s.row.Name), "remove it, and set spec.platforms")
			}
		}
	}
	if len(spec.Platforms) > 0 {
		found = append(found, checkPlatformSteps(in, steps)...)
	}
	if len(spec.Platforms) > 0 && nativeNodes(in.Build) {
		var faults faults
		warnings, faults = checkPlatformNodes(in)
		found = append(found, faults...)
	}
	return warnings, found
}

// checkPlatformSteps makes sure that steps which make an image make it for a platform, and
// that steps which read the image of several platforms read all of them.
func checkPlatformSteps(in Input, steps []step) (found faults) {
	const field = "spec.platforms"
	builder := "use builder: buildkit, or remove spec.platforms"
	if recipe.ListsAll(in.Build) {
		builder = "list a step with the parameter platform, such as buildkit-build-step, or " +
			"remove spec.platforms"
	}
	bad := func(message, hint string) {
		found.bad(in, api.ReasonInvalidBuild, field, message, hint)
	}
	several := len(in.Build.Spec.Platforms) > 1
	one, refused := false, false
	for _, s := range steps {
		reference, _ := ofPlatform(steps, s)
		switch {
		case s.looks() && (!several || reference != ""):
		case s.hasOwn(recipe.Platform) && !s.looks():
			one = true
		case s.hasOwn(recipe.Platforms):
		case s.makes():
			refused = true
			bad(fmt.Sprintf("step %q builds for the platform of its node alone", s.row.Name), builder)
		case several && recipe.Declares(s.task.TaskSpec.Params, recipe.ImageDigest):
			bad(
				fmt.Sprintf("step %q takes the digest of one image, and would check only one of "+
					"%d platforms", s.row.Name, len(in.Build.Spec.Platforms)),
				"give it the parameter platform and the IMAGE_DIGEST of the step that pushes, "+
					"name one platform, or use a mode without that step, such as dev")
		}
	}
	if !one && !refused && len(steps) > 0 {
		bad("no step of this pipeline has a parameter for the platform", builder)
	}
	return found
}

// checkPlatformNodes refuses what could never be scheduled: Tekton's pods wait for
// such a node until the run's timeout.
func checkPlatformNodes(in Input) (warnings []string, found faults) {
	spec := in.Build.Spec
	architectures := map[string]bool{}
	for i, platform := range spec.Platforms {
		arch := architecture(platform)
		architectures[arch] = true
		if p := spec.Pod; p != nil && p.NodeSelector[corev1.LabelArchStable] != "" &&
			p.NodeSelector[corev1.LabelArchStable] != arch {
			found.bad(in, api.ReasonInvalidBuild, fmt.Sprintf("spec.platforms[%d]", i),
				fmt.Sprintf("%s is built on nodes of the architecture %s, and "+
					"spec.pod.nodeSelector asks for %s", platform, arch,
					p.NodeSelector[corev1.LabelArchStable]),
				fmt.Sprintf("remove %s from spec.pod.nodeSelector, or set spec.platformNodes: Any",
					corev1.LabelArchStable))
		}
	}
	bound := spec.Pipeline != nil &&
		slices.ContainsFunc(spec.Pipeline.Workspaces, func(w api.WorkspaceBinding) bool {
			return isShared(w.Name)
		})
	switch {
	case len(architectures) < 2:
	case !bound && (spec.Workspace == nil || spec.Workspace.AccessMode != corev1.ReadWriteMany):
		found.bad(in, api.ReasonInvalidBuild, "spec.workspace.accessMode",
			fmt.Sprintf("%d architectures are built on nodes of their own, and the steps share a "+
				"volume that one node mounts", len(architectures)),
			"set it to ReadWriteMany, where Tekton's feature flag coschedule is disabled, or set "+
				"spec.platformNodes: Any")
	default:
		warnings = append(warnings,
			fmt.Sprintf("%s: spec.platforms: tasks on nodes of %d architectures share a volume: "+
				"Tekton refuses that unless its feature flag coschedule is disabled",
				in.Place, len(architectures)))
	}
	return warnings, found
}

// fanOut makes a task for each platform of each step that makes the image of one.
func fanOut(platforms []string, steps []step) []step {
	tasks := map[string][]string{}
	for _, s := range steps {
		if !s.hasOwn(recipe.Platform) || len(platforms) == 0 {
			continue
		}
		for _, platform := range platforms {
			tasks[s.row.Name] = append(tasks[s.row.Name],
				s.row.Name+"-"+strings.ReplaceAll(platform, "/", "-"))
		}
	}
	// of is what a step became: all of its tasks.
	of := func(name string) []string {
		if names := tasks[name]; names != nil {
			return names
		}
		return []string{name}
	}
	var all []step
	for _, s := range steps {
		switch names := tasks[s.row.Name]; {
		case len(platforms) == 1 || names == nil && len(tasks) == 0:
			if names != nil {
				s.platform = platforms[0]
			}
			all = append(all, s)
		case names == nil:
			s.task = tekton.Retarget(s.task, of)
			all = append(all, s)
		default:
			looking := lookingAtEach(steps, s)
			for i, name := range names {
				samePlatform := func(task string) []string {
					if names := tasks[task]; names != nil {
						return names[i : i+1]
					}
					return []string{task}
				}
				one, value := s, *tektonv1.NewStructuredValues(platforms[i])
				one.platform, one.row.Name, one.row.PodOf = platforms[i], name, ""
				one.known = maps.Clone(s.known)
				one.known[recipe.Platform] = value
				one.task = tekton.Retarget(looking, samePlatform)
				one.task.Name, one.task.Params = name, append(one.task.Params,
					tektonv1.Param{Name: recipe.Platform, Value: value})
				all = append(all, one)
			}
		}
	}
	return all
}

// lookingAtEach is the task of a step that looks at the image of each platform, with
// the digest of one of them before it is spread.
func lookingAtEach(steps []step, s step) tektonv1.PipelineTask {
	reference, pushed := ofPlatform(steps, s)
	if !s.looks() || pushed == "" {
		return s.task
	}
	task := *s.task.DeepCopy()
	for i := range task.Params {
		if task.Params[i].Name == recipe.ImageDigest {
			task.Params[i].Value = *tektonv1.NewStructuredValues(reference)
		}
	}
	if !slices.Contains(task.RunAfter, pushed) {
		task.RunAfter = append(task.RunAfter, pushed)
	}
	return task
}

var anyTaskResult = text.Pattern(`\$\(tasks\.([a-z0-9-]+)\.results[.\[][^()]+\)`)

// nodesOf a platform, among those that selector names already.
func nodesOf(platform string, selector map[string]string) map[string]string {
	out := map[string]string{corev1.LabelArchStable: architecture(platform)}
	maps.Copy(out, selector)
	return out
}
