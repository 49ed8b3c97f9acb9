package sidecars

import (
	_ "embed"
	"strings"
	"sync"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// EnvoyProxy is Envoy with the token processor beside it.
const EnvoyProxy = "envoy-proxy"

const processorImage = "envoy-with-processor"

// Ports that the published programs have built in.
const (
	// envoyAdminPort serves Envoy's administration interface, on loopback.
	envoyAdminPort = 9901
	// extProcPort is where the token processor beside Envoy listens.
	extProcPort = 9090
)

func envoyProxy() identity.Sidecar {
	return identity.Sidecar{
		Name: EnvoyProxy, Guards: true,
		Default:   identity.Component{Enabled: true, Image: repository + processorImage + imageTag, ImagePullPolicy: "IfNotPresent", CPURequest: "50m", MemoryRequest: "64Mi", CPULimit: "200m", MemoryLimit: "256Mi"},
		Container: appendEnvoyProxy,
		Mounts: func(s *identity.Settings) []identity.Mount {
			mounts := []identity.Mount{readOnly(ConfigVolume, "/etc/envoy"), readOnly(ConfigVolume, "/etc/authproxy"), readOnly(sharedName(s), "/shared")}
			if ownSVIDVolume(s) {
				mounts = append(mounts, readOnly(identity.SVIDVolume, "/opt"))
			}
			return mounts
		},
		Ports: envoyListeners,
		Files: func(dst []byte, s *identity.Settings) []byte {
			return appendRoutes(append(appendEnvoyYAML(dst, s), "  "+RoutesYAML+": |\n"...), s)
		},
		Values: func(dst []byte, s *identity.Settings) []byte {
			if !s.On(AuthProxy) { // which has appended them
				dst = appendInboundValues(dst, s)
			}
			dst = appendValue(dst, "TOKEN_URL", s.Outbound.TokenURL)
			if !s.Outbound.TokenExchange {
				return appendValue(dst, "DEFAULT_OUTBOUND_POLICY", "passthrough")
			}
			dst = appendValue(dst, "DEFAULT_OUTBOUND_POLICY", "exchange")
			dst = appendValue(dst, "TARGET_AUDIENCE", s.Outbound.Default.Audience)
			dst = append(dst, "  TARGET_SCOPES: \""...)
			return append(appendJoined(dst, s.Outbound.Default.Scopes, ' '), '"', '\n')
		},
	}
}

func envoyListeners(dst []identity.Listener, s *identity.Settings) []identity.Listener {
	port, inbound := identity.Interception+"proxyPort", identity.Interception+"inboundProxyPort"
	return append(dst,
		identity.Listener{Port: envoyAdminPort, Name: "Envoy's administration", Field: port},
		identity.Listener{Port: extProcPort, Name: "the token processor beside Envoy", Field: port},
		identity.Listener{Port: s.Outbound.ProxyPort, Name: "Envoy's outbound listener", Field: port, Key: identity.ProxyPort},
		identity.Listener{Port: s.Outbound.InboundProxyPort, Name: "Envoy's inbound listener", Field: inbound, Key: identity.InboundProxyPort})
}

func (w *writer) envoyPorts() {
	w.port("envoy-outbound", w.s.Outbound.ProxyPort)
	w.port("envoy-inbound", w.s.Outbound.InboundProxyPort)
	w.port("envoy-admin", envoyAdminPort)
	w.port("ext-proc", extProcPort)
}

func appendEnvoyProxy(dst []byte, s *identity.Settings) []byte {
	w := writer{dst, s}
	w.text("  ports:\n")
	w.envoyPorts()
	w.text("  env:\n")
	w.configured("TOKEN_URL")
	w.configured("DEFAULT_OUTBOUND_POLICY")
	if s.Outbound.TokenExchange {
		w.configured("TARGET_AUDIENCE")
		w.configured("TARGET_SCOPES")
	}
	if s.Inbound.Enabled && s.Inbound.Validate {
		w.self()
		w.configured("ISSUER")
		w.configured("JWKS_URL")
		w.audience("EXPECTED_AUDIENCE")
		w.configured("BYPASS_INBOUND_PATHS")
	}
	w.env("CLIENT_ID_FILE", "/shared/client-id.txt")
	w.env("CLIENT_SECRET_FILE", "/shared/client-secret.txt")
	w.env("ROUTES_CONFIG_PATH", "/etc/authproxy/routes.yaml")
	w.text("  startupProbe:\n    tcpSocket:\n      port: envoy-inbound\n")
	w.probe()
	w.resources(s.Component(EnvoyProxy))
	w.proxySecurity()
	return w.dst
}

func appendEnvoyYAML(dst []byte, s *identity.Settings) []byte {
	return envoyTemplate().appendTo(append(dst, "  "+EnvoyYAML+": |\n"...), s)
}

//go:embed envoy.yaml
var envoyYAML string

// template is envoy.yaml, whose lines begin with indent, in the parts between
// what depends on the workload.
type template struct {
	indent string
	// The parts end before the outbound port, the inbound port, the filters and
	// the cluster that demand scopes; tail is the rest.
	outbound, inbound, filters, cluster, tail string
}

const blockIndent = "    "

// envoyTemplate is split once. It is a block scalar in the ConfigMap's data.
var envoyTemplate = sync.OnceValue(func() template { return split(envoyYAML, blockIndent) })

func split(text, indent string) template {
	text = indent + strings.ReplaceAll(text, "\n", "\n"+indent)
	t := template{indent: indent}
	t.outbound, text, _ = strings.Cut(text, "{{ProxyPort}}")
	t.inbound, text, _ = strings.Cut(text, "{{InboundProxyPort}}")
	// These two are placeholders of whole lines, including their indentation.
	t.filters, text, _ = strings.Cut(text, indent+"{{ScopeFilters}}")
	t.cluster, t.tail, _ = strings.Cut(indent+text, indent+"{{ScopeCluster}}")
	return t
}

func (t template) appendTo(dst []byte, s *identity.Settings) []byte {
	dst = append(dst, t.outbound...)
	dst = scalar.AppendInt(dst, s.Outbound.ProxyPort)
	dst = append(dst, t.inbound...)
	dst = scalar.AppendInt(dst, s.Outbound.InboundProxyPort)
	dst = append(dst, t.filters...)
	scopes := s.Inbound.Enabled && s.Inbound.Validate && len(s.Inbound.RequiredScopes) > 0
	if scopes {
		dst = appendScopeFilters(dst, s, t.indent)
	}
	dst = append(dst, t.cluster...)
	if scopes {
		dst = appendScopeCluster(dst, s, t.indent)
	}
	return append(dst, t.tail...)
}

// appendRoutes writes the token processor's routes: first match wins. Behind
// the author's rules come the hosts that must not get tokens, then the default.
func appendRoutes(dst []byte, s *identity.Settings) []byte {
	if !s.Outbound.TokenExchange {
		return append(dst, blockIndent+"[]\n"...)
	}
	for i := range s.Outbound.Rules {
		r := &s.Outbound.Rules[i]
		dst = append(dst, blockIndent+"- host: "...)
		dst = scalar.AppendYAML(dst, r.Host)
		if r.Passthrough {
			dst = append(dst, "\n"+blockIndent+"  passthrough: true\n"...)
			continue
		}
		dst = appendTarget(dst, &r.Target)
		if r.TokenURL != "" {
			dst = append(dst, blockIndent+"  token_url: "...)
			dst = append(scalar.AppendYAML(dst, r.TokenURL), '\n')
		}
	}
	direct := func(endpoint string) {
		if host := hostOf(endpoint); host != "" {
			dst = append(dst, blockIndent+"- host: "...)
			dst = scalar.AppendYAML(dst, host)
			dst = append(dst, "\n"+blockIndent+"  passthrough: true\n"...)
		}
	}
	if s.Registration.Provider == "keycloak" {
		direct(s.Registration.URL)
	}
	for i := range s.Trace.Exporters {
		direct(s.Trace.Exporters[i].Endpoint)
	}
	if s.Trace.MLflow.Enabled {
		direct(s.Trace.MLflow.TrackingURI)
	}
	dst = append(dst, blockIndent+"- host: \"**\""...)
	return appendTarget(dst, &s.Outbound.Default)
}

func appendTarget(dst []byte, t *identity.Target) []byte {
	dst = append(dst, "\n"+blockIndent+"  target_audience: "...)
	dst = scalar.AppendYAML(dst, t.Audience)
	dst = append(dst, "\n"+blockIndent+"  token_scopes: \""...)
	return append(appendJoined(dst, t.Scopes, ' '), '"', '\n')
}

// appendJoined appends scopes or paths inside quotes. What is not escaped has
// been checked to need none; the rest is.
func appendJoined(dst []byte, items []string, separator byte) []byte {
	for i, item := range items {
		if i > 0 {
			dst = append(dst, separator)
		}
		dst = scalar.AppendInner(dst, item)
	}
	return dst
}

// hostOf gives the host of host:port or a URL, without brackets.
func hostOf(endpoint string) string {
	if _, rest, found := strings.Cut(endpoint, "://"); found {
		endpoint = rest
	}
	if i := strings.IndexAny(endpoint, "/?#"); i >= 0 {
		endpoint = endpoint[:i]
	}
	if strings.HasPrefix(endpoint, "[") {
		host, _, _ := strings.Cut(endpoint[1:], "]")
		return host
	}
	if i := strings.LastIndexByte(endpoint, ':'); i >= 0 {
		endpoint = endpoint[:i]
	}
	return endpoint
}
