package manifest_test

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/manifest"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/functions/api/keys"
)

// A template and a step of the namespace that spec.pipeline.namespace names count once
// they name the build's namespace in a label.
func TestConfigMapsOfOtherNamespaces(t *testing.T) {
	const build = `apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: weather, namespace: team}
spec:
  mode: own
  source: {sourceRepository: github.com/org/weather}
  pipeline: {namespace: other}
`
	builds, err := manifest.Builds("build.yaml", []byte(build), api.DefaultGroup)
	if err != nil {
		t.Fatal(err)
	}
	composed := func(namespace, labels string) error {
		folder := fstest.MapFS{}
		for name, data := range map[string]string{
			"pipeline-template-own": templates.TemplateKeyYAML +
				`: "steps: [{name: only, configMap: own-step}]"`,
			"own-step": templates.StepKey +
				`: "steps: [{name: a, image: busybox:1.37.0, command: [a]}]"`,
		} {
			folder[name+".yaml"] = &fstest.MapFile{
				Data: []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name +
					", namespace: " + namespace + ", labels: {" + labels + "}}\ndata: {" + data + "}\n")}
		}
		library := &manifest.Library{}
		if err := library.AddDir(folder, "folder"); err != nil {
			return err
		}
		_, err := library.Compose(builds[0], compose.Settings{})
		return err
	}
	for where, in := range map[string]struct{ namespace, labels string }{
		"its own":      {"team", ""},
		"the platform": {api.DefaultNamespace, ""},
		"shared":       {"other", keys.SharePrefix + "team: \"true\""},
	} {
		if err := composed(in.namespace, in.labels); err != nil {
			t.Errorf("%s: %v", where, err)
		}
	}
	for where, labels := range map[string]string{"not shared": "",
		"shared with another": keys.SharePrefix + "teams: \"true\"",
		"withdrawn":           keys.SharePrefix + "team: \"false\""} {
		if err := composed("other", labels); err == nil ||
			!strings.Contains(err.Error(), "does not exist") ||
			!strings.Contains(err.Error(), keys.SharePrefix+"team") {
			t.Errorf("%s: %v", where, err)
		}
	}
}

// TestConfigMapsWithoutName checks that a template or step without a name is an error and no other
// ConfigMap is.
func TestConfigMapsWithoutName(t *testing.T) {
	read := func(data string) error {
		library := &manifest.Library{}
		return library.AddDir(fstest.MapFS{"a.yaml": &fstest.MapFile{
			Data: []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {labels: {a: b}}\n" + data)}}, "dir")
	}
	for _, key := range []string{templates.TemplateKeyYAML, templates.StepKey} {
		err := read("data: {" + key + ": \"steps: []\"}\n")
		if err == nil || !strings.Contains(err.Error(), "dir/a.yaml:3: metadata.name: is missing") {
			t.Errorf("%s without a name: %v", key, err)
		}
	}
	if err := read("data: {setting: value}\n"); err != nil {
		t.Errorf("another ConfigMap without a name: %v", err)
	}
}
