package identity

import (
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
)

// Profiles pick the defaults that everything else changes.
const (
	// ProfileKagenti is source 001.
	ProfileKagenti = "kagenti"
	// ProfileRossoctl is the same under the name the project took in 2026.
	ProfileRossoctl = "rossoctl"
	// ProfilePublished is the generation whose sidecars were published: no
	// auth-proxy, inbound tokens validated by Envoy's external processor.
	ProfilePublished = "kagenti-published"
	// ProfileAuthBridge is the generation of 2026-08: one proxy, which holds the
	// workload's SPIFFE identity itself.
	ProfileAuthBridge = "authbridge"
)

// Users of the injected containers: 001, "Security Contexts".
const (
	// HelperUID runs spiffe-helper and client-registration.
	HelperUID = 1000
	// DefaultProxyUID runs auth-proxy and envoy-proxy.
	DefaultProxyUID = 1337
)

// Ports that the published programs have built in.
const (
	// EnvoyAdminPort serves Envoy's administration interface, on loopback.
	EnvoyAdminPort = 9901
	// ExtProcPort is where the token processor beside Envoy listens.
	ExtProcPort = 9090
)

const (
	// imageTag is the newest generation for which spiffe-helper,
	// client-registration and envoy-with-processor are separate images.
	imageTag   = ":v0.4.0-alpha.10"
	repository = "ghcr.io/kagenti/kagenti-extensions/"

	authProxyRepository = repository + "auth-proxy"
	processorImage      = "envoy-with-processor"
)

// Unpublished reports whether an image is the default profile's auth-proxy, of
// which no version was ever published under any tag.
func Unpublished(image string) bool {
	rest, ok := strings.CutPrefix(image, authProxyRepository)
	return ok && (rest == "" || rest[0] == ':' || rest[0] == '@')
}

// UnpublishedRemedy says what to do about an Unpublished image.
const UnpublishedRemedy = "set spec.profile: " + ProfilePublished + ", whose images exist, or build one and set spec.components." + AuthProxy + ".image"

// defaults are those of 001, "Default Configuration", as the profile changes
// them; what 001 leaves open is as published.
func defaults(profile string) Settings {
	s := Settings{
		Profile: profile,
		Prefix:  keys.LabelPrefix,
		ProxyInit: Component{
			Enabled: true, Image: repository + "proxy-init" + imageTag, ImagePullPolicy: "IfNotPresent",
			CPURequest: "10m", MemoryRequest: "10Mi", CPULimit: "100m", MemoryLimit: "64Mi",
		},
		SpiffeHelper: Component{
			Enabled: true, Image: repository + "spiffe-helper" + imageTag, ImagePullPolicy: "IfNotPresent",
			CPURequest: "50m", MemoryRequest: "64Mi", CPULimit: "100m", MemoryLimit: "128Mi",
		},
		ClientRegistration: Component{
			Enabled: true, Image: repository + "client-registration" + imageTag, ImagePullPolicy: "IfNotPresent",
			CPURequest: "50m", MemoryRequest: "64Mi", CPULimit: "100m", MemoryLimit: "128Mi",
		},
		AuthProxy: Component{
			Enabled: true, Image: authProxyRepository + imageTag, ImagePullPolicy: "IfNotPresent",
			CPURequest: "50m", MemoryRequest: "64Mi", CPULimit: "200m", MemoryLimit: "256Mi",
		},
		EnvoyProxy: Component{
			Enabled: true, Image: repository + processorImage + imageTag, ImagePullPolicy: "IfNotPresent",
			CPURequest: "50m", MemoryRequest: "64Mi", CPULimit: "200m", MemoryLimit: "256Mi",
		},
		SPIFFE: SPIFFE{
			Enabled:      true,
			TrustDomain:  "cluster.local",
			SocketPath:   "/run/spire/agent-sockets/agent.sock",
			SocketVolume: "csi",
			OutputFormat: "jwt",
			Audience:     "kagenti-agents",
			TokenDir:     "/shared",
			HealthPort:   15125,
		},
		Registration: Registration{
			Enabled:       true,
			Provider:      "keycloak",
			URL:           "http://keycloak.kagenti-system.svc:8080",
			Realm:         "default",
			AdminSecret:   "keycloak-admin-secret",
			ClientName:    "{{.PodNamespace}}/{{.WorkloadName}}",
			TokenExchange: true,
			AWS:           AWS{Audience: "sts.amazonaws.com"},
		},
		Inbound: Inbound{
			Enabled:     true,
			Port:        8080,
			TargetPort:  8081,
			Validate:    true,
			Audience:    "self",
			BypassPaths: []string{"/.well-known/*", "/healthz", "/readyz", "/livez"},
		},
		Outbound: Outbound{
			Enabled:          true,
			Intercept:        true,
			ProxyPort:        15123,
			InboundProxyPort: 15124,
			ProxyUID:         DefaultProxyUID,
			ExcludePorts:     []int{8080},
			TokenExchange:    true,
			Default:          Target{Audience: "downstream-service", Scopes: []string{"openid"}},
		},
		Trace: Trace{
			Exporters: []Exporter{{
				Type: "otlp", Endpoint: "otel-collector.observability:4317",
				Protocol: "grpc", Compression: "none", Insecure: true,
			}},
			SamplerType: "always_on",
			Prometheus:  Prometheus{Port: 9090, Path: "/metrics"},
		},
		derive: derivation{issuer: true, jwks: true, tokenURL: true},
	}
	switch profile {
	case ProfileRossoctl:
		s.Prefix = "rossoctl.io"
	case ProfilePublished:
		s.AuthProxy.Enabled = false
		s.SPIFFE.SocketPath = "/spiffe-workload-api/spire-agent.sock"
		s.SPIFFE.Audience = "kagenti"
		s.SPIFFE.TokenDir = "/opt"
		s.Registration.URL = "http://keycloak-service.keycloak.svc:8080"
		s.Registration.Realm = "kagenti"
	case ProfileAuthBridge:
		s.authBridgeDefaults()
	}
	return s
}
