package manifest_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/armature-dev/armature/builds/compose/manifest"
	"github.com/armature-dev/armature/builds/compose/templates"
)

// Every builder of every shipped template composes.
func TestLintComposesEachBuilder(t *testing.T) {
	library, err := manifest.Shipped()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := library.Lint(library.ConfigMaps); err != nil {
		t.Error(err)
	}
	cm := library.ConfigMaps["pipeline-template-prod"]
	cm.Data = maps.Clone(cm.Data)
	cm.Data[templates.TemplateKeyYAML] = strings.Replace(cm.Data[templates.TemplateKeyYAML],
		"$(tasks.buildkit-build.results.layout-digest)", "$(tasks.buildkit-build.results.digest)", 1)
	if _, _, err := library.Lint(map[string]templates.ConfigMap{cm.Name: cm}); err == nil ||
		!strings.Contains(err.Error(), "declares no such result") {
		t.Errorf("a fault of a builder that is not the default: %v", err)
	}
}
