package sidecars

import (
	"strings"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// AuthProxy checks the tokens of what arrives.
const AuthProxy = "auth-proxy"

const authProxyRepository = repository + "auth-proxy"

func authProxy() identity.Sidecar {
	return identity.Sidecar{
		Name:      AuthProxy,
		Default:   identity.Component{Enabled: true, Image: authProxyRepository + imageTag, ImagePullPolicy: "IfNotPresent", CPURequest: "50m", MemoryRequest: "64Mi", CPULimit: "200m", MemoryLimit: "256Mi"},
		Container: appendAuthProxy,
		Mounts:    func(*identity.Settings) []identity.Mount { return []identity.Mount{readOnly(ConfigVolume, MountPath)} },
		Ports: func(dst []identity.Listener, s *identity.Settings) []identity.Listener {
			return append(dst,
				identity.Listener{Port: s.Inbound.Port, Name: AuthProxy, Field: identity.ReversePort, Key: identity.InboundPort},
				identity.Listener{Port: s.Inbound.TargetPort, Name: "the agent", Field: identity.AgentPort, Key: identity.TargetPort, Agent: true})
		},
		Values: func(dst []byte, s *identity.Settings) []byte {
			dst = append(appendInboundValues(dst, s), "  LISTEN_PORT: \""...)
			dst = scalar.AppendInt(dst, s.Inbound.Port)
			dst = append(dst, "\"\n  TARGET_SERVICE_URL: \"http://127.0.0.1:"...)
			dst = scalar.AppendInt(dst, s.Inbound.TargetPort)
			return append(dst, "\"\n"...)
		},
	}
}

func appendAuthProxy(dst []byte, s *identity.Settings) []byte {
	w := writer{dst, s}
	w.text("  ports:\n  - name: auth-proxy\n    containerPort: ")
	w.dst = scalar.AppendInt(w.dst, s.Inbound.Port)
	w.text("\n  env:\n")
	w.configured("LISTEN_PORT")
	w.configured("TARGET_SERVICE_URL")
	if s.Inbound.Validate {
		w.self()
		w.configured("ISSUER")
		w.configured("JWKS_URL")
		w.audience("AUDIENCE")
		if len(s.Inbound.RequiredScopes) > 0 {
			w.configured("REQUIRED_SCOPES")
		}
		w.configured("BYPASS_INBOUND_PATHS")
	}
	// Where Envoy is in front of it, a probe from outside would be sent to an
	// Envoy that starts only afterwards.
	if !s.Outbound.Intercept {
		w.text("  startupProbe:\n    tcpSocket:\n      port: auth-proxy\n")
		w.probe()
	}
	w.resources(s.Component(AuthProxy))
	w.proxySecurity()
	return w.dst
}

// appendInboundValues appends what says which tokens are accepted.
func appendInboundValues(dst []byte, s *identity.Settings) []byte {
	if !s.Inbound.Enabled || !s.Inbound.Validate {
		return dst
	}
	dst = appendValue(dst, "ISSUER", s.Inbound.Issuer)
	dst = appendValue(dst, "JWKS_URL", s.Inbound.JWKSURL)
	if s.Inbound.Audience != "self" && s.Inbound.Audience != "any" {
		dst = appendValue(dst, "EXPECTED_AUDIENCE", s.Inbound.Audience)
	}
	if len(s.Inbound.RequiredScopes) > 0 {
		dst = append(dst, "  REQUIRED_SCOPES: \""...)
		dst = append(appendJoined(dst, s.Inbound.RequiredScopes, ' '), '"', '\n')
	}
	dst = append(dst, "  BYPASS_INBOUND_PATHS: \""...)
	dst = appendJoined(dst, s.Inbound.BypassPaths, ',')
	comma := len(s.Inbound.BypassPaths) > 0
	for _, p := range s.Declared.ProbePaths {
		if open, ok := identity.OpenProbe(p); ok {
			if comma {
				dst = append(dst, ',')
			}
			dst, comma = scalar.AppendInner(dst, open), true
		}
	}
	dst = append(dst, '"', '\n')
	return dst
}

// audience appends a variable with the audience that inbound tokens have to
// be for.
func (w *writer) audience(name string) {
	s := w.s
	switch {
	case s.Inbound.Audience == "any":
	case !s.SelfAudience():
		w.optional(name, "EXPECTED_AUDIENCE")
	case s.SPIFFE.Enabled:
		w.text("  - name: ", name, "\n    value: \"spiffe://")
		w.dst = scalar.AppendEnvInner(w.dst, s.SPIFFE.TrustDomain)
		w.text("/ns/$(POD_NAMESPACE)/sa/$(POD_SERVICE_ACCOUNT)\"\n")
	default:
		w.text("  - name: ", name, "\n    value: \"$(CLIENT_NAME)\"\n")
	}
}

// self appends the variables that audience refers to.
func (w *writer) self() {
	switch s := w.s; {
	case !s.SelfAudience():
	case s.SPIFFE.Enabled:
		w.field("POD_NAMESPACE", "metadata.namespace")
		w.field("POD_SERVICE_ACCOUNT", "spec.serviceAccountName")
	default:
		w.clientName()
	}
}

// Unpublished reports whether an image is the default profile's auth-proxy, of
// which no version was ever published under any tag.
func Unpublished(image string) bool {
	rest, ok := strings.CutPrefix(image, authProxyRepository)
	return ok && (rest == "" || rest[0] == ':' || rest[0] == '@')
}

// UnpublishedRemedy says what to do about an Unpublished image.
const UnpublishedRemedy = "set spec.profile: " + AuthBridge + ", whose images exist, or build one and set spec.components." + AuthProxy + ".image"
