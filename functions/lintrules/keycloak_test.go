package lintrules

import (
	"testing"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
)

// TestKeycloakAdminSeverity: the rule is an error if SPIFFE identifies clients and a warning if
// client-registration needs the credentials, unless the configuration sets the severity.
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
