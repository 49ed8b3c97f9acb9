package render_test

import (
	"strings"
	"testing"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/sidecars"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/source"
)

// TestSource001InEachProfile: the custom resources of source 001, as they are written there,
// render in each profile. What AuthBridge does without is one info for each of them.
func TestSource001InEachProfile(t *testing.T) {
	src, _, err := source.Tree("../examples/weather-agent-prod", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range sidecars.All().Names() {
		if name == sidecars.Rossoctl { // which has other labels
			continue
		}
		r, err := render.Run(src, render.Options{Config: config(t, `{profile: `+name+`}`)})
		if err != nil || finding.Failed(r.Findings) || r.Stats.Workloads != 1 {
			t.Errorf("%s: %v %v", name, err, r.Findings)
		}
		var needless []string
		for _, f := range r.Findings {
			if f.Rule == "identity/needless" {
				needless = append(needless, f.Object.Kind+": "+f.Message)
			}
		}
		text := strings.Join(needless, "\n")
		switch {
		case name != sidecars.AuthBridge && text != "":
			t.Errorf("%s: %s", name, text)
		case name == sidecars.AuthBridge &&
			(len(needless) != 2 || !strings.Contains(text, "adminCredentialsSecret") ||
				!strings.Contains(text, "clientNameTemplate")):
			t.Errorf("AuthBridge: %s", text)
		}
		for _, f := range r.Files {
			if name == sidecars.AuthBridge && strings.Contains(string(f.Data), "KEYCLOAK_ADMIN") {
				t.Errorf("%s names the administrator's credentials", f.Path)
			}
		}
	}
}
