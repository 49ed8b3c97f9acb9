package lintrules

import (
	"testing"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
)

// TestKeycloakAdminSeverity: what is an error where SPIFFE identifies clients is a
// warning where client-registration needs it, unless the configuration says more.
func TestKeycloakAdminSeverity(t *testing.T) {
	config := func(profile string, severity ...string) *api.RenderConfig {
		c := &api.RenderConfig{}
		c.Spec.Profile = &profile
		for _, s := range severity {
			c.Spec.Lint = map[string]string{keycloakAdminRule: s}
		}
		return c
	}
	for _, test := range []struct {
		config *api.RenderConfig
		want   finding.Severity
	}{
		{nil, finding.Error},
		{config("kagenti"), finding.Warning},
		{config("kagenti-published"), finding.Warning},
		{config("authbridge"), finding.Error},
		{config("kagenti", "error"), finding.Error},
		{config("authbridge", "info"), finding.Info},
	} {
		if got := New(test.config, "kagenti.io").Severity(keycloakAdminRule); got != test.want {
			t.Errorf("%+v: %s, want %s", test.config, got, test.want)
		}
	}
}
