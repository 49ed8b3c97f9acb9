package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/builds/failure/findings"
	"github.com/armature-dev/armature/functions/finding"
)

// Lint checks the templates and steps among only, and finds the ConfigMaps that they refer to in
// the whole library. It ignores ConfigMaps that are neither templates nor steps.
func (l *Library) Lint(
	only map[string]templates.ConfigMap) (checked int, warnings []string, err error) {
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(only)) {
		cm := only[name]
		switch {
		case isTemplate(cm):
			checked++
			more, err := l.lintTemplate(cm)
			problems, warnings = append(problems, err), append(warnings, more...)
		case isStep(cm):
			checked++
			step, err := templates.ReadStep(cm)
			problems = append(problems, err)
			warnings = append(warnings, lintStep(cm, step)...)
		}
	}
	return checked, warnings, findings.Join(problems...)
}

// isTemplate reports whether a ConfigMap has the key or the name of a template. The controller
// refuses one that has only the name.
func isTemplate(cm templates.ConfigMap) bool {
	_, isYAML := cm.Data[templates.TemplateKeyYAML]
	_, isJSON := cm.Data[templates.TemplateKeyJSON]
	return isYAML || isJSON || strings.HasPrefix(cm.Name, templates.TemplatePrefix)
}

// isStep reports whether a ConfigMap has the key of a step, or a misspelt one.
func isStep(cm templates.ConfigMap) bool {
	for key := range cm.Data {
		if strings.HasPrefix(strings.ToLower(strings.ReplaceAll(key, "_", "-")), "task-spec") {
			return true
		}
	}
	return false
}

// HasBuilds reports whether a template or a step is among the ConfigMaps.
func (l *Library) HasBuilds() bool {
	for _, cm := range l.ConfigMaps {
		if isTemplate(cm) || isStep(cm) {
			return true
		}
	}
	return false
}

// lintTemplate composes, for each builder that the template offers, a build that sets every field.
// Lint reports the problems of a step with the step.
func (l *Library) lintTemplate(cm templates.ConfigMap) (warnings []string, err error) {
	template, err := templates.ReadTemplate(cm)
	if template == nil || err != nil {
		return nil, err
	}
	builders := template.Builders()
	if len(builders) == 0 {
		builders = []string{""}
	}
	var problems []error
	for _, builder := range builders {
		more, err := l.lintWith(template, builder,
			strings.TrimPrefix(cm.Name, templates.TemplatePrefix))
		problems = append(problems, err)
		for _, w := range more {
			if !slices.Contains(warnings, w) {
				warnings = append(warnings, w)
			}
		}
	}
	return warnings, findings.Join(problems...)
}

func (l *Library) lintWith(template *templates.Template,
	builder, mode string) (warnings []string, err error) {
	build := &api.AgentBuild{
		ObjectMeta: metav1.ObjectMeta{Name: "lint", Namespace: "lint"},
		Spec: api.AgentBuildSpec{
			Mode:    mode,
			Builder: builder,
			Source: api.SourceSpec{SourceRepository: "git.example.com/org/repo",
				SourceRevision: "main", SourceSubfolder: "agent", RepoUser: "lint",
				SourceCredentials: &corev1.LocalObjectReference{Name: "git-login"}},
			BuildOutput: &api.BuildOutput{ImageRegistry: "registry.example.com", Image: "lint",
				ImageTag:             "v1",
				ImageRepoCredentials: &corev1.LocalObjectReference{Name: "registry-login"}},
			Pipeline: &api.PipelineSpec{},
		},
	}
	steps := map[string]*templates.Step{}
	declared := map[string]bool{}
	for _, name := range compose.StepNames(build, template) {
		if cm, ok := l.ConfigMaps[name]; ok {
			steps[name], _ = templates.ReadStep(cm) // Lint reports the error with the step
			for _, p := range steps[name].Task.Params {
				declared[p.Name] = true
			}
		}
	}
	// The build sets every parameter that the template requires.
	required := slices.Clone(template.RequiredParameters)
	for _, s := range template.Steps {
		required = append(required, s.RequiredParameters...)
	}
	for _, name := range required {
		if declared[name] && !templates.FromSpec(name) {
			build.Spec.Pipeline.Parameters = append(build.Spec.Pipeline.Parameters,
				api.Parameter{Name: name, Value: new("lint")})
			declared[name] = false
		}
	}
	out, err := compose.Pipeline(compose.Input{Build: build,
		Place:    finding.Place{Object: finding.Ref{Kind: "a build with all fields"}},
		Template: template, Steps: steps})
	if out != nil {
		warnings = out.Warnings
	}
	return warnings, err
}

// lintStep returns warnings about images without a version, missing resource requests and
// privileged containers.
func lintStep(cm templates.ConfigMap, step *templates.Step) []string {
	var out []string
	warn := func(format string, a ...any) {
		out = append(out, cm.String()+": "+fmt.Sprintf(format, a...))
	}
	shared := step.Task.StepTemplate
	for i, s := range step.Task.Steps {
		title := cmp.Or(s.Name, fmt.Sprint(i))
		if ref, err := name.ParseReference(s.Image); err == nil && ref.Identifier() == "latest" {
			warn("step %s: image %s may change at any time: set a version", title, s.Image)
		}
		if len(s.ComputeResources.Requests) == 0 &&
			(shared == nil || len(shared.ComputeResources.Requests) == 0) {
			warn("step %s: requests no resources, so the scheduler cannot plan for it", title)
		}
		if c := s.SecurityContext; c != nil && ptr.Deref(c.Privileged, false) {
			warn("step %s: is privileged, which a restricted namespace refuses", title)
		}
	}
	return out
}
