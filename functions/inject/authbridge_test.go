package inject

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/e2e/fakesidecars/authbridge"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/sidecars"
)

// bridged renders the profile authbridge with more settings, for a workload with
// ports.
func bridged(t *testing.T, spec string,
	change func(*identity.Workload)) (*identity.Settings, pod, *authbridge.Config) {
	t.Helper()
	s := settings(t, config(t, "  profile: authbridge\n"+spec), func(w *identity.Workload) {
		w.ServiceAccount = "weather"
		w.Ports = []int{8000}
		if change != nil {
			change(w)
		}
	})
	p := render(t, s)
	env := map[string]string{}
	for _, c := range p.containers {
		for _, e := range c.Env {
			if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
				env[e.Name] = map[string]string{"metadata.namespace": "default",
					"spec.serviceAccountName": "weather"}[e.ValueFrom.FieldRef.FieldPath]
			}
		}
	}
	c, err := authbridge.Read([]byte(p.data["config.yaml"]),
		func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	if err != nil {
		t.Fatalf("AuthBridge refuses its configuration: %v\n%s", err, p.data["config.yaml"])
	}
	return s, p, c
}

// TestAuthBridgeModes: containers, images, ports, users, volumes and listeners of the
// three modes, read as strictly as the program reads them.
func TestAuthBridgeModes(t *testing.T) {
	type shape struct {
		Containers, Images, Volumes, Addresses []string
		Mode, Backend                          string
		Ports                                  map[string]int32
		MTLS                                   bool
	}
	proxy := shape{
		Containers: []string{"authbridge-proxy", "proxy-init"},
		Images:     []string{"authbridge", "proxy-init"},
		Volumes: []string{"armature-identity", "armature-routes", "armature-spire-socket",
			"armature-trace", "svid-output"},
		Addresses: []string{":8000", "127.0.0.1:8081", "127.0.0.1:8082", "127.0.0.1:9094", ":9093"},
		Mode:      "proxy-sidecar", Backend: "http://127.0.0.1:8001",
		Ports: map[string]int32{"bridge-health": 9091, "bridge-stats": 9093}, MTLS: true,
	}
	lite := proxy
	lite.Images = []string{"authbridge-lite", "proxy-init"}
	envoy := proxy
	envoy.Containers, envoy.Images =
		[]string{"envoy-proxy", "proxy-init"}, []string{"authbridge-envoy", "proxy-init"}
	envoy.Addresses, envoy.Mode, envoy.Backend, envoy.MTLS =
		[]string{"127.0.0.1:9090", "127.0.0.1:9094", ":9093"}, "envoy-sidecar", "", false
	envoy.Ports = map[string]int32{"bridge-health": 9091, "bridge-stats": 9093,
		"envoy-outbound": 15123, "envoy-inbound": 15124, "envoy-admin": 9901, "ext-proc": 9090}
	for mode, want := range map[string]shape{identity.ModeProxySidecar: proxy,
		identity.ModeLite: lite, identity.ModeEnvoySidecar: envoy} {
		t.Run(mode, func(t *testing.T) {
			_, p, c := bridged(t, "  authbridge: {mode: "+mode+"}\n", nil)
			got := shape{
				Containers: slices.Sorted(maps.Keys(p.containers)),
				Volumes:    slices.Sorted(maps.Keys(p.volumes)), Addresses: c.Addresses(),
				Mode: c.Mode, Backend: c.Listener.ReverseProxyBackend, Ports: map[string]int32{},
				MTLS: c.MTLS != nil,
			}
			for _, name := range got.Containers {
				container := p.containers[name]
				image, _, _ := strings.Cut(container.Image[strings.LastIndexByte(container.Image,
					'/')+1:], ":")
				got.Images = append(got.Images, image)
				if name == sidecars.ProxyInit {
					continue
				}
				for _, port := range container.Ports {
					got.Ports[port.Name] = port.ContainerPort
				}
				if diff := cmp.Diff([]string{"--config", "/etc/authbridge/config.yaml"},
					container.Args); diff != "" || *container.SecurityContext.RunAsUser != 1337 {
					t.Errorf("%s runs as %d with %q", name, *container.SecurityContext.RunAsUser,
						container.Args)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			const self = "spiffe://cluster.local/ns/default/sa/weather"
			if c.Validation.Audience != self || c.Exchange.Identity.ClientID != self ||
				c.Exchange.Identity.Type != "spiffe" ||
				c.Exchange.Identity.JWTAudience != c.Validation.Issuer {
				t.Errorf("the identity is %+v, and tokens are for %s", c.Exchange.Identity,
					c.Validation.Audience)
			}
		})
	}
}

// TestAuthBridgeConfig: what settings become.
func TestAuthBridgeConfig(t *testing.T) {
	none := "  identity: {outbound: {trafficInterception: {enabled: false}}}\n"
	for _, test := range []struct {
		name, spec string
		change     func(*identity.Workload)
		got        func(*identity.Settings, pod, *authbridge.Config) any
		want       any
	}{
		{"no interception", none, nil, func(_ *identity.Settings, p pod, _ *authbridge.Config) any {
			return slices.Sorted(maps.Keys(p.containers))
		}, []string{"authbridge-proxy"}},
		{"enforce-redirect", "", nil, func(_ *identity.Settings, p pod, _ *authbridge.Config) any {
			return env(p.containers["proxy-init"])
		},
			"MODE=enforce-redirect PROXY_UID=1337 TRANSPARENT_PORT=8082"},
		{"redirect to Envoy", "  authbridge: {mode: envoy-sidecar}\n", nil,
			func(_ *identity.Settings, p pod, _ *authbridge.Config) any {
				return env(p.containers["proxy-init"])
			},
			"PROXY_PORT=15123 INBOUND_PROXY_PORT=15124 PROXY_UID=1337 " +
				"OUTBOUND_PORTS_EXCLUDE=8080 INBOUND_PORTS_EXCLUDE=9091 POD_IP="},
		{"without SPIFFE the client has a Secret", "", func(w *identity.Workload) {
			w.SPIFFE = false
		}, func(_ *identity.Settings, p pod, c *authbridge.Config) any {
			return fmt.Sprint(p.volumes["armature-client"].Secret.SecretName, " ",
				c.Exchange.Identity.Type, " ", c.Validation.AudienceFile, " ", c.SPIFFE == nil,
				c.MTLS == nil)
		},
			"kagenti-keycloak-client-credentials-ea546f43d49990bf client-secret " +
				"/shared/client-id.txt true true"},
		{"inbound alone", "  identity: {outbound: {enabled: false}}\n", nil,
			func(_ *identity.Settings, _ pod, c *authbridge.Config) any {
				return fmt.Sprint(c.Listener.Roles, c.Exchange == nil, c.Listener.ForwardProxyAddr)
			}, "[reverse] true"},
		{"outbound alone", "  identity: {inbound: {enabled: false}}\n", nil,
			func(_ *identity.Settings, _ pod, c *authbridge.Config) any {
				return fmt.Sprint(c.Listener.Roles, c.Validation == nil, c.Listener.ReverseProxyAddr)
			}, "[forward] true"},
		{"ports that are taken", "", func(w *identity.Workload) {
			w.Ports = []int{8080, 8081, 8083}
		}, func(s *identity.Settings, _ pod, _ *authbridge.Config) any {
			return fmt.Sprint(s.Inbound.Port, s.Inbound.TargetPort, s.AuthBridge.ForwardPort)
		}, "8080 8084 8085"},
		{"the author's PORT", "", func(w *identity.Workload) { w.EnvPort = 7000 },
			func(_ *identity.Settings, _ pod, c *authbridge.Config) any {
				return c.Listener.ReverseProxyBackend
			}, "http://127.0.0.1:7000"},
		{"an agent without ports", "", func(w *identity.Workload) { w.Ports = nil },
			func(_ *identity.Settings, p pod, c *authbridge.Config) any {
				return fmt.Sprint(c.Listener.ReverseProxyAddr, " ",
					p.containers["authbridge-proxy"].Ports[0].Name)
			}, ":8000 reverse-proxy"},
		{"routes",
			`  identity: {outbound: {tokenExchange: {defaultTarget: {audience: all}, destinationRules: [{match: {host: a}, target: {audience: x, scopes: [s, t]}}, {match: {host: b}, passthrough: true}]}}}` + "\n", nil,
			func(_ *identity.Settings, _ pod, c *authbridge.Config) any {
				return fmt.Sprint(c.Exchange.NoTokenPolicy, " ", c.Exchange.Routes.Rules)
			},
			"allow [{a x s t  exchange} {b    passthrough} {keycloak-service.keycloak.svc    " +
				"passthrough} {** all openid  exchange}]"},
		{"nothing is replaced in a value",
			`  identity: {inbound: {validation: {issuer: "https://a.example/${POD_NAMESPACE}/$x"}}}` +
				"\n", nil, func(_ *identity.Settings, _ pod, c *authbridge.Config) any {
				return c.Validation.Issuer
			}, "https://a.example/${POD_NAMESPACE}/$x"},
		{"the kubelet's probes", "", func(w *identity.Workload) {
			w.Probes = []identity.Probe{{Path: "/up"}}
		}, func(_ *identity.Settings, _ pod, c *authbridge.Config) any {
			return c.Validation.BypassPaths
		},
			[]string{"/.well-known/*", "/healthz", "/readyz", "/livez", "/metrics", "/up"}},
		{"a rule's host",
			`  identity: {outbound: {tokenExchange: {destinationRules: [{match: {host: a}, target: {audience: x}}]}}}` + "\n", nil, func(_ *identity.Settings, _ pod, c *authbridge.Config) any {
				return c.Exchange.NoTokenPolicy
			}, "allow"},
		{"telemetry at IPv6 addresses",
			`  trace: {exporters: [{type: otlp, endpoint: "[fd00::1]:4317"}, {type: otlp, endpoint: "otel:4317"}], integration: {mlflow: {enabled: true, trackingUri: "http://[fd00::2]:5000"}}}` + "\n", nil, func(_ *identity.Settings, _ pod, c *authbridge.Config) any {
				return c.Listener.SkipHosts
			}, []string{"otel"}},
		{"no open paths", `  identity: {inbound: {validation: {bypassPaths: []}}}` + "\n", nil,
			func(_ *identity.Settings, _ pod, c *authbridge.Config) any {
				return c.Validation.BypassPaths
			}, []string{"//"}},
		{"cleaned paths",
			`  identity: {inbound: {validation: {bypassPaths: ["/docs/", "//static//*", "//"]}}}` +
				"\n", func(w *identity.Workload) {
				w.Probes = []identity.Probe{{Path: "/health/?full=1"}, {Path: "//live"},
					{Path: "/a/../b"}, {Path: "//"}, {Path: "/."}}
			}, func(_ *identity.Settings, _ pod, c *authbridge.Config) any {
				return c.Validation.BypassPaths
			},
			[]string{"/docs", "/static/*", "//", "/health", "/live", "/b"}},
		{"probes of other ports", "", func(w *identity.Workload) {
			w.Probes = []identity.Probe{{Path: "/up", Port: 8000}, {Path: "/admin", Port: 9000},
				{Path: "/named", Port: -1}, {Path: "/direct", Port: 8001}}
		}, func(_ *identity.Settings, _ pod, c *authbridge.Config) any {
			return c.Validation.BypassPaths[5:]
		}, []string{"/up"}},
		{"probes of all ports behind Envoy", "  authbridge: {mode: envoy-sidecar}\n",
			func(w *identity.Workload) {
				w.Probes = []identity.Probe{{Path: "/up", Port: 8000},
					{Path: "/admin/", Port: 9000}}
			}, func(_ *identity.Settings, _ pod, c *authbridge.Config) any {
				return c.Validation.BypassPaths[5:]
			}, []string{"/up", "/admin"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, p, c := bridged(t, test.spec, test.change)
			if diff := cmp.Diff(test.want, test.got(s, p, c)); diff != "" {
				t.Errorf("(-want +got)\n%s\n%s", diff, p.data["config.yaml"])
			}
		})
	}
}

// TestAuthBridgeReaderIsStrict: the reader of the configuration in these tests and on the cluster
// refuses fields that the real program does not know.
func TestAuthBridgeReaderIsStrict(t *testing.T) {
	_, p, _ := bridged(t, "", nil)
	lookup := func(string) (string, bool) { return "x", true }
	for old, with := range map[string]string{
		"mode: proxy-sidecar": "mode: waypoint", "tls_bridge:": "tls_bridges:",
		"  roles:": "  role:", "issuer:": "issuers:", "default_policy:": "default_policies:",
		"type: spiffe": "type: spire", "jwt_audience:": "audience:",
		"mode: permissive": "mode: lax",
	} {
		text := p.data["config.yaml"]
		if !strings.Contains(text, old) {
			t.Fatalf("the configuration has no %q:\n%s", old, text)
		}
		if _, err := authbridge.Read([]byte(strings.Replace(text, old, with, 1)), lookup); err == nil {
			t.Errorf("%q is accepted in place of %q", with, old)
		}
	}
}

// TestNamesPort: words of a command line that name a port.
func TestNamesPort(t *testing.T) {
	for word, want := range map[string]bool{
		"8080": true, "--port=8080": true, ":8080": true, "0.0.0.0:8080": true, "18080": false,
		"$(PORT)": false, "8080s": false, "v8080": false, "": false,
	} {
		if namesPort(word, "8080") != want {
			t.Errorf("%q names the port 8080: %v", word, !want)
		}
	}
}

func env(c corev1.Container) string {
	var all []string
	for _, e := range c.Env {
		all = append(all, e.Name+"="+e.Value)
	}
	return strings.Join(all, " ")
}
