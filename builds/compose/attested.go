package compose

import (
	"fmt"
	"slices"

	"k8s.io/utils/ptr"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/functions/text"
)

// A tenant with the right to write an AgentBuild chooses the source, the image's name and the
// fields that a template leaves open. The values that steps pass to each other, and everything else
// about a template with attest: true or isolate: true, belong to the platform. docs/threat-model.md
// explains the purpose of each rule.

// attestingSteps lists the shipped step ConfigMaps that sign or write provenance. Only a template
// of the platform may run them: a build that names them could make them vouch for any digest and
// commit.
var attestingSteps = []string{"cosign-sign-step", "slsa-provenance-step"}

var (
	taskResult      = text.Pattern(`\$\(tasks\.[a-z0-9-]+\.results\.`)
	wholeTaskResult = text.Pattern(`^\$\(tasks\.[a-z0-9-]+\.results\.[^()]+\)$`)
)

// overridable is a parameter that a build may set although a result is its default: the author
// chooses the Dockerfile.
const overridable = "DOCKERFILE"

// Attests reports whether the images of a build are attested: the template attests, and the commit
// is not that of a pull request.
func Attests(b *api.AgentBuild, t *templates.Template) bool {
	return t.Attest && b.Spec.Source.PullRequest == nil
}

// ChainsSigned is the annotation with which Tekton Chains marks runs that it signed or failed to
// sign. Runs of pull requests are created with the mark, so that Chains, which does not distinguish
// pull requests, does not sign them.
const ChainsSigned = "chains.tekton.dev/signed"

// fromPlatform reports whether a ConfigMap is the platform's. Without a cluster, each one is.
func (in Input) fromPlatform(d *templates.Document) bool {
	return in.Platform == "" || d.From.Namespace == in.Platform
}

// checkAttestingSteps refuses attesting steps outside of the platform's templates.
func checkAttestingSteps(c *composer) {
	const hint = "use a mode whose template has attest: true, such as prod, whose own steps " +
		"sign; see docs/threat-model.md"
	if p := c.Build.Spec.Pipeline; p != nil {
		for i, s := range p.Steps {
			if slices.Contains(attestingSteps, s.ConfigMap) {
				c.bad(api.ReasonPlatformStep, fmt.Sprintf("spec.pipeline.steps[%d].configMap", i),
					hint, "%s signs any digest that it is given, and is for the platform's "+
						"templates only", s.ConfigMap)
			}
		}
	}
	for _, row := range c.Template.Steps {
		if !c.fromPlatform(c.Template.Doc) && slices.Contains(attestingSteps, row.ConfigMap) {
			c.fault("", c.Template.Doc.At(fmt.Sprintf("steps[%d].configMap", row.Index)),
				api.ReasonPlatformStep, hint, "%s signs any digest that it is given, and is for "+
					"templates in namespace %q only", row.ConfigMap, c.Platform)
		}
	}
}

// checkHanded refuses parameters by which a build would change values that one step passes to
// another: those that the template takes from a result, digests, the commit and the image.
func checkHanded(c *composer) {
	image := c.imageName()
	for _, s := range c.steps {
		for _, declared := range s.task.TaskSpec.Params {
			given, field := c.fromBuild(s, declared.Name)
			if given == nil {
				continue
			}
			text := ValueOf(*given).StringVal
			bad := func(hint, format string, args ...any) {
				c.bad(api.ReasonWiredParameter, field, hint, format, args...)
			}
			wired := templates.FindValue(declared.Name, s.row.DefaultParameters,
				c.Template.GlobalParameters)
			name := templates.Canonical(declared.Name)
			// A build decides the image of a step that it adds itself.
			own := s.user != nil && s.user.ConfigMap != "" &&
				templates.Find(s.user.Parameters, declared.Name) != nil
			switch {
			case name == overridable:
			case wired.Type != "" && taskResult().MatchString(tekton.JSON(wired)):
				if given.Array != nil || given.Object != nil || text != wired.StringVal {
					bad("remove it", "step %q takes %q from another step (%s), and a build cannot "+
						"set it", s.row.Name, declared.Name, wired.StringVal)
				}
			case templates.Handed(name) && !wholeTaskResult().MatchString(text):
				bad("refer to the step that reports it, such as $(tasks.push.results.IMAGE_DIGEST)",
					"step %q takes %q from another step, and a build cannot set it to a value of "+
						"its own", s.row.Name, declared.Name)
			case name == "image" && !own && imageFault(text) == nil && image != "" && text != image:
				bad("set spec.buildOutput, and remove the parameter",
					"step %q would get image %q, and the others %q", s.row.Name, text, image)
			}
		}
	}
}

// imageName returns the image that the steps of a build share; empty if the build names none.
func (c *composer) imageName() string {
	if image := Image(c.Build); image != "" || c.Build.Spec.Pipeline == nil {
		return image
	}
	if p := templates.Find(c.Build.Spec.Pipeline.Parameters, "image"); p != nil && p.Value != nil {
		return *p.Value
	}
	return ""
}

// checkFromPlatform refuses an isolating template or its steps from another namespace than the
// controller's.
func checkFromPlatform(c *composer) {
	what := "attest"
	if !c.Template.Attest {
		what = "isolate"
	}
	hint := fmt.Sprintf("a template with %s: true and its steps count in namespace %q only; "+
		"remove %[1]s, or use the platform's mode", what, c.Platform)
	check := func(d *templates.Document, field string) {
		if !c.fromPlatform(d) {
			c.fault("", d.At(field), api.ReasonNotPlatform, hint, "is not the platform's")
		}
	}
	check(c.Template.Doc, what)
	for _, s := range c.steps {
		check(s.file.Doc, "")
	}
	p := c.Build.Spec.Pipeline
	if p != nil && p.Namespace != "" && c.Platform != "" && p.Namespace != c.Platform {
		c.bad(api.ReasonLocked, "spec.pipeline.namespace", "remove it",
			"mode %s takes its template and steps from namespace %q only", modeOf(c.Build),
			c.Platform)
	}
}

// checkLocked refuses every change of an isolating template that the template does not open by
// name, and volumes that outlive the run or have other writers.
func checkLocked(c *composer) {
	spec, template, mode := c.Build.Spec, c.Template, modeOf(c.Build)
	locks := func(field, format string, args ...any) {
		c.bad(api.ReasonLocked, field,
			"remove it, or ask the platform to open it in "+template.Doc.From.String(),
			"mode %s locks %s", mode, fmt.Sprintf(format, args...))
	}
	if c.timeout() == 0 {
		c.bad(api.ReasonLocked, "spec.timeout", "set it",
			"is missing, and neither mode %s nor the controller has a timeout", mode)
	}
	if spec.BuildOutput == nil && template.Attest {
		c.bad(api.ReasonLocked, "spec.buildOutput", "add it",
			"is missing, and mode %s attests the image that it names", mode)
	}
	if keepsWorkspace(spec) {
		locks("spec.workspace.keep", "the shared volume to one run")
	}
	if spec.Pod != nil && spec.Pod.AutomountServiceAccountToken {
		locks("spec.pod.automountServiceAccountToken", "out ServiceAccount tokens")
	}
	metadata := func(field string, pairs map[string]string, open []string) {
		for _, key := range sortedKeys(pairs) {
			if !slices.Contains(open, key) {
				locks(field+"["+key+"]", "metadata of its pods, which admission and nodes may read")
			}
		}
	}
	metadata("spec.labels", spec.Labels, template.Open.Labels)
	metadata("spec.annotations", spec.Annotations, template.Open.Annotations)
	if spec.Pipeline == nil {
		return
	}
	parameters := func(field string, params []api.Parameter) {
		for i, p := range params {
			same := func(name string) bool {
				return templates.Canonical(name) == templates.Canonical(p.Name)
			}
			if p.Name != templates.Timeout && !slices.ContainsFunc(template.Open.Parameters, same) &&
				!saysSpec(c, p) {
				locks(fmt.Sprintf("%s[%d].name", field, i), "parameter %q", p.Name)
			}
		}
	}
	parameters("spec.pipeline.parameters", spec.Pipeline.Parameters)
	for i, w := range spec.Pipeline.Workspaces {
		at := fmt.Sprintf("spec.pipeline.workspaces[%d]", i)
		switch {
		case w.Name == pullCredentials && w.Secret != nil:
			// A login for base images adds no other input or output to a step.
		case w.PersistentVolumeClaim != nil:
			locks(at, "out the claim %s, which is not in the namespace of its runs",
				w.PersistentVolumeClaim.Name)
		case w.ConfigMap != nil:
			locks(at, "out the ConfigMap %s, which is not in the namespace of its runs",
				w.ConfigMap.Name)
		default:
			locks(at, "workspaces")
		}
	}
	for i, s := range spec.Pipeline.Steps {
		at := fmt.Sprintf("spec.pipeline.steps[%d]", i)
		parameters(at+".parameters", s.Parameters)
		if s.ConfigMap != "" {
			locks(at+".configMap", "the list of steps")
		}
		if slices.Contains(template.Open.Steps, s.Name) {
			continue
		}
		byTemplate := slices.ContainsFunc(template.Steps, func(row templates.Row) bool {
			return row.Name == s.Name && ptr.Deref(row.Enabled, true)
		})
		if s.Enabled != nil && *s.Enabled != byTemplate {
			locks(at+".enabled", "step %q", s.Name)
		}
		if s.WhenExpressions != nil {
			locks(at+".whenExpressions", "step %q", s.Name)
		}
		if s.RequiredParameters != nil {
			locks(at+".requiredParameters", "step %q", s.Name)
		}
	}
}

// saysSpec reports whether a parameter repeats a field of the spec, as published manifests do with
// SOURCE_REPO_SECRET.
func saysSpec(c *composer, p api.Parameter) bool {
	if p.Array != nil || p.Object != nil || p.Value == nil {
		return false
	}
	source := c.Build.Spec.Source
	// The derived values of these include the build's parameters.
	switch templates.Canonical(p.Name) {
	case "repo-url":
		return *p.Value == source.SourceRepository
	case "revision":
		return *p.Value == source.SourceRevision
	}
	v, ok := c.spec[templates.Canonical(p.Name)]
	return ok && *p.Value == v.StringVal
}
