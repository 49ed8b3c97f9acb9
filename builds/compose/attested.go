package compose

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/krm"
)

// Platform and tenant are two people. Whoever may write an AgentBuild chooses the
// source, the image's name and what a template leaves open; what the steps hand to
// each other, and everything about a template with attest: true, belongs to the
// platform. docs/threat-model.md says what each rule is for.

// Open names what a build may change of a template with attest: true.
type Open struct {
	// Parameters that spec.pipeline.parameters or a step's parameters may set.
	// Omitted, none.
	Parameters []string `json:"parameters,omitempty"`
	// Steps that a build may switch off or make conditional. Omitted, none.
	Steps []string `json:"steps,omitempty"`
}

// attestingSteps are the shipped step ConfigMaps that sign or write provenance.
// They are run for a platform's template only: named by a build, they would vouch
// for whatever digest and commit the build gives them.
var attestingSteps = []string{"cosign-sign-step", "slsa-provenance-step"}

// handed are the parameters by which shipped steps hand the digests of the image, the
// SBOM and the source, and the commit, to each other.
var handed = []string{digestParameter, "sbom-digest", sourceDigest, "commit"}

var (
	taskResult      = krm.Pattern(`\$\(tasks\.[a-z0-9-]+\.results\.`)
	wholeTaskResult = krm.Pattern(`^\$\(tasks\.[a-z0-9-]+\.results\.[^()]+\)$`)
)

// overridable parameters have a result as their default, and are still the build's
// to set: which Dockerfile is built is a choice of the author.
var overridable = []string{"DOCKERFILE"}

// checkOpen judges what a template says of attest, open and verifySource.
func checkOpen(t *Template, bad func(field, message, hint string)) {
	if !t.Attest {
		if len(t.Open.Parameters)+len(t.Open.Steps) > 0 {
			bad("open", "has no effect without attest: true", "add attest: true, or remove open")
		}
		if t.VerifySource != "" {
			bad("verifySource", "has no effect without attest: true", "add attest: true, or let builds set spec.source.verify")
		}
		return
	}
	for i, name := range t.Open.Parameters {
		at := fmt.Sprintf("open.parameters[%d]", i)
		switch _, isSpec := specFields[canonical(name)]; {
		case isSpec || name == "source-revision":
			bad(at, fmt.Sprintf("parameter %q comes from the build's spec alone", name), "remove it")
		case slices.Contains(handed, name):
			bad(at, fmt.Sprintf("parameter %q is handed from step to step", name), "remove it")
		}
	}
	for i, name := range t.Open.Steps {
		if !slices.Contains(stepNames(t), name) {
			bad(fmt.Sprintf("open.steps[%d]", i), fmt.Sprintf("no step is named %q", name), "use one of "+strings.Join(stepNames(t), ", "))
		}
	}
}

// checkRoles refuses what a build may not decide.
func (c *composition) checkRoles() {
	c.checkAttestingSteps()
	c.checkHanded()
	if c.in.Template.Attest {
		c.checkPlatform()
		c.checkLocked()
	}
}

// fromPlatform reports whether a ConfigMap is the platform's. Without a cluster all are.
func (c *composition) fromPlatform(d *document) bool {
	return c.in.Platform == "" || d.from.Namespace == c.in.Platform
}

// checkAttestingSteps refuses the steps that sign outside of the platform's templates.
func (c *composition) checkAttestingSteps() {
	const hint = "use a mode whose template has attest: true, such as prod, whose own steps sign; see docs/threat-model.md"
	if p := c.in.Build.Spec.Pipeline; p != nil {
		for i, s := range p.Steps {
			if slices.Contains(attestingSteps, s.ConfigMap) {
				c.bad(api.ReasonPlatformStep, fmt.Sprintf("spec.pipeline.steps[%d].configMap", i),
					fmt.Sprintf("%s signs whatever digest it is given, and is for the platform's templates only", s.ConfigMap), hint)
			}
		}
	}
	if c.fromPlatform(c.in.Template.doc) {
		return
	}
	for _, row := range c.in.Template.Steps {
		if slices.Contains(attestingSteps, row.ConfigMap) {
			field := fmt.Sprintf("steps[%d].configMap", row.index)
			c.problems.add(c.in.Template.doc.place(field).Fault(api.ReasonPlatformStep,
				fmt.Sprintf("%s signs whatever digest it is given, and is for templates in namespace %q only", row.ConfigMap, c.in.Platform), hint))
		}
	}
}

// checkHanded keeps builds from changing what one step hands to another: a value
// that the template takes from a step's result, the digest, the commit and the
// image.
func (c *composition) checkHanded() {
	for _, s := range c.steps {
		for _, declared := range s.task.TaskSpec.Params {
			given, field := c.fromBuild(s, declared.Name)
			if given == nil {
				continue
			}
			text := userParameter(*given).value().StringVal
			bad := func(message, hint string) {
				c.bad(api.ReasonWiredParameter, field, message, hint)
			}
			wired := findDefault(s.row.DefaultParameters, declared.Name)
			if wired == nil {
				wired = findDefault(c.in.Template.GlobalParameters, declared.Name)
			}
			name := canonical(declared.Name)
			switch {
			case slices.Contains(overridable, name):
			case wired != nil && wired.Value != nil && taskResult().MatchString(mustJSON(wired.Value)):
				if given.Array != nil || given.Object != nil || text != wired.Value.StringVal {
					bad(fmt.Sprintf("step %q takes %q from another step (%s), and a build cannot set it", s.row.Name, declared.Name, wired.Value.StringVal), "remove it")
				}
			case slices.Contains(handed, name) && !wholeTaskResult().MatchString(text):
				bad(fmt.Sprintf("step %q takes %q from another step, and a build cannot set it to a value of its own", s.row.Name, declared.Name),
					"refer to the step that reports it, such as $(tasks.push.results.IMAGE_DIGEST)")
			case name == "image" && !c.ownStep(s, declared.Name) && imageFault(text) == nil && c.imageName() != "" && text != c.imageName():
				bad(fmt.Sprintf("step %q would get image %q, and the others %q", s.row.Name, text, c.imageName()), "set spec.buildOutput, and remove the parameter")
			}
		}
	}
}

// imageName that the steps of a build share; empty when the build names none.
func (c *composition) imageName() string {
	if c.spec.image != "" || c.in.Build.Spec.Pipeline == nil {
		return c.spec.image
	}
	if p := findUser(c.in.Build.Spec.Pipeline.Parameters, "image"); p != nil && p.Value != nil {
		return *p.Value
	}
	return ""
}

// ownStep reports whether a parameter is given to one step alone, which the build
// brings itself, so that the name means what the build says.
func (c *composition) ownStep(s *plannedStep, name string) bool {
	return s.user != nil && s.user.ConfigMap != "" && findUser(s.user.Parameters, name) != nil
}

// fromBuild is the parameter that the build itself gives to a step, nil for none.
func (c *composition) fromBuild(s *plannedStep, name string) (*api.Parameter, string) {
	if s.user != nil {
		if p := findUser(s.user.Parameters, name); p != nil {
			return p, fmt.Sprintf("spec.pipeline.steps[%d].parameters[%s]", s.userAt, p.Name)
		}
	}
	if p := c.in.Build.Spec.Pipeline; p != nil {
		if p := findUser(p.Parameters, name); p != nil {
			return p, fmt.Sprintf("spec.pipeline.parameters[%s]", p.Name)
		}
	}
	return nil, ""
}

// checkPlatform refuses an attested template or its steps from elsewhere than the
// controller's namespace.
func (c *composition) checkPlatform() {
	hint := fmt.Sprintf("a template with attest: true and its steps count in namespace %q only; remove attest, or use the platform's mode", c.in.Platform)
	elsewhere := func(d *document, field string) {
		c.problems.add(d.place(field).Fault(api.ReasonNotPlatform, "is not the platform's", hint))
	}
	if !c.fromPlatform(c.in.Template.doc) {
		elsewhere(c.in.Template.doc, "attest")
	}
	for _, s := range c.steps {
		if !c.fromPlatform(s.file.doc) {
			elsewhere(s.file.doc, "")
		}
	}
	p := c.in.Build.Spec.Pipeline
	if p != nil && p.Namespace != "" && c.in.Platform != "" && p.Namespace != c.in.Platform {
		c.bad(api.ReasonLocked, "spec.pipeline.namespace", fmt.Sprintf("mode %s takes its template and steps from namespace %q only", c.mode(), c.in.Platform), "remove it")
	}
}

func (c *composition) mode() string {
	return strings.TrimPrefix(TemplateName(c.in.Build.Spec.Mode), templatePrefix)
}

// checkLocked refuses every change of an attested template that it does not open
// by name, and volumes that outlive the run or that others write.
func (c *composition) checkLocked() {
	spec, template := c.in.Build.Spec, c.in.Template
	bad := func(field, what string) {
		c.bad(api.ReasonLocked, field, fmt.Sprintf("mode %s locks %s", c.mode(), what), "remove it, or ask the platform to open it in "+template.doc.from.String())
	}
	if c.timeout() == 0 {
		c.bad(api.ReasonLocked, "spec.timeout", fmt.Sprintf("is missing, and neither mode %s nor the controller has a timeout", c.mode()), "set it")
	}
	if spec.BuildOutput == nil {
		c.bad(api.ReasonLocked, "spec.buildOutput", fmt.Sprintf("is missing, and mode %s attests the image that it names", c.mode()), "add it")
	}
	if spec.Workspace != nil && spec.Workspace.Keep {
		bad("spec.workspace.keep", "the shared volume to one run")
	}
	if spec.Pod != nil && spec.Pod.AutomountServiceAccountToken {
		bad("spec.pod.automountServiceAccountToken", "out ServiceAccount tokens")
	}
	for _, pairs := range []struct {
		field string
		keys  []string
	}{{"spec.labels", sortedKeys(spec.Labels)}, {"spec.annotations", sortedKeys(spec.Annotations)}} {
		for _, key := range pairs.keys {
			if domain, _, _ := strings.Cut(key, "/"); domain == "tekton.dev" || strings.HasSuffix(domain, ".tekton.dev") {
				bad(pairs.field+"["+key+"]", "what steers Tekton")
			}
		}
	}
	if spec.Pipeline == nil {
		return
	}
	parameters := func(field string, params []api.Parameter) {
		for i, p := range params {
			if p.Name != timeoutParameter && !c.opened(p.Name) && !c.saysSpec(p) {
				bad(fmt.Sprintf("%s[%d].name", field, i), fmt.Sprintf("parameter %q", p.Name))
			}
		}
	}
	parameters("spec.pipeline.parameters", spec.Pipeline.Parameters)
	for i, w := range spec.Pipeline.Workspaces {
		if w.Name == pullCredentials && w.Secret != nil {
			continue // a login for base images gives no step another input or output
		}
		bad(fmt.Sprintf("spec.pipeline.workspaces[%d]", i), "workspaces")
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
		if s.Enabled != nil && *s.Enabled != c.enabledByTemplate(s.Name) {
			bad(at+".enabled", fmt.Sprintf("step %q", s.Name))
		}
		if s.WhenExpressions != nil {
			bad(at+".whenExpressions", fmt.Sprintf("step %q", s.Name))
		}
		if s.RequiredParameters != nil {
			bad(at+".requiredParameters", fmt.Sprintf("step %q", s.Name))
		}
	}
}

func (c *composition) opened(parameter string) bool {
	return slices.ContainsFunc(c.in.Template.Open.Parameters, func(name string) bool { return canonical(name) == canonical(parameter) })
}

// saysSpec reports whether a parameter repeats what the spec says, as published
// manifests do with SOURCE_REPO_SECRET.
func (c *composition) saysSpec(p api.Parameter) bool {
	if p.Array != nil || p.Object != nil || p.Value == nil {
		return false
	}
	source := c.in.Build.Spec.Source
	switch canonical(p.Name) { // of these the build's parameters are a part of the derived value
	case "repo-url":
		return *p.Value == source.SourceRepository
	case "revision":
		return *p.Value == source.SourceRevision
	}
	v, ok := c.spec.values[canonical(p.Name)]
	return ok && *p.Value == v.StringVal
}

func (c *composition) enabledByTemplate(step string) bool {
	for _, row := range c.in.Template.Steps {
		if row.Name == step {
			return row.Enabled == nil || *row.Enabled
		}
	}
	return false
}

// Material is a ConfigMap that a run of an attested template was composed from.
type Material struct {
	// ConfigMap is its namespace and name.
	ConfigMap string `json:"configMap"`
	// Digest of its text: "sha256:" and 64 hexadecimal digits.
	Digest string `json:"digest"`
}

// Materials of a run of an attested template, in its annotation keys.AnnotationMaterials.
type Materials struct {
	Template Material `json:"template"`
	// Steps by the name that the template gives them.
	Steps map[string]Material `json:"steps"`
}

func (d *document) material() Material {
	return Material{ConfigMap: strings.TrimPrefix(d.from.Namespace+"/"+d.from.Name, "/"), Digest: "sha256:" + sha256Hex(d.body)}
}

func (c *composition) materials() Materials {
	m := Materials{Template: c.in.Template.doc.material(), Steps: map[string]Material{}}
	for _, s := range c.steps {
		m.Steps[s.row.Name] = s.file.doc.material()
	}
	return m
}

// RunDigest of a run's spec: "sha256:" and 64 hexadecimal digits. It is the same
// before and after Tekton has set its defaults, and whether the run is asked to stop.
func RunDigest(spec *tektonv1.PipelineRunSpec) string {
	var whole tektonv1.PipelineRunSpec
	if err := json.Unmarshal([]byte(mustJSON(spec)), &whole); err != nil {
		panic(fmt.Sprintf("compose: reading a run's spec: %v", err))
	}
	whole.SetDefaults(background())
	whole.Status = ""
	return "sha256:" + sha256Hex(mustJSON(whole))
}

// PipelineDigest is RunDigest for a pipeline that a run refers to.
func PipelineDigest(spec *tektonv1.PipelineSpec) string {
	var whole tektonv1.PipelineSpec
	if err := json.Unmarshal([]byte(mustJSON(spec)), &whole); err != nil {
		panic(fmt.Sprintf("compose: reading a pipeline's spec: %v", err))
	}
	whole.SetDefaults(background())
	return "sha256:" + sha256Hex(mustJSON(whole))
}
