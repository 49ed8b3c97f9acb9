package compose

import (
	"slices"

	"github.com/armature-dev/armature/builds/api"
)

// What a build takes of its template and steps, and the hashes that say whether it changed.

// StepNames are the step ConfigMaps that build needs of template, and those of all
// builders where its parameters may choose one.
func StepNames(build *api.AgentBuild, template *Template) []string {
	if p := build.Spec.Pipeline; p != nil && build.Spec.Builder == "" && !listsAll(build) &&
		slices.ContainsFunc(p.Parameters, func(p api.Parameter) bool { return !FromSpec(p.Name) && !noted[p.Name] }) {
		if _, because := builderOf(build, template, nil); because == "" {
			return configMaps(build, template)
		}
	}
	return UsedSteps(build, template, nil)
}

// UsedSteps are those of StepNames that the build is composed of. The map has the ones that exist.
func UsedSteps(build *api.AgentBuild, template *Template, steps map[string]*StepFile) []string {
	return configMaps(build, template.forBuild(build, steps))
}

func configMaps(build *api.AgentBuild, template *Template) []string {
	var names []string
	seen := map[string]bool{}
	c := &composition{in: Input{Build: build, Template: template}, problems: &findings{}}
	for _, s := range c.rows() {
		if s.row.ConfigMap != "" && !seen[s.row.ConfigMap] {
			seen[s.row.ConfigMap] = true
			names = append(names, s.row.ConfigMap)
		}
	}
	return names
}

// InputHashes identify the build's spec, and the text of its template and
// steps. A further run is due when one of them changes. They do not depend on
// this program's version or settings, so that neither rebuilds a finished build.
func InputHashes(build *api.AgentBuild, template *Template, steps map[string]*StepFile) (spec, texts string) {
	parts := []string{template.doc.body}
	for _, name := range UsedSteps(build, template, steps) {
		if step := steps[name]; step != nil {
			parts = append(parts, name, step.doc.body)
		}
	}
	return fingerprint(mustJSON(Shape(build)))[:16], fingerprint(parts...)[:16]
}

// Shape is what of a build's spec shapes its runs.
func Shape(build *api.AgentBuild) api.AgentBuildSpec {
	shape := build.Spec.DeepCopy()
	shape.CleanupAfterBuild = nil
	shape.Priority = 0
	shape.Retries = nil
	shape.Retention = nil
	shape.OnChange = ""
	shape.OnTemplateChange = ""
	shape.Cancel = false
	if shape.Mode == "" {
		shape.Mode = "dev"
	}
	return *shape
}

// SourceHash identifies where a build's source comes from: the repository and the
// revision as they are asked for, whether the spec or the template says so.
func SourceHash(b *api.AgentBuild, t *Template) string {
	return fingerprint(Repository(b, t), Revision(b, t))[:16]
}
