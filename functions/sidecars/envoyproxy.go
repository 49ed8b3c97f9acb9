package sidecars

import (
	_ "embed"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/block"
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
			if !s.On(AuthProxy) { // which has them otherwise
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

//go:embed envoy.yaml
var envoyYAML string

// envoyConfig returns Envoy's configuration: envoy.yaml, with what depends on the workload.
func envoyConfig(s *identity.Settings) block.Node {
	var filters, cluster string
	if s.Inbound.Enabled && s.Inbound.Validate && len(s.Inbound.RequiredScopes) > 0 {
		filters = string(block.Append(nil, 10, scopeFilters(s)...))
		cluster = string(block.Append(nil, 2, issuerCluster(s)))
	}
	return block.File(EnvoyYAML, strings.NewReplacer(
		"{{ProxyPort}}", strconv.Itoa(s.Outbound.ProxyPort),
		"{{InboundProxyPort}}", strconv.Itoa(s.Outbound.InboundProxyPort),
		"{{ScopeFilters}}", filters,
		"{{ScopeCluster}}", cluster,
	).Replace(envoyYAML))
}

// routes returns the token processor's routes, of which the first that matches counts: the
// author's rules, the hosts that must not get tokens, and the default.
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
			all = append(all,
				block.Map("", block.Text("host", r.Host), block.Bool("passthrough", true)))
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

// Required scopes are demanded by Envoy itself, because no published program
// looks at a token's scopes. Behind the token processor, which has refused bad
// tokens already, Envoy verifies the token once more in order to read its claims
// and lets a request pass only with all scopes, or on a path that needs no token.

const (
	envoyType   = "type.googleapis.com/envoy.extensions."
	jwtFilter   = "envoy.filters.http.jwt_authn"
	tlsProtocol = "envoy.transport_sockets.tls"
)

// scopeFilters are the HTTP filters of the inbound listener.
func scopeFilters(s *identity.Settings) []block.Node {
	free := bypassPatterns(s)
	regex := func(pattern string) block.Node {
		return block.Map("safe_regex", block.Text("regex", pattern))
	}

	var rules, paths, scopes []block.Node
	for _, pattern := range free {
		rules = append(rules, block.Map("", block.Map("match", regex(pattern))))
		paths = append(paths,
			block.Map("", block.Map("url_path", block.Map("path", regex(pattern)))))
	}
	rules = append(rules,
		block.Map("", block.Plain("match", "{prefix: /}"),
			block.Plain("requires", "{provider_name: issuer}")))
	for _, scope := range s.Inbound.RequiredScopes {
		scopes = append(scopes, block.Map("", block.Map("metadata",
			block.Plain("filter", jwtFilter),
			block.Plain("path", "[{key: claims}, {key: scope}]"),
			block.Map("value",
				block.Map("string_match", regex("(.* )?"+regexp.QuoteMeta(scope)+"( .*)?"))))))
	}

	filter := func(name, kind string, config ...block.Node) block.Node {
		return block.Map("", block.Plain("name", name),
			block.Map("typed_config", append([]block.Node{block.Plain(`"@type"`, envoyType+kind)},
				config...)...))
	}
	provider := block.Map("issuer",
		block.Text("issuer", s.Inbound.Issuer),
		block.Bool("forward", true),
		block.Plain("payload_in_metadata", "claims"),
		block.Map("remote_jwks",
			block.Map("http_uri", block.Text("uri", s.Inbound.JWKSURL),
				block.Plain("cluster", "issuer"), block.Plain("timeout", "5s")),
			block.Plain("cache_duration", "300s")))
	anyone := block.List("principals", block.Map("", block.Bool("any", true)))
	policies := block.Map("policies",
		block.Map("scopes", anyone,
			block.List("permissions",
				block.Map("", block.Map("and_rules", block.List("rules", scopes...))))),
		block.If(len(free) > 0, block.Map("free", anyone, block.List("permissions", paths...))))
	return []block.Node{
		filter(jwtFilter, "filters.http.jwt_authn.v3.JwtAuthentication",
			block.Map("providers", provider), block.List("rules", rules...)),
		filter("envoy.filters.http.rbac", "filters.http.rbac.v3.RBAC",
			block.Map("rules", block.Plain("action", "ALLOW"), policies)),
	}
}

// bypassPatterns are the paths that need no token, as regular expressions.
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

// globPattern is the regular expression of a pattern of Go's path.Match, which
// the token processor takes. Its classes and escapes are taken literally, so
// that Envoy never lets more pass than the token processor does.
func globPattern(glob string) string {
	return strings.NewReplacer(`\*`, "[^/]*", `\?`, "[^/]").Replace(regexp.QuoteMeta(glob))
}

// issuerCluster is the cluster that the issuer's keys come from.
func issuerCluster(s *identity.Settings) block.Node {
	host, port, tls := "", 80, false
	if u, err := url.Parse(s.Inbound.JWKSURL); err == nil {
		host, tls = u.Hostname(), u.Scheme == "https"
		if tls {
			port = 443
		}
		if n, err := strconv.Atoi(u.Port()); err == nil {
			port = n
		}
	}

	address := block.Map("address",
		block.Map("socket_address", block.Int("port_value", port), block.Text("address", host)))
	endpoint := block.Map("", block.Map("endpoint", address))
	names := block.Map("", block.Plain("san_type", "DNS"),
		block.Map("matcher", block.Text("exact", host)))
	return block.Map("",
		block.Plain("name", "issuer"),
		block.Plain("type", "STRICT_DNS"),
		block.Plain("dns_lookup_family", "V4_PREFERRED"),
		block.Plain("connect_timeout", "5s"),
		block.Map("load_assignment",
			block.Plain("cluster_name", "issuer"),
			block.List("endpoints", block.Map("", block.List("lb_endpoints", endpoint)))),
		block.If(tls, block.Map("transport_socket",
			block.Plain("name", tlsProtocol),
			block.Map("typed_config",
				block.Plain(`"@type"`, envoyType+"transport_sockets.tls.v3.UpstreamTlsContext"),
				block.Text("sni", host),
				block.Map("common_tls_context", block.Map("validation_context",
					block.Plain("trusted_ca", "{filename: /etc/ssl/certs/ca-certificates.crt}"),
					block.List("match_typed_subject_alt_names", names)))))))
}
