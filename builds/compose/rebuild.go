package compose

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/builds/compose/templates"
)

// StepNames returns the step ConfigMaps that build needs of template, including those of all
// builders if the build's parameters may choose the builder.
func StepNames(build *api.AgentBuild, template *templates.Template) []string {
	if p := build.Spec.Pipeline; p != nil && build.Spec.Builder == "" && !templates.ListsAll(build) &&
		slices.ContainsFunc(p.Parameters, func(p api.Parameter) bool {
			return !templates.FromSpec(p.Name) && !templates.Noted(p.Name)
		}) {
		if _, because := template.BuilderOf(build, nil); because == "" {
			return configMaps(build, template)
		}
	}
	return UsedSteps(build, template, nil)
}

// UsedSteps returns the members of StepNames that the build uses, given the steps that exist.
func UsedSteps(build *api.AgentBuild, template *templates.Template,
	steps map[string]*templates.Step) []string {
	return configMaps(build, template.ForBuild(build, steps))
}

func configMaps(build *api.AgentBuild, template *templates.Template) []string {
	var names []string
	c := &composer{Input: Input{Build: build, Template: template}, faulty: map[string]bool{}}
	listRows(c)
	for _, s := range c.steps {
		if s.row.ConfigMap != "" && !slices.Contains(names, s.row.ConfigMap) {
			names = append(names, s.row.ConfigMap)
		}
	}
	return names
}

// InputHashes returns hashes of the build's spec, and of the text of its template and steps:
// SHA-256 in 64 hexadecimal digits. A change of either makes another run due. They do not depend on
// this program's version or settings, so that neither rebuilds a finished build.
func InputHashes(build *api.AgentBuild, template *templates.Template,
	steps map[string]*templates.Step) (spec, texts string) {
	parts := []string{template.Doc.Body}
	for _, name := range UsedSteps(build, template, steps) {
		if step := steps[name]; step != nil {
			parts = append(parts, name, step.Doc.Body)
		}
	}
	return fingerprint(tekton.JSON(Shape(build))), fingerprint(parts...)
}

// Shape returns a build's spec without the fields that do not affect its runs.
func Shape(build *api.AgentBuild) api.AgentBuildSpec {
	shape := build.DeepCopy().Spec
	shape.CleanupAfterBuild = nil
	shape.Priority = 0
	shape.Trigger, shape.Report = nil, nil
	shape.Retries = nil
	shape.Retention = nil
	shape.OnChange = ""
	shape.OnTemplateChange = ""
	shape.Cancel = false
	shape.Mode = modeOf(build)
	return shape
}

// SourceHash identifies a build's source by the requested repository and revision, from the
// spec or the template.
func SourceHash(b *api.AgentBuild, t *templates.Template) string {
	return fingerprint(Repository(b, t), Revision(b, t))
}

// fingerprint returns the SHA-256 of texts in 64 hexadecimal digits. The order of the texts
// matters.
func fingerprint(parts ...string) string {
	sum := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(sum, "%d:%s\n", len(p), p)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// Material is a ConfigMap that a run of an attested template was composed from.
type Material struct {
	// ConfigMap is NAMESPACE/NAME, or the name alone.
	ConfigMap string `json:"configMap"`
	// Digest of the text: "sha256:" and 64 hexadecimal digits.
	Digest string `json:"digest"`
}

// Materials are the inputs of a run of an attested template, which the annotation
// keys.AnnotationMaterials holds.
type Materials struct {
	Template Material `json:"template"`
	// Steps are the materials of the steps, by their names in the template.
	Steps map[string]Material `json:"steps"`
}

func material(d *templates.Document) Material {
	return Material{ConfigMap: strings.TrimPrefix(d.From.Namespace+"/"+d.From.Name, "/"),
		Digest: digest(d.Body)}
}

func materials(c *composer) Materials {
	m := Materials{Template: material(c.Template.Doc), Steps: map[string]Material{}}
	for _, s := range c.steps {
		m.Steps[s.row.Name] = material(s.file.Doc)
	}
	return m
}

// RunDigest returns the digest of a run's spec: "sha256:" and 64 hexadecimal digits. Neither
// Tekton's defaults nor a request to stop the run change it.
func RunDigest(spec *tektonv1.PipelineRunSpec) string {
	whole := stored(spec)
	whole.SetDefaults(background())
	whole.Status = ""
	return digest(tekton.JSON(whole))
}

// PipelineDigest returns the digest of a pipeline that a run refers to, like RunDigest.
func PipelineDigest(spec *tektonv1.PipelineSpec) string {
	whole := stored(spec)
	whole.SetDefaults(background())
	return digest(tekton.JSON(whole))
}

// stored returns a spec in the form that the API server returns.
func stored[T any](spec *T) *T {
	var whole T
	if err := json.Unmarshal([]byte(tekton.JSON(spec)), &whole); err != nil {
		panic(fmt.Sprintf("compose: reading a %T: %v", spec, err))
	}
	return &whole
}

func digest(text string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(text))) }
