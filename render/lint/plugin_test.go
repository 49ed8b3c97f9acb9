package lint

import "testing"

// TestIsConfig: what might be more than a RenderConfig is a plugin's, which kustomize
// might read a URL from.
func TestIsConfig(t *testing.T) {
	const config = "apiVersion: armature.dev/v1alpha1\nkind: RenderConfig\n" +
		"spec: {identity: {inbound: {validation: {issuer: 'https://kc.example.com'}}}}\n"
	const other = "apiVersion: builtin\nkind: PatchTransformer\n" +
		"path: https://example.com/patch.yaml\n"
	for text, want := range map[string]bool{
		config:                         true,
		"---\n" + config:               true,
		config + "---\n" + other:       false,
		config + "...\n" + other:       false,
		other:                          false,
		config + "kind: Other\n":       false,
		"Kind: RenderConfig\n" + other: false,
	} {
		if got := isConfig([]byte(text)); got != want {
			t.Errorf("%v for\n%s", got, text)
		}
	}
}
