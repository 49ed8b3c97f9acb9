package status_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/render/deliver/status"
)

const web = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: NS
  labels: {kagenti.io/inject: enabled}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: "web:v1"
---
apiVersion: kagenti.io/v1alpha1
kind: TokenExchange
metadata: {name: web-auth, namespace: NS}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
---
apiVersion: kagenti.io/v1alpha1
kind: AgentCard
metadata: {name: web-card, namespace: NS}
spec:
  selector: {matchLabels: {app: web}}
`

// A workload whose identity infrastructure is turned off has a trace, and no token
// exchange that would wait for ever.
func TestNoIdentityInfrastructure(t *testing.T) {
	w := newWorld(t)
	made := w.apply(kagenti+`
    components:
      proxy-init: {enabled: false}
      spiffe-helper: {enabled: false}
      client-registration: {enabled: false}
      auth-proxy: {enabled: false}
      envoy-proxy: {enabled: false}
`, web[:strings.Index(web, "---\napiVersion: kagenti.io/v1alpha1\nkind: TokenExchange")])
	deployment := made["Deployment/web"]
	w.status(deployment,
		"{observedGeneration: 1, replicas: 1, updatedReplicas: 1, readyReplicas: 1, "+
			"availableReplicas: 1}")
	w.pod(deployment, "web-1")
	r := w.report()
	if len(r.TokenExchanges) != 0 || len(r.AgentTraces) != 1 || r.AgentTraces[0].Phase != "Active" {
		t.Errorf("token exchanges %+v, traces %+v", r.TokenExchanges, r.AgentTraces)
	}
}

// TestPillars: what the status sections of 001 held, from the pods.
func TestPillars(t *testing.T) {
	w := newWorld(t)
	made := w.apply(kagenti, web)
	deployment := made["Deployment/web"]
	w.status(deployment,
		"{observedGeneration: 1, replicas: 1, updatedReplicas: 1, readyReplicas: 1, "+
			"availableReplicas: 1}")
	type seen struct {
		Phase, Message string
		Pods           int
		Identity       api.IdentityStatus
	}
	expect := func(want seen) {
		t.Helper()
		r := w.report()
		if len(r.TokenExchanges) != 1 || len(r.AgentTraces) != 1 || len(r.AgentCards) != 1 {
			t.Fatalf("%+v", r)
		}
		x := r.TokenExchanges[0]
		if x.Name != (status.Name{Namespace: w.namespace, Name: "web-auth"}) ||
			x.Target != "Deployment/web" || x.ConfigMapName != "web-token-exchange" {
			t.Errorf("%+v", x)
		}
		got := seen{x.Phase, x.Message, x.ConfiguredPods, *x.IdentityStatus}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	expect(seen{Phase: "Pending", Message: "no pod has the configuration"})

	pod := w.pod(deployment, "web-1")
	w.podStatus(pod, map[string]string{"envoy-proxy": "PodInitializing"})
	expect(seen{"Pending", "not ready in all pods: envoy-proxy", 1,
		api.IdentityStatus{SPIFFEEnabled: true, IDPRegistered: true, InboundProxyReady: true}})

	w.podStatus(pod, map[string]string{"client-registration": "CrashLoopBackOff"})
	expect(seen{"Failed", "pod web-1: CrashLoopBackOff: container client-registration: why", 1,
		api.IdentityStatus{SPIFFEEnabled: true, InboundProxyReady: true, OutboundProxyReady: true}})

	w.podStatus(pod, nil)
	expect(seen{"Active", "Identity infrastructure configured", 1,
		api.IdentityStatus{SPIFFEEnabled: true, IDPRegistered: true, InboundProxyReady: true,
			OutboundProxyReady: true}})
	r := w.report()
	if trace := r.AgentTraces[0]; trace.Phase != "Active" || trace.ConfiguredPods != 1 ||
		trace.AgentTraceStatus.ConfigMapName != "web-trace" {
		t.Errorf("%+v", trace)
	}
	if card := r.AgentCards[0]; card.Phase != "Active" || card.Pods != 1 ||
		card.Name.Name != "web-card" || card.ConfigMapName != "web-card-discovery" {
		t.Errorf("%+v", card)
	}

	w.delete(made["ConfigMap/web-token-exchange"])
	if x := w.report().TokenExchanges[0]; x.Phase != "Failed" ||
		x.Message != "the ConfigMap web-token-exchange is missing: apply the package again" {
		t.Errorf("%+v", x)
	}
}

// TestPillarsOfAuthBridge: one proxy is ready both ways, and its ConfigMap is the one
// of that profile.
func TestPillarsOfAuthBridge(t *testing.T) {
	w := newWorld(t)
	made := w.apply(
		`{profile: authbridge, identity: {inbound: {validation: {issuer: "https://keycloak.example.com"}}}}`, web+`---
apiVersion: agent.rossoctl.dev/v1alpha1
kind: AgentRuntime
metadata: {name: web-runtime, namespace: NS}
spec:
  type: agent
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
`)
	deployment := made["Deployment/web"]
	w.status(deployment,
		"{observedGeneration: 1, replicas: 1, updatedReplicas: 1, readyReplicas: 1, "+
			"availableReplicas: 1}")
	w.podStatus(w.pod(deployment, "web-1"), nil)
	r := w.report()
	if len(r.AgentTraces) != 0 {
		t.Errorf("traces that nothing asks for: %+v", r.AgentTraces)
	}
	x := r.TokenExchanges[0]
	want := api.IdentityStatus{SPIFFEEnabled: true, InboundProxyReady: true, OutboundProxyReady: true}
	if x.Name.Name != "web-auth" || x.ConfigMapName != "authbridge-config-web" ||
		x.Phase != "Active" || *x.IdentityStatus != want {
		t.Errorf("%+v, %+v", x, *x.IdentityStatus)
	}
	w.delete(made["ConfigMap/authbridge-config-web"])
	if x := w.report().TokenExchanges[0]; x.Phase != "Failed" ||
		x.Message != "the ConfigMap authbridge-config-web is missing: apply the package again" {
		t.Errorf("%+v", x)
	}
}
