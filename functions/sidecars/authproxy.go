package sidecars

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/block"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// AuthProxy checks the tokens of inbound requests.
const AuthProxy = "auth-proxy"

const authProxyRepository = repository + "auth-proxy"

func authProxy() identity.Sidecar {
	return identity.Sidecar{
		Name:      AuthProxy,
		Default:   component(authProxyRepository+imageTag, "50m", "64Mi", "200m", "256Mi"),
		Container: authProxyContainer,
		Mounts: func(*identity.Settings) []identity.Mount {
			return []identity.Mount{readOnly(ConfigVolume,
				MountPath)}
		},
		Ports: func(dst []identity.Port, s *identity.Settings) []identity.Port {
			return append(dst,
				identity.Port{Number: s.Inbound.Port, ContainerPort: "auth-proxy", Name: AuthProxy,
					Field: identity.ReversePort, Key: identity.InboundPort},
				portOfAgent(s))
		},
		Values: func(s *identity.Settings) []block.Node {
			return append(inboundValues(s),
				block.Text("LISTEN_PORT", strconv.Itoa(s.Inbound.Port)),
				block.Text("TARGET_SERVICE_URL",
					fmt.Sprintf("http://127.0.0.1:%d", s.Inbound.TargetPort)))
		},
	}
}

func authProxyContainer(s *identity.Settings) identity.Container {
	env := []block.Node{configured(s, "LISTEN_PORT"), configured(s, "TARGET_SERVICE_URL")}
	if s.Inbound.Validate {
		env = append(env, tokenVariables(s, "AUDIENCE")...)
		env = append(env,
			block.If(len(s.Inbound.RequiredScopes) > 0, configured(s, "REQUIRED_SCOPES")),
			configured(s, "BYPASS_INBOUND_PATHS"))
	}
	return identity.Container{
		Env: env,
		// If Envoy intercepts traffic, a probe from outside would be sent to an Envoy that starts
		// only afterwards.
		Startup:  block.If(!s.Outbound.Intercept, startup(tcpSocket("auth-proxy"))),
		Security: proxySecurity(s),
	}
}

// inboundValues returns the values that define which tokens are accepted.
func inboundValues(s *identity.Settings) []block.Node {
	if !s.Inbound.Enabled || !s.Inbound.Validate {
		return nil
	}

	open := s.Inbound.BypassPaths[:len(s.Inbound.BypassPaths):len(s.Inbound.BypassPaths)]
	for _, p := range s.Declared.ProbePaths {
		if path, ok := identity.OpenProbe(p); ok {
			open = append(open, path)
		}
	}
	audience, scopes := s.Inbound.Audience, s.Inbound.RequiredScopes
	return []block.Node{
		block.Text("ISSUER", s.Inbound.Issuer),
		block.Text("JWKS_URL", s.Inbound.JWKSURL),
		block.If(audience != "self" && audience != "any",
			block.Text("EXPECTED_AUDIENCE", audience)),
		block.If(len(scopes) > 0, block.Text("REQUIRED_SCOPES", strings.Join(scopes, " "))),
		block.Text("BYPASS_INBOUND_PATHS", strings.Join(open, ",")),
	}
}

// tokenVariables returns the variables that define which tokens are accepted. name is the variable
// of the audience; Kubernetes expands the preceding variables in its value.
func tokenVariables(s *identity.Settings, name string) (env []block.Node) {
	var audience block.Node
	switch {
	case s.Inbound.Audience == "any":
	case !s.SelfAudience():
		audience = valueFrom(name, "configMapKeyRef", configMapName(s),
			block.Plain("key", "EXPECTED_AUDIENCE"), block.Bool("optional", true))
	case s.SPIFFE.Enabled:
		env = podIdentity
		id := scalar.AppendEnvInner([]byte("spiffe://"), s.SPIFFE.TrustDomain)
		audience = expanded(name, append(id, "/ns/$(POD_NAMESPACE)/sa/$(POD_SERVICE_ACCOUNT)"...))
	default:
		env = clientName(s)
		audience = expanded(name, []byte("$(CLIENT_NAME)"))
	}
	return append(env, configured(s, "ISSUER"), configured(s, "JWKS_URL"), audience)
}

// Unpublished reports whether an image is the default profile's auth-proxy, which was never
// published under any tag.
func Unpublished(image string) bool {
	rest, ok := strings.CutPrefix(image, authProxyRepository)
	return ok && (rest == "" || rest[0] == ':' || rest[0] == '@')
}

// UnpublishedRemedy is the hint about an Unpublished image.
const UnpublishedRemedy = "set spec.profile: " + AuthBridge +
	", whose images exist, or build one and set spec.components." + AuthProxy + ".image"
