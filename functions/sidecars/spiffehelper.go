package sidecars

import (
	"path"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// SpiffeHelper fetches the workload's SVIDs and keeps them fresh.
const SpiffeHelper = "spiffe-helper"

func spiffeHelper() identity.Sidecar {
	return identity.Sidecar{
		Name:      SpiffeHelper,
		Default:   identity.Component{Enabled: true, Image: repository + "spiffe-helper" + imageTag, ImagePullPolicy: "IfNotPresent", CPURequest: "50m", MemoryRequest: "64Mi", CPULimit: "100m", MemoryLimit: "128Mi"},
		Container: appendSpiffeHelper,
		Mounts: func(s *identity.Settings) []identity.Mount {
			return []identity.Mount{
				readOnly(ConfigVolume, "/etc/spiffe-helper"), readOnly(SocketVolume, path.Dir(s.SPIFFE.SocketPath)), writable(SVIDVolume(s), s.SPIFFE.TokenDir),
			}
		},
		Ports: func(dst []identity.Listener, s *identity.Settings) []identity.Listener {
			return append(dst, identity.Listener{Port: s.SPIFFE.HealthPort, Name: "spiffe-helper's health check", Field: "spiffe"})
		},
		Files: func(dst []byte, s *identity.Settings) []byte {
			return appendHelperConf(append(dst, "  "+HelperConf+": |\n"...), s)
		},
	}
}

func appendSpiffeHelper(dst []byte, s *identity.Settings) []byte {
	w := writer{dst, s}
	w.text("  args:\n  - -config\n  - /etc/spiffe-helper/helper.conf\n")
	w.text("  ports:\n  - name: spiffe-health\n    containerPort: ")
	w.dst = scalar.AppendInt(w.dst, s.SPIFFE.HealthPort)
	w.text("\n  startupProbe:\n    httpGet:\n      path: /ready\n      port: spiffe-health\n")
	w.probe()
	w.resources(s.Component(SpiffeHelper))
	w.text(helperSecurity)
	return w.dst
}

// appendHelperConf writes spiffe-helper's configuration, HCL 1 as its README
// documents it.
func appendHelperConf(dst []byte, s *identity.Settings) []byte {
	dst = scalar.AppendHCL(append(dst, "    agent_address = "...), s.SPIFFE.SocketPath)
	dst = scalar.AppendHCL(append(dst, "\n    cert_dir = "...), s.SPIFFE.TokenDir)
	dst = append(dst, "\n    daemon_mode = true\n"...)
	if s.SPIFFE.OutputFormat == "x509" {
		dst = append(dst, `    svid_file_name = "svid.pem"
    svid_key_file_name = "svid_key.pem"
    svid_bundle_file_name = "svid_bundle.pem"
`...)
	}
	dst = scalar.AppendHCL(append(dst, "    jwt_svids = [{jwt_audience="...), s.SPIFFE.Audience)
	dst = append(dst, `, jwt_svid_file_name="jwt_svid.token"}`...)
	switch cloud(s) {
	case "aws":
		dst = scalar.AppendHCL(append(dst, ", {jwt_audience="...), s.Registration.AWS.Audience)
		dst = append(dst, `, jwt_svid_file_name="aws.token"}`...)
	case "gcp":
		dst = scalar.AppendHCL(append(dst, ", {jwt_audience="...), s.Registration.GCP.Audience)
		dst = append(dst, `, jwt_svid_file_name="gcp.token"}`...)
	}
	// The proxies, which run as another user, read the token too.
	dst = append(dst, `]
    jwt_svid_file_mode = 0644
    health_checks {
      listener_enabled = true
      bind_port = `...)
	return append(scalar.AppendInt(dst, s.SPIFFE.HealthPort), `
      liveness_path = "/live"
      readiness_path = "/ready"
    }
`...)
}
