package manifest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/templates"
)

// Library holds template and step ConfigMaps by name.
type Library struct {
	ConfigMaps map[string]compose.ConfigMap
}

// Shipped is the library that armature brings.
func Shipped() (*Library, error) {
	lib := &Library{}
	for _, dir := range []string{"modes", "steps"} {
		if err := lib.add(templates.Files, dir, "shipped "); err != nil {
			return nil, err
		}
	}
	return lib, nil
}

// AddDir adds the ConfigMaps of the YAML and JSON files below a folder; they win
// over those that the library had under the same names. Two in the folder with
// one name are an error.
func (l *Library) AddDir(folder fs.FS, name string) error {
	return l.add(folder, ".", strings.TrimSuffix(name, "/")+"/")
}

func (l *Library) add(folder fs.FS, root, prefix string) error {
	added := map[string]krm.Place{}
	var problems []error
	err := fs.WalkDir(folder, root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ext := path.Ext(file); entry.IsDir() || ext != ".yaml" && ext != ".yml" && ext != ".json" {
			return nil
		}
		f, err := folder.Open(file)
		if err != nil {
			return err
		}
		data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
		if err := errors.Join(err, f.Close()); err != nil {
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
			before := len(problems)
			d.doubled(&problems)
			if len(problems) > before {
				continue
			}
			var cm corev1.ConfigMap
			if err := yaml.UnmarshalStrict(d.text, &cm); err != nil {
				problems = append(problems, d.at("").Fault(api.ReasonInvalidTemplate, strings.ReplaceAll(err.Error(), "\n", " "), "fix the ConfigMap"))
				continue
			}
			if before, twice := added[cm.Name]; twice {
				problems = append(problems, d.at("").At("metadata.name").Fault(api.ReasonInvalidTemplate,
					fmt.Sprintf("ConfigMap %q is also in %s", cm.Name, before), "keep one of the two, or give the folder of one namespace"))
				continue
			}
			added[cm.Name] = d.at("")
			if l.ConfigMaps == nil {
				l.ConfigMaps = map[string]compose.ConfigMap{}
			}
			l.ConfigMaps[cm.Name] = compose.ConfigMap{Namespace: cm.Namespace, Name: cm.Name, File: d.file, Line: d.line, Data: cm.Data}
		}
		return nil
	})
	if err != nil {
		problems = append(problems, fmt.Errorf("reading %s: %w", prefix, err))
	}
	return compose.Join(problems...)
}

// Names of the ConfigMaps whose names begin with prefix, sorted.
func (l *Library) Names(prefix string) []string {
	var out []string
	for name := range l.ConfigMaps {
		if strings.HasPrefix(name, prefix) {
			out = append(out, name)
		}
	}
	sort.Strings(out)
	return out
}

// Compose a build from the library.
func (l *Library) Compose(build Build, settings compose.Settings) (*compose.Output, error) {
	name := compose.TemplateName(build.Spec.Mode)
	cm, ok := l.ConfigMaps[name]
	if !ok {
		return nil, build.doc.at("spec.mode").Fault(api.ReasonTemplateNotFound,
			fmt.Sprintf("template ConfigMap %q does not exist", name), "use one of "+strings.Join(l.modes(), ", ")+", or add it with --templates")
	}
	template, err := compose.ReadTemplate(cm)
	if template == nil {
		return nil, err
	}
	problems := []error{err}
	steps, faults := map[string]*compose.StepFile{}, map[string]error{}
	for _, name := range compose.StepNames(build.AgentBuild, template) {
		if cm, ok := l.ConfigMaps[name]; ok { // else composition names who asked for it
			steps[name], faults[name] = compose.ReadStep(cm)
		}
	}
	for _, name := range compose.UsedSteps(build.AgentBuild, template, steps) {
		problems = append(problems, faults[name])
	}
	out, err := compose.Pipeline(compose.Input{Build: build.AgentBuild, Place: build.Place, Template: template, Steps: steps, Settings: settings})
	if err := compose.Join(append(problems, err)...); err != nil {
		return nil, build.located(err)
	}
	return out, nil
}

// located gives the problems of the build itself their lines.
func (b Build) located(err error) error {
	var problems []error
	for _, f := range compose.Findings(err) {
		if f.At("") == b.Place && f.Field != "" {
			f.Place = b.doc.at(f.Field)
		}
		problems = append(problems, f)
	}
	return compose.Join(problems...)
}

func (l *Library) modes() []string {
	var out []string
	for _, name := range l.Names(compose.TemplateName("x")[:len(compose.TemplateName("x"))-1]) {
		out = append(out, strings.TrimPrefix(name, "pipeline-template-"))
	}
	return out
}
