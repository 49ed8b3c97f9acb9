package inject

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/sidecars"
)

func weatherAgent() identity.Workload {
	return identity.Workload{
		APIVersion: "apps/v1", Kind: "Deployment", Namespace: "default", Name: "weather-agent",
		SPIFFE: true,
	}
}

// kagenti is the configuration of the profile of source 001.
func kagenti() *api.RenderConfig {
	return &api.RenderConfig{Spec: api.RenderConfigSpec{Profile: new(sidecars.Kagenti),
		Trace: &api.TraceSpec{}}}
}

// config returns a configuration with the profile of source 001, unless the specification sets
// another one.
func config(t *testing.T, spec string) *api.RenderConfig {
	t.Helper()
	cfg := kagenti()
	if err := yaml.UnmarshalStrict([]byte("spec:\n"+spec), cfg); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func settings(t *testing.T, cfg *api.RenderConfig,
	change func(*identity.Workload)) *identity.Settings {
	t.Helper()
	base, findings := sidecars.All().Base(cfg)
	if finding.Failed(findings) {
		t.Fatal(findings)
	}
	w := weatherAgent()
	if change != nil {
		change(&w)
	}
	s, _ := identity.Resolve(&base, w, nil, nil, nil)
	return &s
}

// pod is the rendered pod, decoded as the API server decodes it.
type pod struct {
	containers map[string]corev1.Container
	volumes    map[string]corev1.Volume
	data       map[string]string
}

func render(t *testing.T, s *identity.Settings) pod {
	t.Helper()
	p := pod{map[string]corev1.Container{}, map[string]corev1.Volume{}, nil}
	for i, x := range s.Profile.Sidecars {
		name := x.Name
		if !s.Components[i].Enabled {
			continue
		}
		var list []corev1.Container
		text := sidecars.AppendContainer(nil, s, &x)
		if err := yaml.UnmarshalStrict(text, &list); err != nil {
			t.Fatalf("%s: %v in\n%s", name, err, text)
		}
		if len(list) != 1 || list[0].Name != name {
			t.Fatalf("%s became %d containers:\n%s", name, len(list), text)
		}
		p.containers[name] = list[0]
	}
	var volumes []corev1.Volume
	text, declared := sidecars.AppendVolumes(nil, s)
	if err := yaml.UnmarshalStrict(text, &volumes); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	names := make([]string, 0, len(volumes))
	for _, v := range volumes {
		p.volumes[v.Name] = v
		names = append(names, v.Name)
	}
	if diff := cmp.Diff(declared, names); diff != "" {
		t.Errorf("AppendVolumes: %s", diff)
	}
	cm := corev1.ConfigMap{}
	text = sidecars.AppendConfigMap(nil, s)
	if err := yaml.UnmarshalStrict(text, &cm); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	p.data = cm.Data
	p.check(t)
	return p
}

// check applies the API server's validation across the parts of the pod.
func (p pod) check(t *testing.T) {
	t.Helper()
	ports := map[string]bool{}
	for name, c := range p.containers {
		paths := map[string]bool{}
		for _, m := range c.VolumeMounts {
			if _, ok := p.volumes[m.Name]; !ok {
				t.Errorf("%s mounts the volume %s, which is not there", name, m.Name)
			}
			if paths[m.MountPath] {
				t.Errorf("%s mounts two volumes at %s", name, m.MountPath)
			}
			paths[m.MountPath] = true
			if m.SubPath != "" || m.SubPathExpr != "" {
				t.Errorf("%s mounts %s by subPath, which never updates", name, m.MountPath)
			}
		}
		env := map[string]bool{}
		for _, e := range c.Env {
			if env[e.Name] {
				t.Errorf("%s has the variable %s twice", name, e.Name)
			}
			// Kubernetes expands a variable only if it is set before.
			for rest := strings.ReplaceAll(e.Value, "$$", ""); ; {
				_, after, found := strings.Cut(rest, "$(")
				if !found {
					break
				}
				variable, tail, _ := strings.Cut(after, ")")
				if !env[variable] {
					t.Errorf("%s: %s refers to %s before it is set", name, e.Name, variable)
				}
				rest = tail
			}
			env[e.Name] = true
			if e.ValueFrom != nil && e.ValueFrom.ConfigMapKeyRef != nil {
				ref := e.ValueFrom.ConfigMapKeyRef
				if _, ok := p.data[ref.Key]; !ok && (ref.Optional == nil || !*ref.Optional) {
					t.Errorf("%s: %s comes from the key %s, which the ConfigMap has not", name,
						e.Name, ref.Key)
				}
			}
			if strings.Contains(strings.ToLower(e.Name), "password") && e.Value != "" {
				t.Errorf("%s: %s is embedded", name, e.Name)
			}
		}
		for _, port := range c.Ports {
			if problems := validation.IsValidPortName(port.Name); len(problems) > 0 {
				t.Errorf("%s: port %s: %v", name, port.Name, problems)
			}
			if key := fmt.Sprint(port.ContainerPort); ports[key] {
				t.Errorf("port %s is there twice", key)
			} else {
				ports[key] = true
			}
		}
		for resource, request := range c.Resources.Requests {
			if limit, ok := c.Resources.Limits[resource]; ok && request.Cmp(limit) > 0 {
				t.Errorf("%s requests more %s than its limit", name, resource)
			}
		}
	}
	for name, v := range p.volumes {
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			t.Errorf("volume %s: %v", name, problems)
		}
		if v.CSI != nil && (v.CSI.ReadOnly == nil || !*v.CSI.ReadOnly) {
			t.Errorf("volume %s is writable", name)
		}
	}
}

func (p pod) env(component, name string) string {
	for _, e := range p.containers[component].Env {
		if e.Name != name {
			continue
		}
		switch {
		case e.ValueFrom == nil:
			return e.Value
		case e.ValueFrom.ConfigMapKeyRef != nil:
			return p.data[e.ValueFrom.ConfigMapKeyRef.Key]
		case e.ValueFrom.SecretKeyRef != nil:
			return "secret " + e.ValueFrom.SecretKeyRef.Name + " " + e.ValueFrom.SecretKeyRef.Key
		case e.ValueFrom.FieldRef != nil:
			return "field " + e.ValueFrom.FieldRef.FieldPath
		}
	}
	return "<unset>"
}

// helper returns the values of a setting of spiffe-helper. Its own parser is tested in
// internal/readers.
func (p pod) helper(setting string) string {
	var values []string
	for _, found := range regexp.MustCompile(`\b`+setting+` ?= ?"([^"]*)"`).FindAllStringSubmatch(
		p.data["helper.conf"], -1) {
		values = append(values, found[1])
	}
	return strings.Join(values, " ")
}

// TestDefaults checks each default of source 001, with its line in the source.
func TestDefaults(t *testing.T) {
	s := settings(t, kagenti(), nil)
	p := render(t, s)
	security := func(component string) *corev1.SecurityContext {
		return p.containers[component].SecurityContext
	}
	var routes []map[string]any
	if err := yaml.Unmarshal([]byte(p.data["routes.yaml"]), &routes); err != nil {
		t.Fatal(err)
	}
	fallback := routes[len(routes)-1]

	for _, row := range []struct {
		line int
		what string
		got  any
		want any
	}{
		{257, "proxy-init is an init container", p.containers["proxy-init"].RestartPolicy == nil,
			true},
		{258, "spiffe-helper is a sidecar", *p.containers["spiffe-helper"].RestartPolicy,
			corev1.ContainerRestartPolicyAlways},
		{259, "client-registration is a sidecar",
			*p.containers["client-registration"].RestartPolicy,
			corev1.ContainerRestartPolicyAlways},
		{260, "auth-proxy is a sidecar", *p.containers["auth-proxy"].RestartPolicy,
			corev1.ContainerRestartPolicyAlways},
		{261, "envoy-proxy is a sidecar", *p.containers["envoy-proxy"].RestartPolicy,
			corev1.ContainerRestartPolicyAlways},
		{268, "directory of the SPIFFE socket",
			mount(p, "spiffe-helper", "armature-spire-socket").MountPath,
			"/run/spire/agent-sockets"},
		{273, "where the JWT SVID is written",
			p.helper("cert_dir") + "/" + p.helper("jwt_svid_file_name"), "/shared/jwt_svid.token"},
		{276, "the SPIFFE ID is read from the JWT", p.env("client-registration", "TOKEN"),
			"/shared/jwt_svid.token"},
		{278, "client_id and client_secret on the shared volume",
			mount(p, "client-registration", "armature-shared").MountPath, "/shared"},
		{278, "the shared volume is the one they are read from",
			mount(p, "envoy-proxy", "armature-shared").MountPath, "/shared"},
		{278, "client_secret", p.env("client-registration", "SECRET_FILE_PATH"),
			p.env("envoy-proxy", "CLIENT_SECRET_FILE")},

		{291, "trust domain",
			strings.HasPrefix(p.env("auth-proxy", "AUDIENCE"), "spiffe://cluster.local/"), true},
		{292, "socket path", p.helper("agent_address"), "/run/spire/agent-sockets/agent.sock"},
		{293, "output format JWT", p.helper("jwt_svid_file_name"), "jwt_svid.token"},
		{293, "output format JWT, not X.509", p.helper("svid_file_name"), ""},
		{294, "audience", p.helper("jwt_audience"), "kagenti-agents"},

		{297, "provider", p.env("client-registration", "PROVIDER"), "keycloak"},
		{298, "IdP URL", p.data["KEYCLOAK_URL"], "http://keycloak.kagenti-system.svc:8080"},
		{299, "realm", p.data["KEYCLOAK_REALM"], "default"},
		{300, "token exchange enabled", p.data["KEYCLOAK_TOKEN_EXCHANGE_ENABLED"], "true"},

		{303, "inbound port", p.containers["auth-proxy"].Ports[0].ContainerPort, int32(8080)},
		{304, "target port", p.env("auth-proxy", "TARGET_SERVICE_URL"), "http://127.0.0.1:8081"},
		{305, "issuer", p.env("auth-proxy", "ISSUER"),
			"http://keycloak.kagenti-system.svc:8080/realms/default"},
		{305, "issuer, in Envoy", p.env("envoy-proxy", "ISSUER"),
			"http://keycloak.kagenti-system.svc:8080/realms/default"},
		{306, "audience is the SPIFFE ID", p.env("auth-proxy", "AUDIENCE"),
			"spiffe://cluster.local/ns/$(POD_NAMESPACE)/sa/$(POD_SERVICE_ACCOUNT)"},
		{306, "audience is the SPIFFE ID, in Envoy", p.env("envoy-proxy", "EXPECTED_AUDIENCE"),
			"spiffe://cluster.local/ns/$(POD_NAMESPACE)/sa/$(POD_SERVICE_ACCOUNT)"},

		{309, "outbound proxy port", p.env("proxy-init", "PROXY_PORT"), "15123"},
		{309, "outbound proxy port, of Envoy", p.containers["envoy-proxy"].Ports[0].ContainerPort,
			int32(15123)},
		{309, "outbound proxy port, in envoy.yaml",
			strings.Contains(p.data["envoy.yaml"], "port_value: 15123"), true},
		{310, "proxy UID", p.env("proxy-init", "PROXY_UID"), "1337"},
		{311, "default token exchange audience", fallback["target_audience"], "downstream-service"},
		{311, "default token exchange audience is for all hosts", fallback["host"], "**"},
		{312, "excluded ports", p.env("proxy-init", "OUTBOUND_PORTS_EXCLUDE"), "8080"},

		{865, "proxy-init runs as", *security("proxy-init").RunAsUser, int64(0)},
		{867, "proxy-init adds", security("proxy-init").Capabilities.Add,
			[]corev1.Capability{"NET_ADMIN"}},
		{871, "auth-proxy runs as", *security("auth-proxy").RunAsUser, int64(1337)},
		{871, "envoy-proxy runs as", *security("envoy-proxy").RunAsUser, int64(1337)},
		{872, "auth-proxy is not root", *security("auth-proxy").RunAsNonRoot, true},
		{872, "envoy-proxy is not root", *security("envoy-proxy").RunAsNonRoot, true},
		{874, "auth-proxy drops", security("auth-proxy").Capabilities.Drop,
			[]corev1.Capability{"ALL"}},
		{874, "envoy-proxy drops", security("envoy-proxy").Capabilities.Drop,
			[]corev1.Capability{"ALL"}},
		{878, "spiffe-helper runs as", *security("spiffe-helper").RunAsUser, int64(1000)},
		{878, "client-registration runs as", *security("client-registration").RunAsUser,
			int64(1000)},
		{879, "spiffe-helper is not root", *security("spiffe-helper").RunAsNonRoot, true},
		{879, "client-registration is not root", *security("client-registration").RunAsNonRoot,
			true},
		{880, "spiffe-helper's root is read-only",
			*security("spiffe-helper").ReadOnlyRootFilesystem, true},
		{880, "client-registration's root is read-only",
			*security("client-registration").ReadOnlyRootFilesystem, true},
		{882, "spiffe-helper drops", security("spiffe-helper").Capabilities.Drop,
			[]corev1.Capability{"ALL"}},
		{882, "client-registration drops", security("client-registration").Capabilities.Drop,
			[]corev1.Capability{"ALL"}},
		{891, "IdP administrator's name from a Secret", p.env("client-registration",
			"KEYCLOAK_ADMIN_USERNAME"), "secret keycloak-admin-secret KEYCLOAK_ADMIN_USERNAME"},
		{891, "IdP administrator's password from a Secret", p.env("client-registration",
			"KEYCLOAK_ADMIN_PASSWORD"), "secret keycloak-admin-secret KEYCLOAK_ADMIN_PASSWORD"},
		{892, "client credentials are ephemeral", p.volumes["armature-shared"].EmptyDir.Medium,
			corev1.StorageMediumMemory},
	} {
		if diff := cmp.Diff(row.want, row.got); diff != "" {
			t.Errorf("001 line %d, %s: %s", row.line, row.what, diff)
		}
	}

	// 001, line 626.
	var mounts []corev1.VolumeMount
	if err := yaml.UnmarshalStrict(AppendTraceMount(nil,
		&identity.Settings{Trace: identity.Trace{Enabled: true}}), &mounts); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]corev1.VolumeMount{{Name: "armature-trace",
		MountPath: "/etc/kagenti/trace", ReadOnly: true}}, mounts); diff != "" {
		t.Errorf("001 line 626: %s", diff)
	}
	if name := p.volumes["armature-trace"].ConfigMap.Name; name != "weather-agent-trace" {
		t.Errorf("001 line 547: %s", name)
	}
	if name := p.volumes["armature-identity"].ConfigMap.Name; name !=
		"weather-agent-token-exchange" {
		t.Errorf("001 line 398: %s", name)
	}
}

func mount(p pod, component, volume string) corev1.VolumeMount {
	for _, m := range p.containers[component].VolumeMounts {
		if m.Name == volume {
			return m
		}
	}
	return corev1.VolumeMount{}
}

// TestStartOrder holds sidecars to probes that let the next one start:
// nothing that is probed through Envoy may start before Envoy.
func TestStartOrder(t *testing.T) {
	p := render(t, settings(t, kagenti(), nil))
	inboundFree := strings.Split(p.env("proxy-init", "INBOUND_PORTS_EXCLUDE"), ",")
	for name, c := range p.containers {
		if c.StartupProbe == nil {
			continue
		}
		var port int32
		switch h := c.StartupProbe; {
		case h.HTTPGet != nil:
			port = named(c, h.HTTPGet.Port.StrVal)
		case h.TCPSocket != nil:
			port = named(c, h.TCPSocket.Port.StrVal)
		default:
			continue
		}
		if port == 0 {
			t.Errorf("%s is probed on a port that it does not have", name)
		}
		// proxy-init itself lets Envoy's inbound port through.
		if port != 15124 && !slices.Contains(inboundFree, fmt.Sprint(port)) {
			t.Errorf("%s is probed on %d, which leads to an Envoy that is not up yet", name, port)
		}
	}
	for _, name := range []string{"spiffe-helper", "client-registration", "envoy-proxy"} {
		if p.containers[name].StartupProbe == nil {
			t.Errorf("the application may start before %s is ready", name)
		}
	}
}

func named(c corev1.Container, name string) int32 {
	for _, p := range c.Ports {
		if p.Name == name {
			return p.ContainerPort
		}
	}
	return 0
}

// TestWithoutSPIFFE: the label turns SPIFFE off, and no container waits for a token.
func TestWithoutSPIFFE(t *testing.T) {
	p := render(t, settings(t, kagenti(), func(w *identity.Workload) { w.SPIFFE = false }))
	if _, ok := p.containers["spiffe-helper"]; ok {
		t.Error("spiffe-helper is there")
	}
	if _, ok := p.volumes["armature-spire-socket"]; ok {
		t.Error("the SPIRE socket is there")
	}
	if script := p.containers["client-registration"].Command[2]; strings.Contains(script, "$TOKEN") {
		t.Errorf("client-registration waits for a token:\n%s", script)
	}
	for name, want := range map[string]string{
		"SPIRE_ENABLED": "false", "CLIENT_NAME": "$(POD_NAMESPACE)/weather-agent",
	} {
		if got := p.env("client-registration", name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	if got := p.env("auth-proxy", "AUDIENCE"); got != "$(CLIENT_NAME)" {
		t.Errorf("AUDIENCE = %q", got)
	}
	if got := p.env("proxy-init", "INBOUND_PORTS_EXCLUDE"); got != "" {
		t.Errorf("INBOUND_PORTS_EXCLUDE = %q", got)
	}
	if _, ok := p.data["helper.conf"]; ok {
		t.Error("helper.conf is there")
	}
}

// TestPublished is the generation that was published, as far as formats go.
func TestPublished(t *testing.T) {
	p := render(t, settings(t, config(t, "  profile: kagenti-published\n"), nil))
	if _, ok := p.containers["auth-proxy"]; ok {
		t.Error("auth-proxy is there")
	}
	for what, pair := range map[string][2]any{
		"cert_dir":      {p.helper("cert_dir"), "/opt"},
		"agent_address": {p.helper("agent_address"), "/spiffe-workload-api/spire-agent.sock"},
		"socket mount": {mount(p, "spiffe-helper", "armature-spire-socket").MountPath,
			"/spiffe-workload-api"},
		"svid mount":   {mount(p, "client-registration", "svid-output").MountPath, "/opt"},
		"shared mount": {mount(p, "client-registration", "shared-data").MountPath, "/shared"},
		"envoy config": {mount(p, "envoy-proxy", "armature-identity").MountPath, "/etc/envoy"},
		"capabilities": {fmt.Sprint(p.containers["proxy-init"].SecurityContext.Capabilities.Add),
			"[NET_ADMIN NET_RAW]"},
		"routes": {p.env("envoy-proxy", "ROUTES_CONFIG_PATH"),
			"/etc/authproxy/routes.yaml"},
		"client id": {p.env("envoy-proxy", "CLIENT_ID_FILE"), "/shared/client-id.txt"},
		"issuer": {p.env("envoy-proxy", "ISSUER"),
			"http://keycloak-service.keycloak.svc:8080/realms/kagenti"},
		"inbound port":   {p.env("proxy-init", "INBOUND_PROXY_PORT"), "15124"},
		"pod IP":         {p.env("proxy-init", "POD_IP"), "field status.podIP"},
		"envoy is 1337":  {*p.containers["envoy-proxy"].SecurityContext.RunAsUser, int64(1337)},
		"envoy group":    {*p.containers["envoy-proxy"].SecurityContext.RunAsGroup, int64(1337)},
		"helper is 1000": {*p.containers["spiffe-helper"].SecurityContext.RunAsUser, int64(1000)},
	} {
		if diff := cmp.Diff(pair[1], pair[0]); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
}

// TestVariants renders all combinations of settings and applies the API server's validation.
func TestVariants(t *testing.T) {
	for name, spec := range map[string]string{
		"hostPath":          "  identity: {spiffe: {SocketVolume: hostPath}}\n",
		"no token exchange": "  identity: {outbound: {tokenExchange: {enabled: false}}}\n",
		"no interception":   "  identity: {outbound: {trafficInterception: {enabled: false}}}\n",
		"no validation":     "  identity: {inbound: {validation: {enabled: false}}}\n",
		"any audience":      "  identity: {inbound: {validation: {audience: any}}}\n",
		"named audience": "  identity: {inbound: {validation: {audience: weather, " +
			"requiredScopes: [a, b]}}}\n",
		"no inbound":      "  identity: {inbound: {enabled: false}}\n",
		"no outbound":     "  identity: {outbound: {enabled: false}}\n",
		"no registration": "  identity: {clientRegistration: {enabled: false}}\n",
		"only auth-proxy": "  identity: {clientRegistration: {enabled: false}, outbound: " +
			"{enabled: false}, spiffe: {enabled: false}}\n",
		"nothing": "  identity: {clientRegistration: {enabled: false}, outbound: " +
			"{enabled: false}, spiffe: {enabled: false}, inbound: {enabled: false}}\n",
		"published, no spiffe": "  profile: kagenti-published\n" +
			"  identity: {spiffe: {enabled: false}}\n",
		"published, no inbound": "  profile: kagenti-published\n" +
			"  identity: {inbound: {enabled: false}}\n",
		"aws": "  identity: {clientRegistration: {provider: aws, aws: {roleArn: " +
			"'arn:aws:iam::1:role/r', region: eu}}}\n",
		"gcp": "  identity: {clientRegistration: {provider: gcp, gcp: {workloadIdentityProvider: " +
			"projects/1/locations/global/workloadIdentityPools/p/providers/q}}}\n",
		"resources": "  components: {envoy-proxy: {resources: {requests: {cpu: 1, " +
			"memory: ''}, limits: {cpu: 2, memory: 1e9}}}, spiffe-helper: {resources: {requests: " +
			"{cpu: '', memory: ''}, limits: {cpu: '', memory: ''}}}}\n",
		"client name": "  identity: {clientRegistration: {keycloak: {clientNameTemplate: " +
			"'a-$(X)-{{.PodName}}-{{ .NodeName " +
			"}}-{{.PodIP}}-{{.ServiceAccount}}-{{.WorkloadKind}}'}}}\n",
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t, spec)
			for _, spiffe := range []bool{true, false} {
				render(t, settings(t, cfg, func(w *identity.Workload) { w.SPIFFE = spiffe }))
			}
		})
	}
}

func TestClientName(t *testing.T) {
	cfg := config(t,
		"  identity: {clientRegistration: {keycloak: {clientNameTemplate: "+
			"'a-$(X)-{{.PodName}}-{{ .NodeName }}-{{.ServiceAccount}}-{{.WorkloadKind}}'}}}\n")
	p := render(t, settings(t, cfg, func(w *identity.Workload) { w.ServiceAccount = "sa" }))
	if got, want := p.env("client-registration", "CLIENT_NAME"),
		"a-$$(X)-$(POD_NAME)-$(NODE_NAME)-sa-Deployment"; got != want {
		t.Errorf("CLIENT_NAME = %q, want %q", got, want)
	}
}

// TestExcludedPorts: Keycloak's port always leaves the pod directly, because
// client-registration has to reach it before Envoy is up.
func TestExcludedPorts(t *testing.T) {
	for spec, want := range map[string]string{
		"  profile: kagenti\n": "8080",
		"  identity: {clientRegistration: {keycloak: {url: " +
			"'https://idp.example.com'}}}\n": "8080,443",
		"  identity: {clientRegistration: {keycloak: {url: 'https://idp:8443'}}, outbound: " +
			"{trafficInterception: {excludePorts: [8443, 22]}}}\n": "8443,22",
		"  identity: {clientRegistration: {keycloak: {url: 'https://idp:8443'}}, outbound: " +
			"{trafficInterception: {excludePorts: []}}}\n": "8443",
		"  identity: {clientRegistration: {enabled: false, keycloak: {url: 'https://idp:8443'}}, " +
			"outbound: {trafficInterception: {excludePorts: [], enabled: true}}}\n": "",
	} {
		p := render(t, settings(t, config(t, spec), nil))
		if got := p.env("proxy-init", "OUTBOUND_PORTS_EXCLUDE"); got != want {
			t.Errorf("%s: OUTBOUND_PORTS_EXCLUDE = %q, want %q", spec, got, want)
		}
	}
}

func TestReservedNames(t *testing.T) {
	reserved := append(sidecars.ReservedVolumes(), identity.SharedVolume, identity.SVIDVolume)
	for _, of := range sidecars.All().Names() {
		_, names := sidecars.AppendVolumes(nil, settings(t, config(t, "  profile: "+of+"\n"), nil))
		for _, name := range names {
			if !slices.Contains(reserved, name) {
				t.Errorf("the volume %s of profile %s is not reserved", name, of)
			}
		}
	}
}

// FuzzContainers puts one string everywhere that a user's string can go, past
// all validation: the pod must still be the same pod.
func FuzzContainers(f *testing.F) {
	for _, s := range []string{"plain", "a\nb: c", `"`, `\`, "$(X)", "$", "#", "ä\x00\u2028", "{{",
		"{{.PodName}}", "100m", "1", "\t"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, x string) {
		x = strings.ToValidUTF8(x, "")
		base, _ := sidecars.All().Base(kagenti())
		s, _ := identity.Resolve(&base, weatherAgent(), nil, nil, nil)
		s.Subject.Name, s.Subject.Kind, s.Subject.Namespace, s.Subject.ServiceAccount = x, x, x, x
		s.SPIFFE.SocketPath, s.SPIFFE.TrustDomain = "/a/"+x, x
		s.Registration.ClientName, s.Registration.AdminSecret = x, x
		for i, sidecar := range s.Profile.Sidecars {
			name := sidecar.Name
			s.Components[i].Image = x
			var list []corev1.Container
			text := sidecars.AppendContainer(nil, &s, &sidecar)
			if err := yaml.UnmarshalStrict(text, &list); err != nil {
				t.Fatalf("%v in\n%s", err, text)
			}
			if len(list) != 1 || list[0].Name != name || list[0].Image != x ||
				list[0].SecurityContext == nil {
				t.Errorf("%q made of %s: %+v", x, name, list)
			}
		}
		var volumes []corev1.Volume
		items, _ := sidecars.AppendVolumes(nil, &s)
		if err := yaml.UnmarshalStrict(items, &volumes); err != nil || len(volumes) != 4 {
			t.Errorf("%d volumes, %v", len(volumes), err)
		}
	})
}

func BenchmarkContainers(b *testing.B) {
	base, _ := sidecars.All().Base(kagenti())
	s, _ := identity.Resolve(&base, weatherAgent(), nil, nil, nil)
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		dst = dst[:0]
		for i := range s.Profile.Sidecars {
			dst = sidecars.AppendContainer(dst, &s, &s.Profile.Sidecars[i])
		}
		dst, _ = sidecars.AppendVolumes(dst, &s)
	}
	b.SetBytes(int64(len(dst)))
}
