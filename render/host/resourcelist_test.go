package host_test

import (
	"strings"
	"testing"

	"github.com/armature-dev/armature/render/host"
)

// TestFunctionConfigOfTheWrongShape: a host's configuration that cannot be read is an error, and
// not one that is left out.
func TestFunctionConfigOfTheWrongShape(t *testing.T) {
	for config, want := range map[string]string{
		"kind: ConfigMap, data: [profile]": "its data is not a mapping",
		"kind: ConfigMap, data: kagenti":   "its data is not a mapping",
		"[profile]":                        "it is not an object",
	} {
		if strings.Contains(config, ":") {
			config = "{apiVersion: v1, " + config + "}"
		}
		_, err := host.ReadList([]byte("apiVersion: config.kubernetes.io/v1\nkind: ResourceList\n" +
			"items: []\nfunctionConfig: " + config + "\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", config, err)
		}
	}
}
