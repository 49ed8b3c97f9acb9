package manifest

import (
	"fmt"
	"maps"
	"os"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/templates"
)

// ShippedModes returns the modes of the embedded templates.
func ShippedModes() []string {
	files, err := templates.Files.ReadDir("modes")
	if err != nil {
		panic(err) // it is embedded
	}
	var modes []string
	for _, f := range files {
		if mode, ok := strings.CutPrefix(f.Name(), "pipeline-template-"); ok {
			modes = append(modes, strings.TrimSuffix(mode, ".yaml"))
		}
	}
	return modes
}

// Objects returns the objects of a plan in the order in which the controller creates them, without
// the empty fields of Go types.
func Objects(out *compose.Output) []any {
	var objects []any
	add := func(o any) {
		raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			panic(fmt.Sprintf("converting %T: %v", o, err)) // API types always convert
		}
		delete(raw, "status")
		objects = append(objects, withoutNulls(raw))
	}
	for _, o := range out.Apply {
		if _, is := o.(*tektonv1.Pipeline); !is {
			add(o)
		}
	}
	add(out.Pipeline)
	add(out.Run)
	return objects
}

func withoutNulls(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			if inner == nil {
				delete(v, key)
				continue
			}
			v[key] = withoutNulls(inner)
		}
	case []any:
		for i := range v {
			v[i] = withoutNulls(v[i])
		}
	}
	return value
}

// Open opens the shipped library with the folders on top.
func Open(dirs []string) (*Library, error) {
	library, err := Shipped()
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		own, err := OpenFolder(dir)
		if err != nil {
			return nil, err
		}
		maps.Copy(library.ConfigMaps, own.ConfigMaps)
	}
	return library, nil
}

// OpenFolder reads the templates and steps of one folder. A folder without any is an error.
func OpenFolder(dir string) (*Library, error) {
	const hint = "\n  hint: give a folder with ConfigMaps that hold template.yaml or task-spec.yaml"
	if info, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("reading templates and steps: %w%s", err, hint)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("reading templates and steps: %s is not a folder%s", dir, hint)
	}
	own := &Library{}
	if err := own.AddDir(os.DirFS(dir), dir); err != nil {
		return nil, err
	}
	if !own.HasBuilds() {
		return nil, fmt.Errorf("%s: no template and no step was found%s", dir, hint)
	}
	return own, nil
}
