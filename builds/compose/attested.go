package compose

import (
	"fmt"
	"slices"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/recipe"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/functions/text"
)

// Platform and tenant are two people. Whoever may write an AgentBuild chooses the
// source, the image's name and what a template leaves open; what the steps hand to
// each other, and everything about a template with attest: true or isolate: true, belongs to
// the platform. docs/threat-model.md says what each rule is for.

// attestingSteps are the shipped step ConfigMaps that sign or write provenance. They are run for a
// platform's template only: a build that named them could make them vouch for any digest and
// commit.
var attestingSteps = []string{"cosign-sign-step", "slsa-provenance-step"}

var (
	taskResult      = text.Pattern(`\$\(tasks\.[a-z0-9-]+\.results\.`)
	wholeTaskResult = text.Pattern(`^\$\(tasks\.[a-z0-9-]+\.results\.[^()]+\)$`)
)

// overridable is a parameter that has a result as its default, and is still the build's
// to set: which Dockerfile is built is a choice of the author.
const overridable = "DOCKERFILE"

// Attests reports whether the images of a build are attested: its template says so, and its
// commit is not only proposed.
func Attests(b *api.AgentBuild, t *recipe.Template) bool {
	return t.Attest && b.Spec.Source.PullRequest == nil
}

// ChainsSigned is the annotation by which Tekton Chains marks a run that it has signed, or has
// failed to sign. A run of a pull request has the mark from the beginning, so that Chains, which
// knows no pull requests, leaves it alone.
const ChainsSigned = "chains.tekton.dev/signed"

// checkRoles refuses what a build may not decide.
func checkRoles(in Input, spec derived, steps []step) faults {
	found := append(checkAttestingSteps(in), checkHanded(in, steps)...)
	if in.Template.Isolates() {
		found = slices.Concat(found, checkFromPlatform(in, steps), checkLocked(in, spec))
	}
	return found
}

// fromPlatform reports whether a ConfigMap is the platform's. Without a cluster all are.
func (in Input) fromPlatform(d *recipe.Document) bool {
	return in.Platform == "" || d.From.Namespace == in.Platform
}

// checkAttestingSteps refuses the steps that sign outside of the platform's templates.
func checkAttestingSteps(in Input) (found faults) {
	const hint = "use a mode whose template has attest: true, such as prod, whose own steps " +
		"sign; see docs/threat-model.md"
	if p := in.Build.Spec.Pipeline; p != nil {
		for i, s := range p.Steps {
			if slices.Contains(attestingSteps, s.ConfigMap) {
				found.bad(in, api.ReasonPlatformStep,
					fmt.Sprintf("spec.pipeline.steps[%d].configMap", i),
					fmt.Sprintf("%s signs any digest that it is given, and is for the platform's "+
						"templates only", s.ConfigMap), hint)
			}
		}
	}
	if in.fromPlatform(in.Template.Doc) {
		return found
	}
	for _, row := range in.Template.Steps {
		if slices.Contains(attestingSteps, row.ConfigMap) {
			field := fmt.Sprintf("steps[%d].configMap", row.Index)
			found.add(in.Template.Doc.At(field).Fault(api.ReasonPlatformStep,
				fmt.Sprintf("%s signs any digest that it is given, and is for templates in "+
					"namespace %q only", row.ConfigMap, in.Platform), hint))
		}
	}
	return found
}

// checkHanded keeps builds from changing what one step hands to another: a value
// that the template takes from a step's result, the digest, the commit and the
// image.
func checkHanded(in Input, steps []step) (found faults) {
	image := imageName(in)
	for _, s := range steps {
		for _, declared := range s.task.TaskSpec.Params {
			given, field := fromBuild(in, s, declared.Name)
			if given == nil {
				continue
			}
			text := ValueOf(*given).StringVal
			bad := func(message, hint string) {
				found.bad(in, api.ReasonWiredParameter, field, message, hint)
			}
			wired := recipe.FindDefault(s.row.DefaultParameters, declared.Name)
			if wired == nil {
				wired = recipe.FindDefault(in.Template.GlobalParameters, declared.Name)
			}
			name := recipe.Canonical(declared.Name)
			// Given to one step alone, which the build brings itself, it means what the build says.
			own := s.user != nil && s.user.ConfigMap != "" &&
				recipe.Find(s.user.Parameters, declared.Name) != nil
			switch {
			case name == overridable:
			case wired != nil && wired.Value != nil &&
				taskResult().MatchString(tekton.JSON(wired.Value)):
				if given.Array != nil || given.Object != nil || text != wired.Value.StringVal {
					bad(
						fmt.Sprintf(
							"step %q takes %q from another step (%s), and a build cannot set it",
							s.row.Name, declared.Name, wired.Value.StringVal), "remove it")
				}
			case recipe.Handed(name) && !wholeTaskResult().MatchString(text):
				bad(
					fmt.Sprintf("step %q takes %q from another step, and a build cannot set it "+
						"to a value of its own", s.row.Name, declared.Name),
					"refer to the step that reports it, such as $(tasks.push.results.IMAGE_DIGEST)")
			case name == "image" && !own && imageFault(text) == nil && image != "" && text != image:
				bad(fmt.Sprintf("step %q would get image %q, and the others %q", s.row.Name, text,
					image), "set spec.buildOutput, and remove the parameter")
			}
		}
	}
	return found
}

// imageName that the steps of a build share; empty when the build names none.
func imageName(in Input) string {
	if image := Image(in.Build); image != "" || in.Build.Spec.Pipeline == nil {
		return image
	}
	if p := recipe.Find(in.Build.Spec.Pipeline.Parameters, "image"); p != nil && p.Value != nil {
		return *p.Value
	}
	return ""
}

// checkFromPlatform refuses a template whose runs are isolated, or its steps, from elsewhere than
// the controller's namespace.
func checkFromPlatform(in Input, steps []step) (found faults) {
	what := "attest"
	if !in.Template.Attest {
		what = "isolate"
	}
	hint := fmt.Sprintf("a template with %s: true and its steps count in namespace %q only; "+
		"remove %[1]s, or use the platform's mode", what, in.Platform)
	elsewhere := func(d *recipe.Document, field string) {
		found.add(d.At(field).Fault(api.ReasonNotPlatform, "is not the platform's", hint))
	}
	if !in.fromPlatform(in.Template.Doc) {
		elsewhere(in.Template.Doc, what)
	}
	for _, s := range steps {
		if !in.fromPlatform(s.file.Doc) {
			elsewhere(s.file.Doc, "")
		}
	}
	p := in.Build.Spec.Pipeline
	if p != nil && p.Namespace != "" && in.Platform != "" && p.Namespace != in.Platform {
		found.bad(in, api.ReasonLocked, "spec.pipeline.namespace",
			fmt.Sprintf("mode %s takes its template and steps from namespace %q only",
				modeOf(in.Build), in.Platform), "remove it")
	}
	return found
}

// checkLocked refuses every change of a template whose runs are isolated that it does not open
// by name, and volumes that outlive the run or that others write.
func checkLocked(in Input, known derived) (found faults) {
	spec, template, mode := in.Build.Spec, in.Template, modeOf(in.Build)
	bad := func(field, what string) {
		found.bad(in, api.ReasonLocked, field, fmt.Sprintf("mode %s locks %s", mode, what),
			"remove it, or ask the platform to open it in "+template.Doc.From.String())
	}
	limit, found := timeout(in)
	if limit == 0 {
		found.bad(in, api.ReasonLocked, "spec.timeout",
			fmt.Sprintf("is missing, and neither mode %s nor the controller has a timeout", mode),
			"set it")
	}
	if spec.BuildOutput == nil && template.Attest {
		found.bad(in, api.ReasonLocked, "spec.buildOutput",
			fmt.Sprintf("is missing, and mode %s attests the image that it names", mode), "add it")
	}
	if keepsWorkspace(spec) {
		bad("spec.workspace.keep", "the shared volume to one run")
	}
	if spec.Pod != nil && spec.Pod.AutomountServiceAccountToken {
		bad("spec.pod.automountServiceAccountToken", "out ServiceAccount tokens")
	}
	for _, pairs := range []struct {
		field      string
		keys, open []string
	}{{"spec.labels", sortedKeys(spec.Labels), template.Open.Labels},
		{"spec.annotations", sortedKeys(spec.Annotations), template.Open.Annotations}} {
		for _, key := range pairs.keys {
			if !slices.Contains(pairs.open, key) {
				bad(pairs.field+"["+key+"]",
					"metadata of its pods, which admission and nodes may read")
			}
		}
	}
	if spec.Pipeline == nil {
		return found
	}
	parameters := func(field string, params []api.Parameter) {
		for i, p := range params {
			same := func(name string) bool {
				return recipe.Canonical(name) == recipe.Canonical(p.Name)
			}
			if p.Name != recipe.Timeout && !slices.ContainsFunc(template.Open.Parameters, same) &&
				!saysSpec(in, known, p) {
				bad(fmt.Sprintf("%s[%d].name", field, i), fmt.Sprintf("parameter %q", p.Name))
			}
		}
	}
	parameters("spec.pipeline.parameters", spec.Pipeline.Parameters)
	for i, w := range spec.Pipeline.Workspaces {
		if w.Name == pullCredentials && w.Secret != nil {
			continue // a login for base images adds no other input or output to a step
		}
		what := "workspaces"
		switch {
		case w.PersistentVolumeClaim != nil:
			what = fmt.Sprintf("out the claim %s, which is not in the namespace of its runs",
				w.PersistentVolumeClaim.Name)
		case w.ConfigMap != nil:
			what = fmt.Sprintf("out the ConfigMap %s, which is not in the namespace of its runs",
				w.ConfigMap.Name)
		}
		bad(fmt.Sprintf("spec.pipeline.workspaces[%d]", i), what)
	}
	for i, s := range spec.Pipeline.Steps {
		at := fmt.Sprintf("spec.pipeline.steps[%d]", i)
		parameters(at+".parameters", s.Parameters)
		if s.ConfigMap != "" {
			bad(at+".configMap", "the list of steps")
		}
		if slices.Contains(template.Open.Steps, s.Name) {
			continue
		}
		if s.Enabled != nil && *s.Enabled != enabledBy(template, s.Name) {
			bad(at+".enabled", fmt.Sprintf("step %q", s.Name))
		}
		if s.WhenExpressions != nil {
			bad(at+".whenExpressions", fmt.Sprintf("step %q", s.Name))
		}
		if s.RequiredParameters != nil {
			bad(at+".requiredParameters", fmt.Sprintf("step %q", s.Name))
		}
	}
	return found
}

// saysSpec reports whether a parameter repeats what the spec says, as published
// manifests do with SOURCE_REPO_SECRET.
func saysSpec(in Input, spec derived, p api.Parameter) bool {
	if p.Array != nil || p.Object != nil || p.Value == nil {
		return false
	}
	source := in.Build.Spec.Source
	// of these the build's parameters are a part of the derived value
	switch recipe.Canonical(p.Name) {
	case "repo-url":
		return *p.Value == source.SourceRepository
	case "revision":
		return *p.Value == source.SourceRevision
	}
	v, ok := spec[recipe.Canonical(p.Name)]
	return ok && *p.Value == v.StringVal
}

func enabledBy(t *recipe.Template, step string) bool {
	at := slices.IndexFunc(t.Steps, func(row recipe.Row) bool { return row.Name == step })
	return at >= 0 && (t.Steps[at].Enabled == nil || *t.Steps[at].Enabled)
}
