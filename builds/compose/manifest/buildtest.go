package manifest

import (
	"cmp"
	"maps"
	"path/filepath"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
)

// TestKind is the kind of the files that `armature build test` reads, of keys.V1alpha1.
const TestKind = "BuildTest"

// Test is a step or a build that runs on this machine, and what is expected of it.
type Test struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              TestSpec `json:"spec"`

	// Place of the test, and Build that runs for it.
	Place finding.Place `json:"-"`
	Build Build         `json:"-"`
}

// TestSpec has either a step or a build.
type TestSpec struct {
	// Step is the name of a step ConfigMap, which runs alone.
	Step string `json:"step,omitempty"`
	// Parameters of the step, by name.
	Parameters map[string]string `json:"parameters,omitempty"`
	// Build is the spec of an AgentBuild, whose source and buildOutput may be left out.
	Build map[string]any `json:"build,omitempty"`
	// Source is a folder, relative to the file: what the step finds in its workspace, or
	// what the build clones. Default: nothing.
	Source string `json:"source,omitempty"`
	// Secrets by name: folders, relative to the file, with a file for each key.
	Secrets map[string]string `json:"secrets,omitempty"`
	// Expect is what has to come of it.
	Expect Expectation `json:"expect"`
}

// Expectation of a test.
type Expectation struct {
	// Result is Succeeded (the default) or Failed.
	Result string `json:"result,omitempty"`
	// Results of the step by name; those of a build by TASK.NAME.
	Results map[string]string `json:"results,omitempty"`
	// Logs are parts of what steps write, each of one line.
	Logs []string `json:"logs,omitempty"`
}

// Tests reads the tests of a file; other documents are passed over. A file without any is an
// error.
func Tests(file string, data []byte, group string) ([]Test, error) {
	return each(file, data, TestKind, func(d document) (Test, error) { return readTest(d, group) })
}

func readTest(d document, group string) (t Test, err error) {
	if d.kind.APIVersion != keys.V1alpha1 {
		return t, d.bad("apiVersion", "use "+keys.V1alpha1, "is %q", d.kind.APIVersion)
	}
	if err := d.unmarshal(&t, "see `armature build test --help`"); err != nil {
		return t, err
	}
	t.Place = d.at("")
	spec := &t.Spec
	switch {
	case t.Name == "":
		return t, d.bad("metadata.name", "name the test", "is missing")
	case (spec.Step == "") == (spec.Build == nil):
		return t, d.bad("spec", "set one of the two", "needs either step or build")
	case spec.Build != nil && spec.Parameters != nil:
		return t, d.bad("spec.parameters", "set spec.build.pipeline.parameters", "is of a step")
	case !slices.Contains([]string{"", "Succeeded", "Failed"}, spec.Expect.Result):
		return t, d.bad("spec.expect.result", "use Succeeded or Failed", "is %q",
			spec.Expect.Result)
	}
	spec.Expect.Result = cmp.Or(spec.Expect.Result, "Succeeded")
	for _, folder := range append(slices.Collect(maps.Values(spec.Secrets)), spec.Source) {
		if filepath.IsAbs(folder) {
			return t, d.bad("spec", "name it relative to the file", "the folder %q is absolute",
				folder)
		}
	}
	of := spec.Build
	if spec.Step != "" {
		parameters := []any{}
		for _, name := range slices.Sorted(maps.Keys(spec.Parameters)) {
			parameters = append(parameters,
				map[string]any{"name": name, "value": spec.Parameters[name]})
		}
		of = map[string]any{"mode": "custom", "pipeline": map[string]any{
			"steps":      []any{map[string]any{"name": "step", "configMap": spec.Step}},
			"parameters": parameters}}
	}
	// What a test leaves out, which nothing reads.
	for field, value := range map[string]any{
		"source": map[string]any{"sourceRepository": "https://git.invalid/source.git",
			"sourceRevision": "main"},
		"buildOutput": map[string]any{"imageRegistry": "registry.invalid", "image": "test",
			"imageTag": "test"},
	} {
		if of[field] == nil {
			of[field] = value
		}
	}
	text, err := yaml.Marshal(map[string]any{"apiVersion": api.GroupVersion(group).String(),
		"kind":     api.Kind,
		"metadata": map[string]any{"name": t.Name, "namespace": cmp.Or(t.Namespace, "default")},
		"spec":     of})
	if err != nil {
		return t, err
	}
	builds, err := Builds(d.file+" ("+t.Name+")", text, group)
	if err != nil {
		return t, err
	}
	t.Build = builds[0]
	return t, nil
}
