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

// TestKind is the kind, in keys.V1alpha1, of the documents that `armature build test` reads.
const TestKind = "BuildTest"

// Test is a step or a build that runs on this machine, and the expected outcome.
type Test struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              TestSpec `json:"spec"`

	// Place is where the test is written, and Build is what it runs.
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
	// Source is a folder, relative to the file: the content of the step's workspace, or of the
	// repository that the build clones. Default: no content.
	Source string `json:"source,omitempty"`
	// Secrets by name: folders, relative to the file, with a file for each key.
	Secrets map[string]string `json:"secrets,omitempty"`
	// Expect is the expected outcome.
	Expect Expectation `json:"expect"`
}

// Expectation is the expected outcome of a test.
type Expectation struct {
	// Result is Succeeded (the default) or Failed.
	Result string `json:"result,omitempty"`
	// Results of a step by name, and of a build by TASK.NAME.
	Results map[string]string `json:"results,omitempty"`
	// Logs are parts of lines that the steps write.
	Logs []string `json:"logs,omitempty"`
}

// Tests reads the tests of a file and ignores other documents. A file without tests is an error.
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
	// Set required fields that the test omits and that nothing reads.
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
