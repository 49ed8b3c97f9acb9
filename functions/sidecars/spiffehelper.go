package sidecars

import (
	_ "embed"
	"path"
	"strconv"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/block"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// SpiffeHelper fetches the workload's SVIDs and renews them.
const SpiffeHelper = "spiffe-helper"

func spiffeHelper() identity.Sidecar {
	return identity.Sidecar{
		Name:    SpiffeHelper,
		Default: component(repository+"spiffe-helper"+imageTag, "50m", "64Mi", "100m", "128Mi"),
		Container: func(*identity.Settings) identity.Container {
			return identity.Container{
				Program:  words("args", "-config", "/etc/spiffe-helper/helper.conf"),
				Startup:  startup(httpGet("/ready", "spiffe-health")),
				Security: helperSecurity,
			}
		},
		Mounts: func(s *identity.Settings) []identity.Mount {
			return []identity.Mount{
				readOnly(ConfigVolume, "/etc/spiffe-helper"),
				readOnly(SocketVolume, path.Dir(s.SPIFFE.SocketPath)),
				writable(SVIDVolume(s), s.SPIFFE.TokenDir),
			}
		},
		Ports: func(dst []identity.Port, s *identity.Settings) []identity.Port {
			return append(dst,
				identity.Port{Number: s.SPIFFE.HealthPort, ContainerPort: "spiffe-health",
					Name: "spiffe-helper's health check", Field: "spiffe"})
		},
		Files: func(s *identity.Settings) []block.Node {
			return []block.Node{block.File(HelperConf, helperConf(s))}
		},
	}
}

//go:embed files/helper.conf
var helperConfText string

// helperConf returns spiffe-helper's configuration, HCL 1 as its README documents it. The proxies,
// which run as another user, also read the token.
func helperConf(s *identity.Settings) string {
	quoted := func(text string) string { return string(scalar.AppendHCL(nil, text)) }
	return filled(helperConfText, map[string]bool{"x509": s.SPIFFE.OutputFormat == "x509",
		"aws": cloud(s) == "aws", "gcp": cloud(s) == "gcp"},
		"Socket", quoted(s.SPIFFE.SocketPath), "TokenDir", quoted(s.SPIFFE.TokenDir),
		"Audience", quoted(s.SPIFFE.Audience), "AWS", quoted(s.Registration.AWS.Audience),
		"GCP", quoted(s.Registration.GCP.Audience),
		"HealthPort", strconv.Itoa(s.SPIFFE.HealthPort))
}
