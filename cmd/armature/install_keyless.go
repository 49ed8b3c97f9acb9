package main

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/render/sign"
)

// keyless is how the installed controller attests by its identity. fulcio is empty where a
// key does.
type keyless struct {
	fulcio, timestamps string
	// trustedRoot names a ConfigMap, whose key is trusted_root.json.
	trustedRoot string
}

func (k *keyless) flags(f *pflag.FlagSet) {
	f.StringVar(&k.fulcio, "attest-fulcio-url", "", "authority that certifies the controller's ServiceAccount, which then signs attested builds instead of a key")
	f.StringVar(&k.timestamps, "attest-timestamp-url", "", "with --attest-fulcio-url, timestamp authority (RFC 3161) that says when it signed")
	f.StringVar(&k.trustedRoot, "attest-trusted-root", "", "with --attest-fulcio-url, ConfigMap in the controller's namespace whose trusted_root.json vouches for both authorities")
}

// check finds flags that would leave out what an identity needs, or do nothing.
func (k keyless) check(key, attest string) error {
	switch {
	case k == keyless{}:
		return nil
	case k.fulcio == "" || k.timestamps == "" || k.trustedRoot == "":
		return errors.New("--attest-fulcio-url, --attest-timestamp-url and --attest-trusted-root go together")
	case key != "":
		return errors.New("--attest-key and --attest-fulcio-url: either a key attests or the identity")
	case attest == "chains":
		return errors.New("--attest-fulcio-url requires --attest controller: Tekton Chains signs with a key of its own")
	case len(validation.IsDNS1123Subdomain(k.trustedRoot)) > 0:
		return fmt.Errorf("--attest-trusted-root %q is not the name of a ConfigMap", k.trustedRoot)
	}
	for _, given := range [][2]string{{"attest-fulcio-url", k.fulcio}, {"attest-timestamp-url", k.timestamps}} {
		if err := sign.CheckAuthority(given[1]); err != nil {
			return fmt.Errorf("--%s %w", given[0], err)
		}
	}
	return nil
}

// patch gives the controller's Deployment the flags, and a volume with a token for the
// audience sigstore and the trusted root.
func (k keyless) patch() (map[string]any, error) {
	const pod, folder = "/spec/template/spec", "/var/run/secrets/sigstore"
	add := func(path string, value any) map[string]any {
		return map[string]any{"op": "add", "path": pod + path, "value": value}
	}
	var operations []any
	for _, arg := range []string{"--attest-fulcio-url=" + k.fulcio, "--attest-timestamp-url=" + k.timestamps, "--attest-trusted-root=" + folder + "/trusted_root.json"} {
		operations = append(operations, add("/containers/0/args/-", arg))
	}
	operations = append(operations,
		add("/containers/0/volumeMounts/-", map[string]any{"name": "sigstore", "mountPath": folder, "readOnly": true}),
		add("/volumes/-", map[string]any{"name": "sigstore", "projected": map[string]any{"sources": []any{
			map[string]any{"serviceAccountToken": map[string]any{"audience": "sigstore", "expirationSeconds": 600, "path": "token"}},
			map[string]any{"configMap": map[string]any{"name": k.trustedRoot, "items": []any{map[string]any{"key": "trusted_root.json", "path": "trusted_root.json"}}}},
		}}}))
	text, err := yaml.Marshal(operations)
	return map[string]any{"target": map[string]any{"kind": "Deployment", "name": "armature-controller"}, "patch": string(text)}, err
}
