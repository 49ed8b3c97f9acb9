package manifest

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/builds/failure/findings"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/multi"
	shipped "github.com/armature-dev/armature/templates"
)

// Library holds template and step ConfigMaps by name.
type Library struct {
	ConfigMaps map[string]templates.ConfigMap
	// Verdicts caches pipelines that were found valid; nil validates each build.
	Verdicts *compose.Verdicts
}

// Shipped returns the library that is embedded in armature.
func Shipped() (*Library, error) {
	lib := &Library{Verdicts: &compose.Verdicts{}}
	for _, dir := range []string{"modes", "steps"} {
		if err := lib.add(shipped.Files, dir, "shipped "); err != nil {
			return nil, err
		}
	}
	return lib, nil
}

// AddDir adds the ConfigMaps of the YAML and JSON files below a folder. They replace ConfigMaps of
// the same names in the library. Two ConfigMaps of one name in the folder are an error.
func (l *Library) AddDir(folder fs.FS, name string) error {
	return l.add(folder, ".", strings.TrimSuffix(name, "/")+"/")
}

func (l *Library) add(folder fs.FS, root, prefix string) error {
	if l.ConfigMaps == nil {
		l.ConfigMaps = map[string]templates.ConfigMap{}
	}
	added := map[string]finding.Place{}
	var problems []error
	err := fs.WalkDir(folder, root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ext := path.Ext(file); entry.IsDir() ||
			ext != ".yaml" && ext != ".yml" && ext != ".json" {
			return nil
		}
		f, err := folder.Open(file)
		if err != nil {
			return err
		}
		data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
		if err := multi.Errors(err, f.Close()); err != nil {
			return err
		}
		docs, err := split(prefix+file, data)
		if err != nil {
			problems = append(problems, err)
			return nil
		}
		for _, d := range docs {
			if d.kind.Kind != "ConfigMap" || d.kind.APIVersion != "v1" {
				continue
			}
			var cm corev1.ConfigMap
			if err := d.unmarshal(&cm, "fix the ConfigMap"); err != nil {
				problems = append(problems, err)
				continue
			}
			read := templates.ConfigMap{Namespace: cm.Namespace, Name: cm.Name, File: d.file,
				Line: d.root.Line, Labels: cm.Labels, Data: cm.Data}
			if cm.Name == "" {
				if isTemplate(read) || isStep(read) {
					problems = append(problems, d.bad("metadata.name", "name the ConfigMap",
						"is missing, so no build can use the template or step"))
				}
				continue
			}
			if previous, ok := added[cm.Name]; ok {
				problems = append(problems, d.at("").At("metadata.name").Fault(
					api.ReasonInvalidTemplate,
					fmt.Sprintf("ConfigMap %q is also in %s", cm.Name, previous),
					"keep one of the two, or give the folder of one namespace"))
				continue
			}
			added[cm.Name], l.ConfigMaps[cm.Name] = d.at(""), read
		}
		return nil
	})
	if err != nil {
		problems = append(problems, fmt.Errorf("reading %s: %w", prefix, err))
	}
	return findings.Join(problems...)
}

// Names returns the sorted names of the ConfigMaps that begin with prefix.
func (l *Library) Names(prefix string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(l.ConfigMaps)),
		func(name string) bool { return !strings.HasPrefix(name, prefix) })
}

// find returns a ConfigMap for a build as the controller does: a ConfigMap in the namespace of
// spec.pipeline.namespace must be shared with the build's namespace.
func (l *Library) find(b *api.AgentBuild, name string) (templates.ConfigMap, bool) {
	cm, ok := l.ConfigMaps[name]
	foreign := b.Spec.Pipeline != nil && cm.Namespace != "" &&
		cm.Namespace == b.Spec.Pipeline.Namespace &&
		cm.Namespace != api.DefaultNamespace && b.Namespace != "" && cm.Namespace != b.Namespace
	return cm, ok && (!foreign || cm.SharedWith(b.Namespace))
}

// Compose composes a build from the library.
func (l *Library) Compose(build Build, settings compose.Settings) (*compose.Output, error) {
	name := templates.TemplateName(build.Spec.Mode)
	cm, ok := l.find(build.AgentBuild, name)
	if !ok {
		modes := strings.Join(l.Names(templates.TemplatePrefix), ", ")
		return nil, build.doc.at("spec.mode").Fault(api.ReasonTemplateNotFound,
			fmt.Sprintf("template ConfigMap %q does not exist", name),
			"use one of "+strings.ReplaceAll(modes, templates.TemplatePrefix, "")+
				", or add it with --templates"+templates.ShareHint(build.AgentBuild))
	}
	template, err := templates.ReadTemplate(cm)
	if template == nil {
		return nil, err
	}
	problems := []error{err}
	steps, faults := map[string]*templates.Step{}, map[string]error{}
	for _, name := range compose.StepNames(build.AgentBuild, template) {
		if cm, ok := l.find(build.AgentBuild, name); ok { // compose.Pipeline reports a missing one
			steps[name], faults[name] = templates.ReadStep(cm)
		}
	}
	for _, name := range compose.UsedSteps(build.AgentBuild, template, steps) {
		problems = append(problems, faults[name])
	}
	out, err := compose.Pipeline(compose.Input{Build: build.AgentBuild, Place: build.Place,
		Template: template, Steps: steps, Settings: settings, Verdicts: l.Verdicts})
	if err := findings.Join(append(problems, err)...); err != nil {
		return nil, build.located(err)
	}
	return out, nil
}

// located sets the lines of findings about the build's own fields.
func (b Build) located(err error) error {
	var problems []error
	for _, f := range findings.Of(err) {
		if f.At("") == b.Place && f.Field != "" {
			f.Place = b.doc.at(f.Field)
		}
		problems = append(problems, f)
	}
	return findings.Join(problems...)
}
