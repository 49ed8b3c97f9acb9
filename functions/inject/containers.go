package inject

import (
	"path"
	"strings"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/scalar"
	"github.com/armature-dev/armature/functions/tokenexchange"
)

// ReservedContainers are the names that no container of the author may have.
func ReservedContainers() [6]string { return identity.Components() }

// AppendContainer appends one component as an item of the pod's containers or
// init containers, at zero indentation. With native, a sidecar is an init
// container that keeps running; proxy-init is an ordinary init container in
// either case. An unknown component appends nothing.
func AppendContainer(dst []byte, s *identity.Settings, component string, native bool) []byte {
	c := s.Component(component)
	if c == nil {
		return dst
	}
	dst = append(append(dst, "- name: "...), component...)
	dst = append(dst, "\n  image: "...)
	dst = scalar.AppendYAML(dst, c.Image)
	dst = append(append(dst, "\n  imagePullPolicy: "...), c.ImagePullPolicy...)
	dst = append(dst, '\n')
	if native && component != identity.ProxyInit {
		dst = append(dst, "  restartPolicy: Always\n"...)
	}
	w := writer{dst: dst, s: s}
	switch component {
	case identity.AuthBridgeProxy:
		w.authBridge()
	case identity.ProxyInit:
		w.proxyInit()
	case identity.SpiffeHelper:
		w.spiffeHelper()
	case identity.ClientRegistration:
		w.clientRegistration()
	case identity.AuthProxy:
		w.authProxy()
	case identity.EnvoyProxy:
		w.envoyProxy()
	}
	return w.dst
}

// Security contexts: 001, "Security Considerations", and on top of it whatever
// Pod Security "restricted" asks for and the program can live with.
const (
	initSecurity = `  securityContext:
    runAsUser: 0
    runAsNonRoot: false
    allowPrivilegeEscalation: false
    capabilities:
`
	sidecarSecurity = `    runAsNonRoot: true
    allowPrivilegeEscalation: false
    capabilities:
      drop:
      - ALL
    seccompProfile:
      type: RuntimeDefault
`
	helperSecurity = `  securityContext:
    runAsUser: 1000
    runAsGroup: 1000
    readOnlyRootFilesystem: true
` + sidecarSecurity
)

func (w *writer) proxySecurity() {
	w.text("  securityContext:\n    runAsUser: ")
	w.dst = scalar.AppendInt(w.dst, w.s.Outbound.ProxyUID)
	w.text("\n    runAsGroup: ")
	w.dst = scalar.AppendInt(w.dst, w.s.Outbound.ProxyUID)
	w.text("\n" + sidecarSecurity)
}

// proxyInit sets up iptables and ends. Its program is the published
// init-iptables.sh, which needs root, NET_ADMIN and a writable /run.
func (w *writer) proxyInit() {
	s := w.s
	w.text("  env:\n")
	if s.AuthBridgeProxy.Enabled {
		w.env("MODE", "enforce-redirect")
		w.envInt("PROXY_UID", s.Outbound.ProxyUID)
		w.envInt("TRANSPARENT_PORT", identity.TransparentPort)
		w.initSecurity()
		return
	}
	w.envInt("PROXY_PORT", s.Outbound.ProxyPort)
	w.envInt("INBOUND_PROXY_PORT", s.Outbound.InboundProxyPort)
	w.envInt("PROXY_UID", s.Outbound.ProxyUID)
	w.text("  - name: OUTBOUND_PORTS_EXCLUDE\n    value: \"")
	w.outboundExcludes()
	w.text("\"\n  - name: INBOUND_PORTS_EXCLUDE\n    value: \"")
	w.inboundExcludes()
	w.text("\"\n")
	w.field("POD_IP", "status.podIP")
	w.initSecurity()
}

// initSecurity appends the end of proxy-init.
func (w *writer) initSecurity() {
	s := w.s
	w.resources(&s.ProxyInit)
	w.text(initSecurity)
	w.text("      add:\n      - NET_ADMIN\n")
	if s.Profile == identity.ProfilePublished || s.Profile == identity.ProfileAuthBridge {
		w.text("      - NET_RAW\n      drop:\n      - ALL\n")
	}
	w.text("    seccompProfile:\n      type: RuntimeDefault\n")
}

func (w *writer) outboundExcludes() {
	s := w.s
	listed := false
	for i, port := range s.Outbound.ExcludePorts {
		if i > 0 {
			w.text(",")
		}
		w.dst = scalar.AppendInt(w.dst, port)
		listed = listed || port == s.Registration.Port
	}
	// client-registration talks to Keycloak before Envoy is up.
	if s.ClientRegistration.Enabled && s.Registration.Provider == "keycloak" && !listed && s.Registration.Port > 0 {
		if len(s.Outbound.ExcludePorts) > 0 {
			w.text(",")
		}
		w.dst = scalar.AppendInt(w.dst, s.Registration.Port)
	}
}

func (w *writer) inboundExcludes() {
	s := w.s
	// The kubelet asks spiffe-helper, or AuthBridge, for its health before Envoy is up.
	health := 0
	switch {
	case s.SpiffeHelper.Enabled:
		health = s.SPIFFE.HealthPort
	case s.Profile == identity.ProfileAuthBridge:
		health = identity.BridgeHealthPort
	}
	if health > 0 {
		w.dst = scalar.AppendInt(w.dst, health)
	}
	for i, port := range s.Outbound.ExcludeInboundPorts {
		if i > 0 || health > 0 {
			w.text(",")
		}
		w.dst = scalar.AppendInt(w.dst, port)
	}
}

// probe appends the end of a startup probe: two seconds apart, five minutes
// long. With native sidecars the next container starts when it succeeds.
func (w *writer) probe() { w.text("    periodSeconds: 2\n    failureThreshold: 150\n") }

func (w *writer) spiffeHelper() {
	s := w.s
	w.text("  args:\n  - -config\n  - /etc/spiffe-helper/helper.conf\n")
	w.text("  ports:\n  - name: spiffe-health\n    containerPort: ")
	w.dst = scalar.AppendInt(w.dst, s.SPIFFE.HealthPort)
	w.text("\n  startupProbe:\n    httpGet:\n      path: /ready\n      port: spiffe-health\n")
	w.probe()
	w.resources(&s.SpiffeHelper)
	w.text(helperSecurity + "  volumeMounts:\n")
	w.mount(configVolume, "/etc/spiffe-helper", true)
	w.mount(socketVolume, path.Dir(s.SPIFFE.SocketPath), true)
	w.mount(svidName(s), s.SPIFFE.TokenDir, false)
}

// The published program registers once and ends with an error where Keycloak
// does not answer, so that a shell waits for the token, tries again, and stays:
// a sidecar that ends is started again. The client's ID is the token's "sub".
// The program reads variables; the shell takes those that say where Keycloak is
// from the mounted files, and registers again when one of them changes.
const (
	trapSignals  = "    trap 'exit 0' TERM INT\n"
	waitForToken = `    until [ -s "$TOKEN" ]; do sleep 1; done
    python -c 'import base64, json, sys; p = sys.stdin.read().split(".")[1]; print(json.loads(base64.urlsafe_b64decode(p + "=" * (-len(p) % 4)))["sub"], end="")' <"$TOKEN" >/shared/client-id.txt
`
	nameAsID = "    printf %s \"$CLIENT_NAME\" >/shared/client-id.txt\n"
	register = `    registered=
    while :; do
      for name in KEYCLOAK_URL KEYCLOAK_REALM KEYCLOAK_TOKEN_EXCHANGE_ENABLED; do
        value=
        IFS= read -r value <"` + tokenexchange.MountPath + `/$name" || [ -n "$value" ]
        export "$name=$value"
      done
      settings="$KEYCLOAK_URL $KEYCLOAK_REALM $KEYCLOAK_TOKEN_EXCHANGE_ENABLED"
      if [ "$settings" != "$registered" ] && python client_registration.py; then registered=$settings; fi
      sleep 5 & wait $!
    done
`
	stayAlive = "    while :; do sleep 3600 & wait $!; done\n"
)

func (w *writer) clientRegistration() {
	s := w.s
	keycloak := s.Registration.Provider == "keycloak"
	w.text("  command:\n  - /bin/sh\n  - -ec\n  - |\n" + trapSignals)
	if s.SPIFFE.Enabled {
		w.text(waitForToken)
	} else {
		w.text(nameAsID)
	}
	if keycloak {
		w.text(register)
	} else {
		w.text(stayAlive)
	}
	w.text("  env:\n")
	w.configured("SPIRE_ENABLED")
	w.clientName()
	if s.SPIFFE.Enabled {
		w.env("TOKEN", s.SPIFFE.TokenDir+"/jwt_svid.token")
	}
	w.configured("PROVIDER")
	if keycloak {
		w.secret("KEYCLOAK_ADMIN_USERNAME", s.Registration.AdminSecret)
		w.secret("KEYCLOAK_ADMIN_PASSWORD", s.Registration.AdminSecret)
		w.env("SECRET_FILE_PATH", "/shared/client-secret.txt")
	} else if variable, file := tokenexchange.CloudFile(s); variable != "" {
		w.env(variable, file)
	}
	w.text("  startupProbe:\n    exec:\n      command:\n      - /bin/sh\n      - -c\n      - test -s /shared/client-id.txt")
	if keycloak {
		w.text(" && test -s /shared/client-secret.txt")
	}
	w.text("\n")
	w.probe()
	w.resources(&s.ClientRegistration)
	w.text(helperSecurity + "  volumeMounts:\n")
	w.mount(sharedName(s), "/shared", false)
	if s.SPIFFE.Enabled {
		// The published program reads the token in /opt, wherever else it is.
		w.mount(svidName(s), "/opt", true)
	}
	w.mount(configVolume, tokenexchange.MountPath, true)
	if !keycloak && s.SPIFFE.Enabled {
		w.mount(svidName(s), tokenexchange.TokenPath, true)
	}
}

// clientName appends CLIENT_NAME, and before it the variables that Kubernetes
// expands in it.
func (w *writer) clientName() {
	template := w.s.Registration.ClientName
	for _, v := range [...]struct{ placeholder, variable, field string }{
		{"PodName", "POD_NAME", "metadata.name"},
		{"PodNamespace", "POD_NAMESPACE", "metadata.namespace"},
		{"PodIP", "POD_IP", "status.podIP"},
		{"NodeName", "NODE_NAME", "spec.nodeName"},
	} {
		if uses(template, v.placeholder) {
			w.field(v.variable, v.field)
		}
	}
	w.text("  - name: CLIENT_NAME\n    value: ")
	w.dst = append(appendClientName(w.dst, w.s), '\n')
}

// uses reports whether a client name's template holds a placeholder.
func uses(template, placeholder string) bool {
	for {
		_, after, found := strings.Cut(template, "{{")
		if !found {
			return false
		}
		var inner string
		inner, template, _ = strings.Cut(after, "}}")
		if strings.TrimPrefix(strings.TrimSpace(inner), ".") == placeholder {
			return true
		}
	}
}

func appendClientName(dst []byte, s *identity.Settings) []byte {
	dst = append(dst, '"')
	for rest := s.Registration.ClientName; ; {
		literal, after, found := strings.Cut(rest, "{{")
		dst = scalar.AppendEnvInner(dst, literal)
		if !found {
			return append(dst, '"')
		}
		inner, tail, _ := strings.Cut(after, "}}")
		switch strings.TrimPrefix(strings.TrimSpace(inner), ".") {
		case "PodName":
			dst = append(dst, "$(POD_NAME)"...)
		case "PodNamespace":
			dst = append(dst, "$(POD_NAMESPACE)"...)
		case "PodIP":
			dst = append(dst, "$(POD_IP)"...)
		case "NodeName":
			dst = append(dst, "$(NODE_NAME)"...)
		case "ServiceAccount":
			dst = scalar.AppendEnvInner(dst, s.ServiceAccount)
		case "WorkloadName":
			dst = scalar.AppendEnvInner(dst, s.Name)
		case "WorkloadKind":
			dst = scalar.AppendEnvInner(dst, s.Kind)
		}
		rest = tail
	}
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

func (w *writer) authProxy() {
	s := w.s
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
	w.resources(&s.AuthProxy)
	w.proxySecurity()
	w.text("  volumeMounts:\n")
	w.mount(configVolume, tokenexchange.MountPath, true)
}

// port appends an item of a container's ports.
func (w *writer) port(name string, n int) {
	w.text("  - name: ", name, "\n    containerPort: ")
	w.dst = append(scalar.AppendInt(w.dst, n), '\n')
}

func (w *writer) envoyPorts() {
	w.port("envoy-outbound", w.s.Outbound.ProxyPort)
	w.port("envoy-inbound", w.s.Outbound.InboundProxyPort)
	w.port("envoy-admin", identity.EnvoyAdminPort)
	w.port("ext-proc", identity.ExtProcPort)
}

func (w *writer) envoyProxy() {
	s := w.s
	if s.Profile == identity.ProfileAuthBridge {
		w.authBridgeEnvoy()
		return
	}
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
	w.resources(&s.EnvoyProxy)
	w.proxySecurity()
	w.text("  volumeMounts:\n")
	w.mount(configVolume, "/etc/envoy", true)
	w.mount(configVolume, "/etc/authproxy", true)
	w.mount(sharedName(s), "/shared", true)
	if ownSVIDVolume(s) {
		w.mount(publishedSVIDVolume, "/opt", true)
	}
}
