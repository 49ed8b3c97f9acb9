package sidecars

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/block"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// AuthBridgeProxy is the pod's proxy in both directions. Ports, users, paths and names are those of
// rossoctl/cortex da955ea.
const AuthBridgeProxy = "authbridge-proxy"

const (
	fullImage = cortex + "authbridge" + cortexTag
	liteImage = cortex + "authbridge-lite" + cortexTag
)

// Ports that AuthBridge listens on, whichever the agent's are.
const (
	// transparentPort receives the traffic that iptables redirect.
	transparentPort = 8082
	// bridgeHealthPort answers probes, bridgeStatsPort serves statistics to Kagenti's UI, and
	// bridgeSessionPort serves conversations on loopback.
	bridgeHealthPort  = 9091
	bridgeStatsPort   = 9093
	bridgeSessionPort = 9094

	// forwardPort is the first candidate for the forward proxy, and agentDefault
	// the port of an agent that declares none.
	forwardPort  = 8081
	agentDefault = 8000
)

func authBridgeProxy() identity.Sidecar {
	return identity.Sidecar{
		Name: AuthBridgeProxy, Guards: true,
		Default: component(fullImage, "100m", "128Mi", "300m", "384Mi"),
		// It is healthy when it has its SPIFFE identity and its listeners, and ready when each of
		// its plugins is ready.
		Container: func(s *identity.Settings) identity.Container {
			return bridgeContainer(s, healthy)
		},
		Mounts: bridgeMounts,
		Ports: func(dst []identity.Port, s *identity.Settings) []identity.Port {
			return bridgePorts(proxyPorts(dst, s))
		},
		Files: func(s *identity.Settings) []block.Node { return []block.Node{bridgeConfig(s)} },
	}
}

// bridgeEnvoy returns envoy-proxy for the mode envoy-sidecar: Envoy and the processor that checks
// each request.
func bridgeEnvoy() identity.Sidecar {
	x := envoyProxy()
	x.Values = nil
	x.Container = func(s *identity.Settings) identity.Container {
		return bridgeContainer(s, envoyUp)
	}
	x.Mounts = func(s *identity.Settings) []identity.Mount {
		return append(bridgeMounts(s), readOnly(ConfigVolume, "/etc/envoy"))
	}
	x.Ports = func(dst []identity.Port, s *identity.Settings) []identity.Port {
		return bridgePorts(envoyPorts(dst, s))
	}
	x.Files = func(s *identity.Settings) []block.Node {
		return []block.Node{bridgeConfig(s), envoyConfig(s)}
	}
	return x
}

// proxyPorts appends the ports of the modes proxy-sidecar and lite.
func proxyPorts(ports []identity.Port, s *identity.Settings) []identity.Port {
	if s.Inbound.Enabled {
		name := "reverse-proxy"
		if slices.Contains(s.AuthBridge.Ports, s.Inbound.Port) {
			name = "" // the agent's container declares it
		}
		ports = append(ports,
			identity.Port{
				Number: s.Inbound.Port, ContainerPort: name, Name: "AuthBridge's reverse proxy",
				Field: identity.ReversePort, Key: identity.InboundPort, Declared: true,
			},
			portOfAgent(s))
	}
	if s.Outbound.Enabled {
		ports = append(ports,
			identity.Port{Number: s.AuthBridge.ForwardPort, Name: "AuthBridge's forward proxy",
				Field: "outbound"},
			identity.Port{Number: transparentPort, Name: "AuthBridge's transparent proxy",
				Field: "outbound"})
	}
	return ports
}

// bridgePorts appends the ports of all modes.
func bridgePorts(dst []identity.Port) []identity.Port {
	return append(dst,
		identity.Port{Number: bridgeHealthPort, ContainerPort: "bridge-health",
			Name: "AuthBridge's health check", Field: "outbound"},
		identity.Port{Number: bridgeStatsPort, ContainerPort: "bridge-stats",
			Name: "AuthBridge's statistics", Field: "outbound"},
		identity.Port{Number: bridgeSessionPort, Name: "AuthBridge's sessions", Field: "outbound"})
}

func bridgeMounts(s *identity.Settings) []identity.Mount {
	mounts := []identity.Mount{readOnly(ConfigVolume, "/etc/authbridge"),
		readOnly(routesVolume, "/etc/authproxy")}
	if needsClientSecret(s) {
		mounts = append(mounts, readOnly(clientVolume, "/shared"))
	}
	if s.SPIFFE.Enabled {
		mounts = append(mounts, readOnly(SocketVolume, path.Dir(s.SPIFFE.SocketPath)),
			writable(identity.SVIDVolume, "/opt"))
	}
	return mounts
}

// Parts that are the same in the containers and configurations of all workloads.
var (
	bridgeArgs = words("args", "--config", "/etc/authbridge/config.yaml")
	healthy    = startup(httpGet("/healthz", "bridge-health"))
	envoyUp    = startup(tcpSocket("envoy-inbound"))
	ready      = block.Map("readinessProbe", httpGet("/readyz", "bridge-health"))

	bridgeSession = block.Map("session",
		block.Bool("enabled", true), block.Plain("ttl", "30m"), block.Int("max_events", 500),
		block.Int("max_sessions", 100))
	bridgeStats = block.Map("stats", address("address", "", bridgeStatsPort))
	tlsBridge   = block.Map("tls_bridge", block.Plain("mode", "disabled"))
	noPlugins   = block.Plain("plugins", "[]")
)

// bridgeContainer returns the container of any mode. config.yaml refers to its variables.
func bridgeContainer(s *identity.Settings, started block.Node) identity.Container {
	c := identity.Container{Program: bridgeArgs, Startup: started, Readiness: ready,
		Security: proxySecurity(s)}
	if s.SPIFFE.Enabled {
		c.Env = podIdentity
	}
	return c
}

// AuthBridgeYAML is the key of AuthBridge's configuration. AuthBridge reloads its pipeline when it
// changes; see NeedsRestart.
const AuthBridgeYAML = "config.yaml"

// bridgeConfig returns AuthBridge's configuration as rossoctl/cortex da955ea reads it. The
// program replaces ${NAME} by variables of its environment before it reads YAML.
func bridgeConfig(s *identity.Settings) block.Node {
	mode := identity.ModeProxySidecar // lite is the same mode with another image
	if s.On(EnvoyProxy) {
		mode = identity.ModeEnvoySidecar
	}
	return block.Document(AuthBridgeYAML,
		block.Plain("mode", mode),
		block.Map("listener", bridgeListener(s)...),
		block.Map("pipeline",
			block.Map("inbound", bridgeInbound(s)),
			block.Map("outbound", bridgeOutbound(s))),
		bridgeSession,
		bridgeStats,
		block.If(s.AuthBridge.MTLS != "disabled",
			block.Map("mtls", block.Plain("mode", s.AuthBridge.MTLS))),
		block.If(s.SPIFFE.Enabled, block.Map("spiffe",
			literal("socket", "unix://"+s.SPIFFE.SocketPath),
			block.Bool("mirror_files", true),
			block.Plain("mirror_dir", "/opt"))),
		tlsBridge)
}

// literal returns a string in which AuthBridge expands no variables.
func literal(key, text string) block.Node { return block.Plain(key, quoted(text)) }

func quoted(text string) string {
	return strings.ReplaceAll(string(scalar.AppendYAML(nil, text)), "$", `\x24`)
}

func literals(key string, texts []string) block.Node {
	items := make([]block.Node, 0, len(texts))
	for _, text := range texts {
		items = append(items, literal("", text))
	}
	return block.List(key, items...)
}

func address(key, host string, port int) block.Node {
	return block.Text(key, host+":"+strconv.Itoa(port))
}

// bridgeListener returns the addresses. Listeners that only the pod may use are on loopback: the
// forward proxy acts with the agent's identity, and the sessions hold conversations.
func bridgeListener(s *identity.Settings) (fields []block.Node) {
	if s.On(EnvoyProxy) {
		fields = append(fields, address("ext_proc_addr", "127.0.0.1", extProcPort))
	} else {
		var roles []string
		if s.Inbound.Enabled {
			roles = append(roles, "reverse")
		}
		if s.Outbound.Enabled {
			roles = append(roles, "forward")
		}
		fields = append(fields, block.Plain("roles", "["+strings.Join(roles, ", ")+"]"))
		if s.Inbound.Enabled {
			fields = append(fields,
				address("reverse_proxy_addr", "", s.Inbound.Port),
				address("reverse_proxy_backend", "http://127.0.0.1", s.Inbound.TargetPort))
		}
		if s.Outbound.Enabled {
			fields = append(fields,
				address("forward_proxy_addr", "127.0.0.1", s.AuthBridge.ForwardPort),
				address("transparent_proxy_addr", "127.0.0.1", transparentPort))
		}
	}
	return append(fields, address("session_api_addr", "127.0.0.1", bridgeSessionPort),
		literals("skip_hosts", telemetryHosts(s)))
}

// telemetryHosts returns the hosts that get no tokens and stay out of the sessions. AuthBridge does
// not start with a host that has a colon, such as an IPv6 address.
func telemetryHosts(s *identity.Settings) (hosts []string) {
	var endpoints []string
	for i := range s.Trace.Exporters {
		endpoints = append(endpoints, s.Trace.Exporters[i].Endpoint)
	}
	if s.Trace.MLflow.Enabled {
		endpoints = append(endpoints, s.Trace.MLflow.TrackingURI)
	}
	for _, endpoint := range endpoints {
		if host := hostOf(endpoint); host != "" && !strings.Contains(host, ":") {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// exchangePlugin is the name of AuthBridge's plugin.
const exchangePlugin = "token-exchange"

// plugins returns the only plugin of a pipeline.
func plugins(name string, config ...block.Node) block.Node {
	return block.List("plugins", block.Map("",
		block.Plain("name", name),
		block.Plain("on_error", "enforce"),
		block.Map("config", config...)))
}

// spiffeID returns the workload's SPIFFE ID. It takes the namespace and account from the pod,
// because a host may set another namespace after the render.
func spiffeID(key string, s *identity.Settings) block.Node {
	trust := strings.Trim(quoted(s.SPIFFE.TrustDomain), `"`)
	return block.Plain(key, `"spiffe://`+trust+`/ns/${POD_NAMESPACE}/sa/${POD_SERVICE_ACCOUNT}"`)
}

func bridgeInbound(s *identity.Settings) block.Node {
	if !s.Inbound.Enabled || !s.Inbound.Validate {
		return noPlugins
	}

	audience := block.Plain("audience_file", "/shared/client-id.txt")
	switch {
	case !s.SelfAudience():
		audience = literal("audience", s.Inbound.Audience)
	case s.AuthBridge.ClientAuth == identity.FederatedJWT:
		audience = spiffeID("audience", s)
	}
	return plugins("jwt-validation",
		literal("issuer", s.Inbound.Issuer),
		literal("jwks_url", s.Inbound.JWKSURL),
		audience,
		literals("allowed_audiences", s.AuthBridge.AllowedAudiences),
		literals("bypass_paths", bridgePaths(s)))
}

// bridgePaths returns the patterns of the paths that need no token.
func bridgePaths(s *identity.Settings) (paths []string) {
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
		return []string{noPath} // without the key, AuthBridge opens paths of its own
	}
	return paths
}

func bridgeOutbound(s *identity.Settings) block.Node {
	if !s.Outbound.TokenExchange {
		return noPlugins
	}

	client := block.Map("identity",
		block.Plain("type", "client-secret"),
		block.Plain("client_id_file", "/shared/client-id.txt"),
		block.Plain("client_secret_file", "/shared/client-secret.txt"))
	if s.AuthBridge.ClientAuth == identity.FederatedJWT {
		client = block.Map("identity",
			block.Plain("type", "spiffe"),
			spiffeID("client_id", s),
			literal("jwt_audience", s.SPIFFE.Audience))
	}
	return plugins(exchangePlugin,
		block.Plain("provider", "keycloak"),
		literal("token_url", s.Outbound.TokenURL),
		block.Plain("default_policy", "passthrough"),
		// CONNECT and intercepted connections never have a token: deny would block the HTTPS of
		// each host with a rule, and of all hosts if there is a default target.
		block.Plain("no_token_policy", "allow"),
		client,
		block.Map("routes", block.Plain("file", "/etc/authproxy/routes.yaml"), bridgeRules(s)))
}

// bridgeRules returns the routes in the order of precedence. A default target is the last of them,
// after Keycloak itself.
func bridgeRules(s *identity.Settings) block.Node {
	var rules []block.Node
	exchange := func(host, tokenURL string, t *identity.Target) {
		rules = append(rules, block.Map("",
			literal("host", host),
			literal("target_audience", t.Audience),
			literal("token_scopes", strings.Join(t.Scopes, " ")),
			block.If(tokenURL != "", literal("token_url", tokenURL)),
			block.Plain("action", "exchange")))
	}
	direct := func(host string) {
		rules = append(rules,
			block.Map("", literal("host", host), block.Plain("action", "passthrough")))
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
	return block.List("rules", rules...)
}
