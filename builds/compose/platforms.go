package compose

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tektoncd/pipeline/pkg/apis/pipeline/pod"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/krm"
)

// spec.platforms: a step with the parameter platform makes the image of one. For
// several platforms it becomes as many tasks, STEP-OS-ARCHITECTURE, which do not wait
// for each other. Another step that refers to one of its results gets those of all,
// separated by commas, in the order of spec.platforms, and with the parameter
// platforms that order. A step with the parameters platform and image-digest looks at the
// image of each: where it is given the digest of what was pushed as an index, it gets
// that of its platform, as the step that built it reported it and the one that pushed
// it found it.

// The parameters by which steps take spec.platforms, and the result of the step that
// pushed them: PLATFORM=DIGEST, separated by commas.
const (
	PlatformParameter  = "platform"
	platformsParameter = "platforms"
	PlatformDigests    = "PLATFORM_DIGESTS"
)

// digestParameter is the parameter of steps that look at an image.
const digestParameter = "image-digest"

// hasOwn reports whether a step has a string parameter of exactly that name.
func (s *plannedStep) hasOwn(parameter string) bool {
	return slices.ContainsFunc(s.file.Task.Params, func(p tektonv1.ParamSpec) bool {
		return p.Name == parameter && (p.Type == "" || p.Type == tektonv1.ParamTypeString)
	})
}

// reports whether a step has a result of that name.
func (s *plannedStep) reports(result string) bool {
	return slices.ContainsFunc(s.file.Task.Results, func(r tektonv1.TaskResult) bool { return r.Name == result })
}

// makes reports whether a step makes an image.
func (s *plannedStep) makes() bool { return s.reports("IMAGE_DIGEST") || s.reports(layoutDigest) }

// looks reports whether a step looks at the image of a platform.
func (s *plannedStep) looks() bool {
	return s.hasOwn(PlatformParameter) && !s.makes() && declares(s.file.Task.Params, digestParameter)
}

// given is the text that a step's parameter gets from the composition.
func (s *plannedStep) given(parameter string) string {
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
func (c *composition) ofPlatform(s *plannedStep) (reference, pushed string) {
	eachOwn := func(reference string) bool {
		m := anyTaskResult().FindStringSubmatch(reference)
		if m == nil || m[0] != reference {
			return false
		}
		from := c.taskIn[m[1]]
		return from != nil && from.hasOwn(PlatformParameter) && from.makes()
	}
	digest := s.given(digestParameter)
	if eachOwn(digest) {
		return digest, ""
	}
	for _, push := range c.steps {
		if push.hasOwn(platformsParameter) && !push.hasOwn(PlatformParameter) && digest == "$(tasks."+push.row.Name+".results.IMAGE_DIGEST)" && eachOwn(push.given(layoutDigest)) {
			return push.given(layoutDigest), push.row.Name
		}
	}
	return "", ""
}

// nativeNodes reports whether each platform is built on nodes of its architecture.
func (c *composition) nativeNodes() bool {
	return c.in.Build.Spec.PlatformNodes != api.PlatformNodesAny
}

func architecture(platform string) string {
	if parts := strings.Split(platform, "/"); len(parts) > 1 {
		return parts[1]
	}
	return platform
}

// checkPlatforms refuses platforms that are not built, and steps that would see one of
// several.
func (c *composition) checkPlatforms() {
	spec := c.in.Build.Spec
	bad := func(field, message, hint string) { c.bad(api.ReasonInvalidBuild, field, message, hint) }
	for i, platform := range spec.Platforms {
		field := fmt.Sprintf("spec.platforms[%d]", i)
		switch {
		case !slices.Contains(api.Platforms, platform):
			bad(field, fmt.Sprintf("%q is not a platform that is built", platform), "use one of "+strings.Join(api.Platforms, ", "))
		case slices.Contains(spec.Platforms[:i], platform):
			bad(field, fmt.Sprintf("%q occurs twice", platform), "keep one of the two")
		}
	}
	switch nodes := spec.PlatformNodes; {
	case nodes != "" && nodes != api.PlatformNodesNative && nodes != api.PlatformNodesAny:
		bad("spec.platformNodes", fmt.Sprintf("%q is unknown", nodes), "use Native or Any")
	case nodes != "" && len(spec.Platforms) == 0:
		bad("spec.platformNodes", "has no effect without platforms", "name them in spec.platforms, or remove it")
	case spec.Platforms != nil && len(spec.Platforms) == 0:
		bad("spec.platforms", "names no platform", "name one, or remove it")
	}
	if c.broken {
		return
	}
	for _, s := range c.steps {
		for _, name := range []string{PlatformParameter, platformsParameter} {
			if given, field := c.fromBuild(s, name); given != nil && s.hasOwn(name) && (len(spec.Platforms) > 0 || s.makes() || s.looks()) {
				bad(field, fmt.Sprintf("the %s of step %q comes from spec.platforms", name, s.row.Name), "remove it, and set spec.platforms")
			}
		}
	}
	if len(spec.Platforms) > 0 {
		c.checkPlatformSteps()
		c.checkPlatformNodes()
	}
}

// checkPlatformSteps makes sure that what makes an image makes that of a platform, and
// that what looks at the image of several platforms looks at all.
func (c *composition) checkPlatformSteps() {
	const field = "spec.platforms"
	builder := "use builder: buildkit, or remove spec.platforms"
	if listsAll(c.in.Build) {
		builder = "list a step with the parameter platform, such as buildkit-build-step, or remove spec.platforms"
	}
	bad := func(message, hint string) { c.bad(api.ReasonInvalidBuild, field, message, hint) }
	several := len(c.in.Build.Spec.Platforms) > 1
	one, refused := false, false
	for _, s := range c.steps {
		reference, _ := c.ofPlatform(s)
		switch {
		case s.looks() && (!several || reference != ""):
		case s.hasOwn(PlatformParameter) && !s.looks():
			one = true
		case s.hasOwn(platformsParameter):
		case s.makes():
			refused = true
			bad(fmt.Sprintf("step %q builds for the platform of its node alone", s.row.Name), builder)
		case several && declares(s.task.TaskSpec.Params, digestParameter):
			bad(fmt.Sprintf("step %q takes the digest of one image, and would look at one of %d platforms", s.row.Name, len(c.in.Build.Spec.Platforms)),
				"give it the parameter platform and the IMAGE_DIGEST of the step that pushes, name one platform, or use a mode without that step, such as dev")
		}
	}
	if !one && !refused && len(c.steps) > 0 {
		bad("no step of this pipeline builds for a platform that it is given", builder)
	}
}

// checkPlatformNodes refuses what could never be scheduled: Tekton's pods wait for
// such a node until the run's timeout.
func (c *composition) checkPlatformNodes() {
	spec := c.in.Build.Spec
	if !c.nativeNodes() {
		return
	}
	architectures := map[string]bool{}
	for i, platform := range spec.Platforms {
		arch := architecture(platform)
		architectures[arch] = true
		if p := spec.Pod; p != nil && p.NodeSelector[corev1.LabelArchStable] != "" && p.NodeSelector[corev1.LabelArchStable] != arch {
			c.bad(api.ReasonInvalidBuild, fmt.Sprintf("spec.platforms[%d]", i),
				fmt.Sprintf("%s is built on nodes of the architecture %s, and spec.pod.nodeSelector asks for %s", platform, arch, p.NodeSelector[corev1.LabelArchStable]),
				fmt.Sprintf("remove %s from spec.pod.nodeSelector, or set spec.platformNodes: Any", corev1.LabelArchStable))
		}
	}
	bound := spec.Pipeline != nil && slices.ContainsFunc(spec.Pipeline.Workspaces, func(w api.WorkspaceBinding) bool {
		return w.Name == sharedWorkspace || workspaceAliases[w.Name] == sharedWorkspace
	})
	switch {
	case len(architectures) < 2:
	case !bound && (spec.Workspace == nil || spec.Workspace.AccessMode != corev1.ReadWriteMany):
		c.bad(api.ReasonInvalidBuild, "spec.workspace.accessMode",
			fmt.Sprintf("%d architectures are built on nodes of their own, and the steps share a volume that one node mounts", len(architectures)),
			"set it to ReadWriteMany, where Tekton's feature flag coschedule is disabled, or set spec.platformNodes: Any")
	default:
		c.warnings = append(c.warnings, fmt.Sprintf("%s: spec.platforms: tasks on nodes of %d architectures share a volume: Tekton refuses that unless its feature flag coschedule is disabled",
			c.buildPlace(), len(architectures)))
	}
}

// fanOut makes a task for each platform of each step that makes the image of one.
func (c *composition) fanOut() {
	platforms := c.in.Build.Spec.Platforms
	tasks := map[string][]string{}
	for _, s := range c.steps {
		if !s.hasOwn(PlatformParameter) || len(platforms) == 0 {
			continue
		}
		if s.platform = platforms[0]; len(platforms) > 1 {
			for _, platform := range platforms {
				tasks[s.row.Name] = append(tasks[s.row.Name], s.row.Name+"-"+strings.ReplaceAll(platform, "/", "-"))
			}
		}
	}
	if len(tasks) == 0 {
		return
	}
	looking := map[string]tektonv1.PipelineTask{}
	for _, s := range c.steps {
		looking[s.row.Name] = c.lookingAtEach(s)
	}
	var all []*plannedStep
	for _, s := range c.steps {
		names := tasks[s.row.Name]
		if names == nil {
			s.task = *spread(s.task, tasks, -1)
			all = append(all, s)
		}
		for i, name := range names {
			one := *s
			one.platform, one.row.Name, one.row.PodOf = platforms[i], name, ""
			value := *tektonv1.NewStructuredValues(platforms[i])
			one.known = maps.Clone(s.known)
			one.known[PlatformParameter] = value
			one.task = *spread(looking[s.row.Name], tasks, i)
			one.task.Name, one.task.Params = name, append(one.task.Params, tektonv1.Param{Name: PlatformParameter, Value: value})
			all = append(all, &one)
		}
	}
	c.steps, c.taskIn = all, map[string]*plannedStep{}
	for _, s := range all {
		c.taskIn[s.row.Name] = s
	}
}

// lookingAtEach is the task of a step that looks at the image of each platform, with
// the digest of one of them before it is spread.
func (c *composition) lookingAtEach(s *plannedStep) tektonv1.PipelineTask {
	reference, pushed := c.ofPlatform(s)
	if !s.looks() || pushed == "" {
		return s.task
	}
	task := *s.task.DeepCopy()
	for i := range task.Params {
		if task.Params[i].Name == digestParameter {
			task.Params[i].Value = *tektonv1.NewStructuredValues(reference)
		}
	}
	if !slices.Contains(task.RunAfter, pushed) {
		task.RunAfter = append(task.RunAfter, pushed)
	}
	return task
}

var anyTaskResult = krm.Pattern(`\$\(tasks\.([a-z0-9-]+)\.results[.\[][^()]+\)`)

// spread makes what a task waits for and refers to that of the tasks which a step
// became: of the same platform for one that became several too, else of all.
func spread(task tektonv1.PipelineTask, tasks map[string][]string, platform int) *tektonv1.PipelineTask {
	of := func(name string) []string {
		switch names := tasks[name]; {
		case names == nil:
			return []string{name}
		case platform >= 0:
			return names[platform : platform+1]
		default:
			return names
		}
	}
	text := func(value string) string {
		return anyTaskResult().ReplaceAllStringFunc(value, func(reference string) string {
			step := anyTaskResult().FindStringSubmatch(reference)[1]
			var out []string
			for _, name := range of(step) {
				out = append(out, strings.Replace(reference, "$(tasks."+step+".", "$(tasks."+name+".", 1))
			}
			return strings.Join(out, ",")
		})
	}
	out := task.DeepCopy()
	out.RunAfter = nil
	for _, name := range task.RunAfter {
		out.RunAfter = append(out.RunAfter, of(name)...)
	}
	for i := range out.Params {
		value := &out.Params[i].Value
		value.StringVal = text(value.StringVal)
		for n := range value.ArrayVal {
			value.ArrayVal[n] = text(value.ArrayVal[n])
		}
		for key := range value.ObjectVal {
			value.ObjectVal[key] = text(value.ObjectVal[key])
		}
	}
	for i := range out.When {
		out.When[i].Input = text(out.When[i].Input)
		for n := range out.When[i].Values {
			out.When[i].Values[n] = text(out.When[i].Values[n])
		}
	}
	return out
}

// placeAll puts all pods of a run on nodes of the architecture of its one platform:
// they share a volume.
func (c *composition) placeAll(t *pod.PodTemplate) {
	if p := c.in.Build.Spec.Platforms; len(p) == 1 && c.nativeNodes() {
		t.NodeSelector = nodesOf(p[0], t.NodeSelector)
	}
}

// nodesOf a platform, among those that selector names already.
func nodesOf(platform string, selector map[string]string) map[string]string {
	out := map[string]string{corev1.LabelArchStable: architecture(platform)}
	maps.Copy(out, selector)
	return out
}
