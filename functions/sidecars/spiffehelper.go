package sidecars

import (
	"path"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/block"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// SpiffeHelper fetches the workload's SVIDs and keeps them fresh.
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
			return []block.Node{block.File(HelperConf,
				helperConf(s))}
		},
	}
}

// helperConf returns spiffe-helper's configuration, HCL 1 as its README documents it.
func helperConf(s *identity.Settings) string {
	quoted := func(text string) string { return string(scalar.AppendHCL(nil, text)) }
	lines := []string{
		"agent_address = " + quoted(s.SPIFFE.SocketPath),
		"cert_dir = " + quoted(s.SPIFFE.TokenDir),
		"daemon_mode = true",
	}
	if s.SPIFFE.OutputFormat == "x509" {
		lines = append(lines,
			`svid_file_name = "svid.pem"`,
			`svid_key_file_name = "svid_key.pem"`,
			`svid_bundle_file_name = "svid_bundle.pem"`)
	}

	token := func(audience, file string) string {
		return "{jwt_audience=" + quoted(audience) + `, jwt_svid_file_name="` + file + `"}`
	}
	tokens := token(s.SPIFFE.Audience, "jwt_svid.token")
	switch cloud(s) {
	case "aws":
		tokens += ", " + token(s.Registration.AWS.Audience, "aws.token")
	case "gcp":
		tokens += ", " + token(s.Registration.GCP.Audience, "gcp.token")
	}

	return strings.Join(append(lines,
		"jwt_svids = ["+tokens+"]",
		"jwt_svid_file_mode = 0644", // the proxies, which run as another user, read the token too
		"health_checks {",
		"  listener_enabled = true",
		"  bind_port = "+strconv.Itoa(s.SPIFFE.HealthPort),
		`  liveness_path = "/live"`,
		`  readiness_path = "/ready"`,
		"}", ""), "\n")
}
