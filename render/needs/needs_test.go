package needs

import (
	"slices"
	"strings"
	"testing"

	"github.com/armature-dev/armature/render"
)

const rendered = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: weather
  namespace: team1
  annotations:
    armature.dev/injected: '{"initContainers":["proxy-init","authbridge-proxy"]}'
spec:
  replicas: 3
  template:
    spec:
      serviceAccountName: weather
      initContainers:
      - name: proxy-init
        resources: {requests: {cpu: 1, memory: 1Gi}}
        securityContext: {runAsUser: 0, capabilities: {add: [NET_ADMIN]}}
      - name: authbridge-proxy
        restartPolicy: Always
        resources: {requests: {cpu: 100m, memory: 128Mi}}
      containers:
      - name: agent
        resources: {requests: {cpu: 2}}
        envFrom:
        - secretRef: {name: llm}
        - secretRef: {name: own}
        - secretRef: {name: perhaps, optional: true}
      volumes:
      - name: spire
        csi: {driver: csi.spiffe.io, readOnly: true}
---
apiVersion: v1
kind: Secret
metadata: {name: own, namespace: team1}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: weather
  namespace: team1
  annotations: {armature.dev/rendered-for: Deployment/weather}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: authbridge-config-weather
  namespace: team1
  annotations: {armature.dev/rendered-for: Deployment/weather}
data:
  config.yaml: |
    pipeline:
      issuer: "https://keycloak.example.com/realms/agents"
      jwks_url: "http://keycloak.svc:8080/realms/agents/protocol/openid-connect/certs"
      token_url: "http://keycloak.svc:8080/realms/agents/protocol/openid-connect/token"
---
apiVersion: example.com/v1
kind: Thing
metadata: {name: thing}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: owns.example.com}
spec:
  group: example.com
  names: {kind: Own}
---
apiVersion: example.com/v1
kind: Own
metadata: {name: own}
---
apiVersion: v1
kind: Namespace
metadata:
  name: team1
  labels: {pod-security.kubernetes.io/enforce: privileged}
`

func of(text string) (lines []string) {
	for _, n := range Of([]render.File{{Path: "a.yaml", Data: []byte(text)}}) {
		lines = append(lines, string(n.Kind)+" "+n.Namespace+" "+n.Name)
	}
	return lines
}

func TestOf(t *testing.T) {
	want := []string{
		"KubernetesVersion  1.29",
		"CSIDriver  csi.spiffe.io",
		"Issuer  https://keycloak.example.com/realms/agents",
		"Keycloak  http://keycloak.svc:8080/realms/agents",
		"API  example.com/v1 Thing",
		"PodSecurity team1 privileged",
		"ServiceAccount team1 weather",
		"Secret team1 llm",
		"Requests team1 cpu 300m, memory 384Mi",
	}
	for clients, config := range map[string]string{
		"federated-jwt":                  "      identity:\n        type: spiffe\n",
		"a client for each; set another": "      identity:\n        type: client-secret\n"} {
		text := strings.Replace(rendered, "    pipeline:\n", "    pipeline:\n"+config, 1)
		if !slices.ContainsFunc(Of([]render.File{{Path: "a.yaml", Data: []byte(text)}}),
			func(n Need) bool {
				return n.Kind == Keycloak && strings.Contains(n.Remedy, clients)
			}) {
			t.Errorf("no remedy has %q", clients)
		}
	}
	if got := of(rendered); !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, n := range Of([]render.File{{Path: "a.yaml", Data: []byte(rendered)}}) {
		if n.Need == "" || n.Remedy == "" || len(n.For) == 0 || n.Status != "" {
			t.Errorf("%+v", n)
		}
		if n.Kind == PodSecurity &&
			(!strings.Contains(n.Need, "NET_ADMIN") ||
				!strings.Contains(n.Need, "proxy-init runs as root") || n.Packaged == nil ||
				n.Packaged.Enforce != "privileged") {
			t.Errorf("%+v", n)
		}
	}
}

// An AgentBuild needs Tekton, the controller, and the logins that it names; what is attested, a
// key.
func TestBuild(t *testing.T) {
	const build = `apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: weather, namespace: team1}
spec:
  mode: prod
  source: {sourceCredentials: {name: git}}
  buildOutput: {imageRepoCredentials: {name: push}}
`
	want := []string{"API  agent.kagenti.dev/v1alpha1 AgentBuild", "Secret team1 git",
		"Secret team1 push", "Tekton  tekton.dev/v1", "Controller  armature-controller",
		"AttestKey  armature-attest-key", "BuildNamespace  armature-builds",
		"Writers  armature-builds", "Enforced  armature-builds"}
	if got := of(build); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := of(strings.Replace(build, "prod", "dev", 1)); slices.Contains(got,
		"AttestKey  armature-attest-key") {
		t.Errorf("%q", got)
	}
}

// Brief names in one line what a person has to have, and no more of thousands of workloads.
func TestBrief(t *testing.T) {
	var b Brief
	sink := b.Sink(func(string, []byte) error { return nil })
	if err := sink("a.yaml", []byte(rendered)); err != nil {
		t.Fatal(err)
	}
	const want = "needs: Kubernetes 1.29, SPIRE with its CSI driver, Keycloak at " +
		"http://keycloak.svc:8080/realms/agents, Pod Security privileged in namespace team1, cpu " +
		"300m, memory 384Mi for sidecars, 1 Secret: see armature check apps\n"
	if got := b.Line("apps"); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if err := sink("b.yaml", make([]byte, maxBrief)); err != nil {
		t.Fatal(err)
	}
	if got := b.Line("apps"); !strings.HasPrefix(got, "armature check apps prints") {
		t.Error(got)
	}
}

// Pull secrets of the pod template serve a new ServiceAccount, and have to be there themselves.
func TestPullSecrets(t *testing.T) {
	got := of(strings.Replace(rendered, "      serviceAccountName: weather\n",
		"      serviceAccountName: weather\n      imagePullSecrets: [{name: pull}]\n", 1))
	if slices.Contains(got, "ServiceAccount team1 weather") ||
		!slices.Contains(got, "Secret team1 pull") {
		t.Errorf("%q", got)
	}
}

// What cannot be read is reported.
func TestUnreadable(t *testing.T) {
	all := Of([]render.File{{Path: "a.yaml",
		Data: []byte(strings.Replace(rendered, "restartPolicy: Always", "restartPolicy: {}", 1))}})
	if n := all[len(all)-1]; n.Kind != Readable || n.Status != Unknown || !n.Unread {
		t.Errorf("%+v", n)
	}
}
