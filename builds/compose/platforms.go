package compose

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/functions/text"
)

// A step with the parameter platform makes the image of one platform. For several entries of
// spec.platforms it becomes as many tasks, STEP-OS-ARCHITECTURE, which run in parallel. Another
// step that refers to one of its results gets the results of all these tasks, separated by commas,
// in the order of spec.platforms; the parameter platforms holds this order. A step with the
// parameters platform and image-digest inspects the image of each platform: if the template passes
// it the digest of the pushed index, each of its tasks gets the digest of its platform's image
// instead, as the building task reported it and the pushing step verified it.

// PlatformDigests is the result of the step that pushes the platforms: PLATFORM=DIGEST, separated
// by commas.
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

// inspects reports whether a step inspects the image of a platform.
func (s step) inspects() bool {
	return s.hasOwn(templates.Platform) && !s.makes() && s.declares(templates.ImageDigest)
}

// given returns the text that the composition passes to a step's parameter.
func (s step) given(parameter string) string {
	for _, p := range s.task.Params {
		if p.Name == parameter {
			return p.Value.StringVal
		}
	}
	return ""
}

// ofPlatform returns a reference to the digests of the platforms' images for a step that inspects
// them. If the step's digest is that of an index, pushed is the step that pushed the index. If it
// is already that of a step for each platform, pushed is "". Any other digest returns "".
func (c *composer) ofPlatform(s step) (reference, pushed string) {
	eachOwn := func(reference string) bool {
		m := anyTaskResult().FindStringSubmatch(reference)
		if m == nil || m[0] != reference {
			return false
		}
		from := c.named(m[1])
		return from != nil && from.hasOwn(templates.Platform) && from.makes()
	}
	digest := s.given(templates.ImageDigest)
	if eachOwn(digest) {
		return digest, ""
	}
	for _, push := range c.steps {
		if push.hasOwn(templates.Platforms) && !push.hasOwn(templates.Platform) &&
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

// checkPlatforms refuses platforms that cannot be built, and steps that would process only one of
// several.
func checkPlatforms(c *composer) {
	spec := c.Build.Spec
	for i, platform := range spec.Platforms {
		field := fmt.Sprintf("spec.platforms[%d]", i)
		switch {
		case !slices.Contains(api.Platforms, platform):
			c.invalid(field, "use one of "+strings.Join(api.Platforms, ", "),
				"%q is not a platform that is built", platform)
		case slices.Contains(spec.Platforms[:i], platform):
			c.invalid(field, "keep one of the two", "%q occurs twice", platform)
		}
	}
	switch nodes := spec.PlatformNodes; {
	case nodes != "" && nodes != api.PlatformNodesNative && nodes != api.PlatformNodesAny:
		c.invalid("spec.platformNodes", "use Native or Any", "%q is unknown", nodes)
	case nodes != "" && len(spec.Platforms) == 0:
		c.invalid("spec.platformNodes", "name them in spec.platforms, or remove it",
			"has no effect without platforms")
	case spec.Platforms != nil && len(spec.Platforms) == 0:
		c.invalid("spec.platforms", "name one, or remove it", "names no platform")
	}
	if c.broken {
		return
	}
	for _, s := range c.steps {
		for _, name := range []string{templates.Platform, templates.Platforms} {
			if given, field := c.fromBuild(s, name); given != nil && s.hasOwn(name) &&
				(len(spec.Platforms) > 0 || s.makes() || s.inspects()) {
				c.invalid(field, "remove it, and set spec.platforms",
					"the %s of step %q comes from spec.platforms", name, s.row.Name)
			}
		}
	}
	if len(spec.Platforms) > 0 {
		checkPlatformSteps(c)
		if nativeNodes(c.Build) {
			checkPlatformNodes(c)
		}
	}
}

// checkPlatformSteps refuses steps that make an image without a platform, and steps that read only
// one image of several platforms.
func checkPlatformSteps(c *composer) {
	builder := "use builder: buildkit, or remove spec.platforms"
	if templates.ListsAll(c.Build) {
		builder = "list a step with the parameter platform, such as buildkit-build-step, or " +
			"remove spec.platforms"
	}
	bad := func(hint, format string, args ...any) {
		c.invalid("spec.platforms", hint, format, args...)
	}
	several := len(c.Build.Spec.Platforms) > 1
	one, refused := false, false
	for _, s := range c.steps {
		reference, _ := c.ofPlatform(s)
		switch {
		case s.inspects() && (!several || reference != ""):
		case s.hasOwn(templates.Platform) && !s.inspects():
			one = true
		case s.hasOwn(templates.Platforms):
		case s.makes():
			refused = true
			bad(builder, "step %q builds for the platform of its node alone", s.row.Name)
		case several && s.declares(templates.ImageDigest):
			bad("give it the parameter platform and the IMAGE_DIGEST of the step that pushes, "+
				"name one platform, or use a mode without that step, such as dev",
				"step %q takes the digest of one image, and would check only one of %d platforms",
				s.row.Name, len(c.Build.Spec.Platforms))
		}
	}
	if !one && !refused && len(c.steps) > 0 {
		bad(builder, "no step of this pipeline has a parameter for the platform")
	}
}

// checkPlatformNodes refuses builds whose pods could never be scheduled: they would wait for a node
// until the run's timeout.
func checkPlatformNodes(c *composer) {
	spec := c.Build.Spec
	architectures := map[string]bool{}
	asked := ptr.Deref(spec.Pod, api.PodSettings{}).NodeSelector[corev1.LabelArchStable]
	for i, platform := range spec.Platforms {
		arch := architecture(platform)
		architectures[arch] = true
		if asked != "" && asked != arch {
			c.invalid(fmt.Sprintf("spec.platforms[%d]", i),
				"remove "+corev1.LabelArchStable+" from spec.pod.nodeSelector, or set "+
					"spec.platformNodes: Any", "%s is built on nodes of the architecture %s, and "+
					"spec.pod.nodeSelector asks for %s", platform, arch, asked)
		}
	}
	bound := slices.ContainsFunc(c.workspaces(),
		func(w api.WorkspaceBinding) bool { return isShared(w.Name) })
	switch {
	case len(architectures) < 2:
	case !bound && ptr.Deref(spec.Workspace, api.Workspace{}).AccessMode != corev1.ReadWriteMany:
		c.invalid("spec.workspace.accessMode",
			"set it to ReadWriteMany, where Tekton's feature flag coschedule is disabled, or set "+
				"spec.platformNodes: Any", "%d architectures are built on nodes of their own, and "+
				"the steps share a volume that one node mounts", len(architectures))
	default:
		c.warn("%s: spec.platforms: tasks on nodes of %d architectures share a volume: Tekton "+
			"refuses that unless its feature flag coschedule is disabled", c.Place,
			len(architectures))
	}
}

// fanOut replaces each step with the parameter platform by one task for each platform.
func fanOut(c *composer) {
	platforms := c.Build.Spec.Platforms
	tasks := map[string][]string{} // by the step that became them
	for _, s := range c.steps {
		for _, platform := range platforms {
			if s.hasOwn(templates.Platform) {
				tasks[s.row.Name] = append(tasks[s.row.Name],
					s.row.Name+"-"+strings.ReplaceAll(platform, "/", "-"))
			}
		}
	}
	var all []step
	for _, s := range c.steps {
		switch names := tasks[s.row.Name]; {
		case len(platforms) < 2, len(tasks) == 0:
			if names != nil {
				s.platform = platforms[0]
			}
			all = append(all, s)
		case names == nil:
			s.task = tekton.Retarget(s.task, tasks)
			all = append(all, s)
		default:
			inspecting := inspectingEach(c, s)
			for i, name := range names {
				samePlatform := map[string][]string{}
				for step, became := range tasks {
					samePlatform[step] = became[i : i+1]
				}
				one, value := s, *tektonv1.NewStructuredValues(platforms[i])
				one.platform, one.row.Name, one.row.PodOf = platforms[i], name, ""
				one.known = maps.Clone(s.known)
				one.known[templates.Platform] = value
				one.task = tekton.Retarget(inspecting, samePlatform)
				one.task.Name, one.task.Params = name, append(one.task.Params,
					tektonv1.Param{Name: templates.Platform, Value: value})
				all = append(all, one)
			}
		}
	}
	c.steps = all
}

// inspectingEach returns the task of a step before fanOut copies it. A task that inspects images
// gets the digest of a platform's image instead of that of the index.
func inspectingEach(c *composer, s step) tektonv1.PipelineTask {
	reference, pushed := c.ofPlatform(s)
	if !s.inspects() || pushed == "" {
		return s.task
	}
	task := *s.task.DeepCopy()
	for i := range task.Params {
		if task.Params[i].Name == templates.ImageDigest {
			task.Params[i].Value = *tektonv1.NewStructuredValues(reference)
		}
	}
	if !slices.Contains(task.RunAfter, pushed) {
		task.RunAfter = append(task.RunAfter, pushed)
	}
	return task
}

var anyTaskResult = text.Pattern(`\$\(tasks\.([a-z0-9-]+)\.results[.\[][^()]+\)`)

// nodesOf returns a node selector for a platform that includes the given selector.
func nodesOf(platform string, selector map[string]string) map[string]string {
	out := map[string]string{corev1.LabelArchStable: architecture(platform)}
	maps.Copy(out, selector)
	return out
}
