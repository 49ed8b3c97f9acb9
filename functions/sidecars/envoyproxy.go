package sidecars

import (
	_ "embed"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/block"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// EnvoyProxy is Envoy with the token processor in one container.
const EnvoyProxy = "envoy-proxy"

const processorImage = "envoy-with-processor"

// Ports that the published programs have built in.
const (
	// envoyAdminPort serves Envoy's administration interface, on loopback.
	envoyAdminPort = 9901
	// extProcPort is the port of the token processor next to Envoy.
	extProcPort = 9090
)

func envoyProxy() identity.Sidecar {
	return identity.Sidecar{
		Name: EnvoyProxy, Guards: true,
		Default:   component(repository+processorImage+imageTag, "50m", "64Mi", "200m", "256Mi"),
		Container: envoyContainer,
		Mounts: func(s *identity.Settings) []identity.Mount {
			mounts := []identity.Mount{readOnly(ConfigVolume, "/etc/envoy"),
				readOnly(ConfigVolume, "/etc/authproxy"), readOnly(sharedName(s), "/shared")}
			if ownSVIDVolume(s) {
				mounts = append(mounts, readOnly(identity.SVIDVolume, "/opt"))
			}
			return mounts
		},
		Ports: envoyPorts,
		Files: func(s *identity.Settings) []block.Node {
			return []block.Node{envoyConfig(s), routes(s)}
		},
		Values: func(s *identity.Settings) (values []block.Node) {
			if !s.On(AuthProxy) { // auth-proxy adds them otherwise
				values = inboundValues(s)
			}
			values = append(values, block.Text("TOKEN_URL", s.Outbound.TokenURL))
			if !s.Outbound.TokenExchange {
				return append(values, block.Text("DEFAULT_OUTBOUND_POLICY", "passthrough"))
			}
			return append(values,
				block.Text("DEFAULT_OUTBOUND_POLICY", "exchange"),
				block.Text("TARGET_AUDIENCE", s.Outbound.Default.Audience),
				block.Text("TARGET_SCOPES", strings.Join(s.Outbound.Default.Scopes, " ")))
		},
	}
}

func envoyPorts(dst []identity.Port, s *identity.Settings) []identity.Port {
	out, in := identity.Interception+"proxyPort", identity.Interception+"inboundProxyPort"
	return append(dst,
		identity.Port{Number: s.Outbound.ProxyPort, ContainerPort: "envoy-outbound",
			Name: "Envoy's outbound listener", Field: out, Key: identity.ProxyPort},
		identity.Port{Number: s.Outbound.InboundProxyPort, ContainerPort: "envoy-inbound",
			Name: "Envoy's inbound listener", Field: in, Key: identity.InboundProxyPort},
		identity.Port{Number: envoyAdminPort, ContainerPort: "envoy-admin",
			Name: "Envoy's administration", Field: out},
		identity.Port{Number: extProcPort, ContainerPort: "ext-proc",
			Name: "the token processor beside Envoy", Field: out})
}

func envoyContainer(s *identity.Settings) identity.Container {
	env := []block.Node{configured(s, "TOKEN_URL"), configured(s, "DEFAULT_OUTBOUND_POLICY")}
	if s.Outbound.TokenExchange {
		env = append(env, configured(s, "TARGET_AUDIENCE"), configured(s, "TARGET_SCOPES"))
	}
	if s.Inbound.Enabled && s.Inbound.Validate {
		env = append(env, tokenVariables(s, "EXPECTED_AUDIENCE")...)
		env = append(env, configured(s, "BYPASS_INBOUND_PATHS"))
	}
	return identity.Container{
		Env: append(env,
			variable("CLIENT_ID_FILE", "/shared/client-id.txt"),
			variable("CLIENT_SECRET_FILE", "/shared/client-secret.txt"),
			variable("ROUTES_CONFIG_PATH", "/etc/authproxy/routes.yaml")),
		Startup:  startup(tcpSocket("envoy-inbound")),
		Security: proxySecurity(s),
	}
}

//go:embed files/envoy.yaml
var envoyYAML string

// withoutScopes is the variant of envoy.yaml for most workloads.
var withoutScopes = repeated(envoyYAML, "scoped", 0)

// envoyConfig returns Envoy's configuration: envoy.yaml with the values of the workload.
//
// Envoy itself checks the required scopes, because no published program reads a token's scopes.
// After the token processor, which has refused invalid tokens already, Envoy verifies the token
// again to read its claims. It lets a request pass only with all scopes, or on a path that needs no
// token.
func envoyConfig(s *identity.Settings) block.Node {
	text := withoutScopes
	values := []string{"ProxyPort", strconv.Itoa(s.Outbound.ProxyPort),
		"InboundProxyPort", strconv.Itoa(s.Outbound.InboundProxyPort)}
	repeat := func(name string, all []string) {
		text = repeated(text, name, len(all))
		for i, value := range all {
			values = append(values, numbered(name, i), string(scalar.AppendYAML(nil, value)))
		}
	}

	var parts map[string]bool
	in := &s.Inbound
	if in.Enabled && in.Validate && len(in.RequiredScopes) > 0 {
		text = repeated(envoyYAML, "scoped", 1)
		free := bypassPatterns(s)
		repeat("path", free)
		var scopes []string
		for _, scope := range in.RequiredScopes {
			scopes = append(scopes, "(.* )?"+regexp.QuoteMeta(scope)+"( .*)?")
		}
		repeat("scope", scopes)

		server, err := url.Parse(in.JWKSURL)
		if err != nil {
			server = &url.URL{} // the settings have an error then
		}
		parts = map[string]bool{"free": len(free) > 0, "tls": server.Scheme == "https"}
		for name, value := range map[string]string{"Issuer": in.Issuer, "JWKSURL": in.JWKSURL,
			"JWKSHost": server.Hostname()} {
			values = append(values, name, string(scalar.AppendYAML(nil, value)))
		}
		values = append(values, "JWKSPort", strconv.Itoa(identity.PortOf(in.JWKSURL)))
	}
	return block.File(EnvoyYAML, filled(text, parts, values...))
}

// routes returns the token processor's routes, of which the first match counts: the author's rules,
// the hosts that must not get tokens, and the default.
func routes(s *identity.Settings) block.Node {
	if !s.Outbound.TokenExchange {
		return block.File(RoutesYAML, "[]\n")
	}

	var all []block.Node
	route := func(host string, t *identity.Target, more block.Node) {
		all = append(all, block.Map("",
			block.Text("host", host),
			block.Text("target_audience", t.Audience),
			block.Text("token_scopes", strings.Join(t.Scopes, " ")),
			more))
	}
	direct := func(host string) {
		if host != "" {
			all = append(all,
				block.Map("", block.Text("host", host), block.Bool("passthrough", true)))
		}
	}
	for i := range s.Outbound.Rules {
		if r := &s.Outbound.Rules[i]; r.Passthrough {
			direct(r.Host)
		} else {
			route(r.Host, &r.Target,
				block.If(r.TokenURL != "", block.Text("token_url", r.TokenURL)))
		}
	}
	if s.Registration.Provider == "keycloak" {
		direct(hostOf(s.Registration.URL))
	}
	for i := range s.Trace.Exporters {
		direct(hostOf(s.Trace.Exporters[i].Endpoint))
	}
	if s.Trace.MLflow.Enabled {
		direct(hostOf(s.Trace.MLflow.TrackingURI))
	}
	route("**", &s.Outbound.Default, block.Node{})
	return block.Document(RoutesYAML, all...)
}

// hostOf returns the host of host:port or a URL, without brackets.
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

// bypassPatterns returns the paths that need no token as regular expressions.
func bypassPatterns(s *identity.Settings) []string {
	patterns := make([]string, 0, len(s.Inbound.BypassPaths)+len(s.Declared.ProbePaths))
	for _, p := range s.Inbound.BypassPaths {
		patterns = append(patterns, globPattern(p))
	}
	for _, p := range s.Declared.ProbePaths {
		if open, ok := identity.OpenProbe(p); ok {
			patterns = append(patterns, regexp.QuoteMeta(open))
		}
	}
	return patterns
}

// globPattern returns the regular expression of a pattern of Go's path.Match for the token
// processor. It takes classes and escapes literally, so that Envoy never lets more pass than the
// token processor does.
func globPattern(glob string) string {
	return strings.NewReplacer(`\*`, "[^/]*", `\?`, "[^/]").Replace(regexp.QuoteMeta(glob))
}
