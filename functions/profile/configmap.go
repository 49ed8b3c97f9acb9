package profile

import (
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// Keys of the ConfigMap. Those in capitals are environment variables of the
// programs; the others are files in the volume that mounts all of it.
const (
	HelperConf     = "helper.conf"
	EnvoyYAML      = "envoy.yaml"
	RoutesYAML     = "routes.yaml"
	AWSConfig      = "aws-config"
	GCPCredentials = "gcp-credentials.json"
)

// ReadAtStart reports whether the program that reads a key as a file does so when
// it starts, and keeps what it read: Envoy its configuration, the token processor
// its routes, spiffe-helper its own. (Source: their documentation.)
func ReadAtStart(key string) bool {
	return key == HelperConf || key == EnvoyYAML || key == RoutesYAML
}

// MountPath is where the sidecars that look nowhere else find the ConfigMap's
// files. The paths of the others are theirs: /etc/envoy, /etc/spiffe-helper,
// /etc/authproxy.
const MountPath = "/etc/armature/identity"

// TokenPath is where the application and client-registration find the tokens that
// AWSConfig and GCPCredentials refer to. It is a directory of its own, because
// what is mounted over a directory of the application's image hides its files.
const TokenPath = "/etc/armature/tokens"

// AppendData appends the data of the workload's ConfigMap.
func AppendData(dst []byte, s *identity.Settings) []byte {
	start := len(dst)
	dst = append(dst, "data:\n"...)
	empty := len(dst)
	for i := range s.Profile.Sidecars {
		if x := &s.Profile.Sidecars[i]; s.Components[i].Enabled && x.Files != nil {
			dst = x.Files(dst, s)
		}
	}
	for i := range s.Profile.Sidecars {
		if x := &s.Profile.Sidecars[i]; s.Components[i].Enabled && x.Values != nil {
			dst = x.Values(dst, s)
		}
	}
	if len(dst) == empty {
		return append(dst[:start], "data: {}\n"...)
	}
	return dst
}

// appendValue appends what the programs read as an environment variable, which the
// containers take from this key.
func appendValue(dst []byte, key, value string) []byte {
	dst = append(append(append(dst, "  "...), key...), ": "...)
	return append(scalar.AppendYAML(dst, value), '\n')
}
