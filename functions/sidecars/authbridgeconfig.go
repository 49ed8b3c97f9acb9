package sidecars

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// AuthBridgeYAML is the key of AuthBridge's configuration. Its pipeline is reloaded when
// it changes; see NeedsRestart.
const AuthBridgeYAML = "config.yaml"

func appendBridgeYAML(dst []byte, s *identity.Settings) []byte {
	b := bridge{append(dst, "  "+AuthBridgeYAML+": |\n"...), s}
	b.config()
	return b.dst
}

// bridge writes AuthBridge's configuration as rossoctl/cortex da955ea reads it. The
// program replaces ${NAME} by variables of its environment before it reads YAML.
type bridge struct {
	dst []byte
	s   *identity.Settings
}

// line appends a line of the file, as deep as the number of its steps.
func (b *bridge) line(depth int, parts ...string) {
	b.dst = append(b.dst, blockIndent...)
	for range depth {
		b.dst = append(b.dst, "  "...)
	}
	for _, p := range parts {
		b.dst = append(b.dst, p...)
	}
	b.dst = append(b.dst, '\n')
}

// quoted is a text as a scalar in which nothing is replaced by a variable.
func quoted(text string) string {
	return string(bytes.ReplaceAll(scalar.AppendYAML(nil, text), []byte("$"), []byte(`\x24`)))
}

func address(host string, port int) string { return strconv.Quote(host + ":" + strconv.Itoa(port)) }

func (b *bridge) list(depth int, key string, items []string) {
	if len(items) == 0 {
		return
	}
	b.line(depth, key, ":")
	for _, item := range items {
		b.line(depth, "- ", quoted(item))
	}
}

// self is the workload's SPIFFE ID. Its namespace and account are the pod's, whatever
// namespace a host gives the workload after the render.
func (b *bridge) self() string {
	trust := quoted(b.s.SPIFFE.TrustDomain)
	return `"spiffe://` + strings.Trim(trust, `"`) + `/ns/${POD_NAMESPACE}/sa/${POD_SERVICE_ACCOUNT}"`
}

func (b *bridge) config() {
	s := b.s
	envoy := s.On(EnvoyProxy)
	mode := identity.ModeProxySidecar // lite is another image of it
	if envoy {
		mode = identity.ModeEnvoySidecar
	}
	b.line(0, "mode: ", mode)
	b.listener(envoy)
	b.line(0, "pipeline:")
	b.line(1, "inbound:")
	b.inbound()
	b.line(1, "outbound:")
	b.outbound()
	b.line(0, "session:")
	b.line(1, "enabled: true")
	b.line(1, "ttl: 30m")
	b.line(1, "max_events: 500")
	b.line(1, "max_sessions: 100")
	b.line(0, "stats:")
	b.line(1, "address: ", address("", bridgeStatsPort))
	if s.AuthBridge.MTLS != "disabled" {
		b.line(0, "mtls:")
		b.line(1, "mode: ", s.AuthBridge.MTLS)
	}
	if s.SPIFFE.Enabled {
		b.line(0, "spiffe:")
		b.line(1, "socket: ", quoted("unix://"+s.SPIFFE.SocketPath))
		b.line(1, "mirror_files: true")
		b.line(1, "mirror_dir: /opt")
	}
	b.line(0, "tls_bridge:")
	b.line(1, "mode: disabled")
}

// listener writes the addresses. What nobody but the pod may use is on loopback: the
// forward proxy acts with the agent's identity, and the sessions hold conversations.
func (b *bridge) listener(envoy bool) {
	s := b.s
	b.line(0, "listener:")
	if envoy {
		b.line(1, "ext_proc_addr: ", address("127.0.0.1", extProcPort))
	} else {
		var roles []string
		if s.Inbound.Enabled {
			roles = append(roles, "reverse")
		}
		if s.Outbound.Enabled {
			roles = append(roles, "forward")
		}
		b.line(1, "roles: [", strings.Join(roles, ", "), "]")
		if s.Inbound.Enabled {
			b.line(1, "reverse_proxy_addr: ", address("", s.Inbound.Port))
			b.line(1, "reverse_proxy_backend: ", address("http://127.0.0.1", s.Inbound.TargetPort))
		}
		if s.Outbound.Enabled {
			b.line(1, "forward_proxy_addr: ", address("127.0.0.1", s.AuthBridge.ForwardPort))
			b.line(1, "transparent_proxy_addr: ", address("127.0.0.1", transparentPort))
		}
	}
	b.line(1, "session_api_addr: ", address("127.0.0.1", bridgeSessionPort))
	// Telemetry gets no tokens, and would fill the sessions. AuthBridge does not start
	// with a host that has a colon, as IPv6 addresses do.
	var skip []string
	add := func(endpoint string) {
		if host := hostOf(endpoint); host != "" && !strings.Contains(host, ":") {
			skip = append(skip, host)
		}
	}
	for i := range s.Trace.Exporters {
		add(s.Trace.Exporters[i].Endpoint)
	}
	if s.Trace.MLflow.Enabled {
		add(s.Trace.MLflow.TrackingURI)
	}
	b.list(1, "skip_hosts", skip)
}

func (b *bridge) plugin(item string) {
	b.line(2, "plugins:")
	b.line(2, item)
	b.line(3, "on_error: enforce")
	b.line(3, "config:")
}

func (b *bridge) inbound() {
	s := b.s
	if !s.Inbound.Enabled || !s.Inbound.Validate {
		b.line(2, "plugins: []")
		return
	}
	b.plugin("- name: jwt-validation")
	b.line(4, "issuer: ", quoted(s.Inbound.Issuer))
	b.line(4, "jwks_url: ", quoted(s.Inbound.JWKSURL))
	switch {
	case !s.SelfAudience():
		b.line(4, "audience: ", quoted(s.Inbound.Audience))
	case s.AuthBridge.ClientAuth == identity.FederatedJWT:
		b.line(4, "audience: ", b.self())
	default:
		b.line(4, "audience_file: /shared/client-id.txt")
	}
	b.list(4, "allowed_audiences", s.AuthBridge.AllowedAudiences)
	var paths []string
	add := func(p string) {
		if !slices.Contains(paths, p) {
			paths = append(paths, p)
		}
	}
	for _, p := range s.Inbound.BypassPaths {
		add(bypassPattern(p))
	}
	for _, p := range s.Declared.ProbePaths {
		if open, ok := identity.OpenProbe(p); ok {
			add(open)
		}
	}
	if len(paths) == 0 {
		paths = []string{noPath} // without the key, AuthBridge opens paths of its own
	}
	b.list(4, "bypass_paths", paths)
}

func (b *bridge) outbound() {
	s := b.s
	if !s.Outbound.TokenExchange {
		b.line(2, "plugins: []")
		return
	}
	b.plugin("- name: token-exchange")
	b.line(4, "provider: keycloak")
	b.line(4, "token_url: ", quoted(s.Outbound.TokenURL))
	b.line(4, "default_policy: passthrough")
	// CONNECT and intercepted connections never have a token: deny would cut off the
	// HTTPS of each host with a rule, and of all hosts where there is a default target.
	b.line(4, "no_token_policy: allow")
	b.line(4, "identity:")
	if s.AuthBridge.ClientAuth == identity.FederatedJWT {
		b.line(5, "type: spiffe")
		b.line(5, "client_id: ", b.self())
		b.line(5, "jwt_audience: ", quoted(s.SPIFFE.Audience))
	} else {
		b.line(5, "type: client-secret")
		b.line(5, "client_id_file: /shared/client-id.txt")
		b.line(5, "client_secret_file: /shared/client-secret.txt")
	}
	b.line(4, "routes:")
	b.line(5, "file: /etc/authproxy/routes.yaml")
	b.rules()
}

// rules writes the routes in the order in which they are tried. A default target is
// the last of them, behind Keycloak itself.
func (b *bridge) rules() {
	s := b.s
	if len(s.Outbound.Rules) == 0 && s.Outbound.Default.Audience == "" {
		return
	}
	b.line(5, "rules:")
	exchange := func(host, tokenURL string, t *identity.Target) {
		b.line(5, "- host: ", quoted(host))
		b.line(6, "target_audience: ", quoted(t.Audience))
		b.line(6, "token_scopes: ", quoted(strings.Join(t.Scopes, " ")))
		if tokenURL != "" {
			b.line(6, "token_url: ", quoted(tokenURL))
		}
		b.line(6, "action: exchange")
	}
	direct := func(host string) {
		b.line(5, "- host: ", quoted(host))
		b.line(6, "action: passthrough")
	}
	for i := range s.Outbound.Rules {
		if r := &s.Outbound.Rules[i]; r.Passthrough {
			direct(r.Host)
		} else {
			exchange(r.Host, r.TokenURL, &r.Target)
		}
	}
	if s.Outbound.Default.Audience != "" {
		direct(hostOf(s.Registration.URL))
		exchange("**", "", &s.Outbound.Default)
	}
}
