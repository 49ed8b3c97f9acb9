package install

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/armature-dev/armature/render/deliver/sign"
)

// Keyless signs the images of modes with attest: true with the controller's identity.
type Keyless struct {
	// Fulcio is the URL that certifies the controller's identity; empty if a key signs.
	Fulcio     string `json:"fulcioURL,omitempty"`
	Timestamps string `json:"timestampURL,omitempty"`
	// TrustedRoot names a ConfigMap with the key trusted_root.json.
	TrustedRoot string `json:"trustedRoot,omitempty"`
}

// check returns an error for settings that are incomplete or have no effect.
func (k Keyless) check(key string) error {
	switch {
	case k.Fulcio == "" && k.Timestamps == "" && k.TrustedRoot == "":
		return nil
	case k.Fulcio == "" || k.Timestamps == "" || k.TrustedRoot == "":
		return errors.New("keyless: fulcioURL, timestampURL and trustedRoot go together")
	case key != "":
		return errors.New("attestKey and keyless: set only one of the two")
	case len(validation.IsDNS1123Subdomain(k.TrustedRoot)) > 0:
		return fmt.Errorf("keyless.trustedRoot %q is not the name of a ConfigMap", k.TrustedRoot)
	}
	for _, given := range [][2]string{{"fulcioURL", k.Fulcio}, {"timestampURL", k.Timestamps}} {
		if err := sign.CheckAuthority(given[1]); err != nil {
			return fmt.Errorf("keyless.%s %w", given[0], err)
		}
	}
	return nil
}

// patch returns a patch that adds the flags to the controller's Deployment, and a volume with a
// token for the audience sigstore and the trusted root.
func (k Keyless) patch() map[string]any {
	const pod, folder = "/spec/template/spec", "/var/run/secrets/sigstore"
	var text strings.Builder
	for _, added := range [][2]string{
		{"/containers/0/args/-", fmt.Sprintf("%q", "--attest-fulcio-url="+k.Fulcio)},
		{"/containers/0/args/-", fmt.Sprintf("%q", "--attest-timestamp-url="+k.Timestamps)},
		{"/containers/0/args/-", "--attest-trusted-root=" + folder + "/trusted_root.json"},
		{"/containers/0/volumeMounts/-", "{name: sigstore, mountPath: " + folder +
			", readOnly: true}"},
		{"/volumes/-", fmt.Sprintf("{name: sigstore, projected: {sources: [{serviceAccountToken: {"+
			"audience: sigstore, expirationSeconds: 600, path: token}}, {configMap: {name: %q, "+
			"items: [{key: trusted_root.json, path: trusted_root.json}]}}]}}", k.TrustedRoot)},
	} {
		fmt.Fprintf(&text, "- {op: add, path: %s, value: %s}\n", pod+added[0], added[1])
	}
	return map[string]any{"target": map[string]any{"kind": "Deployment",
		"name": "armature-controller"}, "patch": text.String()}
}
