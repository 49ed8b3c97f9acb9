package stories

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestAuthBridgeObserved plays agents that were left open, cut off or never ready, with
// a proxy that behaves as the real AuthBridge was observed to. What cannot run is refused
// by the render, and is shown to fail where it is put into the cluster all the same.
func TestAuthBridgeObserved(t *testing.T) {
	t.Parallel()
	s := newStory(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	if len(s.info.SPIREServer) == 0 {
		t.Skip("it needs SPIRE in the cluster, and E2E_INFO names no command for its server")
	}
	entry := s.spire(t, "entry", "create", "-parentID", s.info.SPIREAgent, "-spiffeID",
		s.spiffeID(observedAccount), "-selector", "k8s:ns:"+s.namespace, "-selector",
		"k8s:sa:"+observedAccount)
	_, rest, _ := strings.Cut(string(entry), "Entry ID")
	id := strings.Fields(rest)[1]
	t.Cleanup(func() { s.spire(t, "entry", "delete", "-entryID", id) })
	must(t, s.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "spire-bundle"},
		Data: map[string]string{
			"bundle.json": string(s.spire(t, "bundle", "show", "-format", "spiffe"))},
	}))
	s.peers(t, "peers.yaml", "")
	s.running(t, "peers")
	// whose ServiceAccount the others use too
	s.applyObjects(t, s.rendered(t, s.observed(t, observedAccount)))
	s.running(t, observedAccount)

	t.Run("default target", func(t *testing.T) { s.defaultTarget(t) })
	t.Run("bypassed", func(t *testing.T) { s.bypassed(t) })
	t.Run("fixed port", func(t *testing.T) { s.fixedPort(t) })
	t.Run("reload", func(t *testing.T) { s.reload(t) })
	t.Run("grpc", func(t *testing.T) { s.grpcProbe(t) })
	t.Run("strict", func(t *testing.T) { s.strict(t) })
	t.Run("helper", func(t *testing.T) { s.helperProbe(t) })
}

// observedAccount is the ServiceAccount of all agents here, which Keycloak knows.
const observedAccount = "proxy-sidecar"

// Parts of testdata/authbridge/agent.yaml that agents have differently.
const (
	agentPorts  = "ports: [{containerPort: 8000, name: http}]\n"
	agentProbe  = "        readinessProbe: {httpGet: {path: /healthz, port: http}}\n"
	agentLabels = "  labels: {kagenti.io/inject: enabled}\n"
	targetPort  = "targetPort: http"
)

// observed is a folder with testdata/authbridge, with name instead of agent, after pairs
// of replacements in agent.yaml.
func (s *story) observed(t *testing.T, name string, changes ...string) (folder string) {
	t.Helper()
	folder = s.copied(t, "authbridge", "agent.yaml", "armature.yaml")
	for i := 0; i < len(changes); i += 2 {
		rewrite(t, folder, "agent.yaml", changes[i], changes[i+1])
	}
	rewrite(t, folder, "agent.yaml", "serviceAccountName: agent\n",
		"serviceAccountName: "+observedAccount+"\n")
	for _, old := range []string{"name: agent}", "app: agent}", "  name: agent\n  labels"} {
		rewrite(t, folder, "agent.yaml", old, strings.Replace(old, "agent", name, 1))
	}
	return folder
}

// saysOf runs armature, which may end with findings, and expects a text in what it prints.
func saysOf(t *testing.T, want string, args ...string) {
	t.Helper()
	out, _ := exec.CommandContext(t.Context(), "armature", args...).CombinedOutput()
	if !strings.Contains(string(out), want) {
		t.Errorf("armature %s prints\n%s\nwant %q", strings.Join(args, " "), out, want)
	}
}

// deployed is the Deployment of rendered objects.
func deployed(t *testing.T, objects []*unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	for _, o := range objects {
		if o.GetKind() == "Deployment" {
			return o
		}
	}
	t.Fatal("no Deployment was rendered")
	return nil
}

// changeAgent changes the container agent of a Deployment.
func changeAgent(t *testing.T, deployment *unstructured.Unstructured,
	change func(container map[string]any)) {
	t.Helper()
	path := []string{"spec", "template", "spec", "containers"}
	containers, _, err := unstructured.NestedSlice(deployment.Object, path...)
	must(t, err)
	change(containers[0].(map[string]any))
	must(t, unstructured.SetNestedSlice(deployment.Object, containers, path...))
}

// defaultTarget: HTTPS to other hosts works behind a default target, and tokens are
// exchanged as the rules say. A proxy that refuses what has no token cuts HTTPS off.
func (s *story) defaultTarget(t *testing.T) {
	target := []string{"      destinationRules:\n",
		"      defaultTarget: {audience: downstream}\n      destinationRules:\n", agentLabels,
		"  labels: {kagenti.io/inject: enabled}\n" +
			"  annotations: {kagenti.io/inbound-bypass-paths: /https}\n"}
	s.applyObjects(t, s.rendered(t, s.observed(t, "target", target...)))
	denied := s.rendered(t, s.observed(t, "denied", target...))
	for _, o := range denied {
		if text, found, _ := unstructured.NestedString(o.Object, "data", "config.yaml"); found {
			changed := strings.Replace(text, "no_token_policy: allow", "no_token_policy: deny", 1)
			if changed == text {
				t.Errorf("the default target denies what has no token:\n%s", text)
			}
			must(t, unstructured.SetNestedField(o.Object, changed, "data", "config.yaml"))
		}
	}
	s.applyObjects(t, denied)
	s.running(t, "target")
	s.running(t, "denied")
	s.eventuallyAnswers(t, "target", "/https", "HTTPS: ")
	s.eventuallyAnswers(t, "denied", "/https", "no HTTPS: ")
	if got, err := s.through(t, "target", "/ask"); !refused(err) {
		t.Errorf("a request without a token gets %q, %v; want status 401", got, err)
	}
}

// eventuallyAnswers waits until a Service answers with a text that begins so: it may
// take a moment to lead to its pods.
func (s *story) eventuallyAnswers(t *testing.T, service, path, want string) {
	t.Helper()
	eventually(t, 5*time.Minute, fmt.Sprintf("%s answers %s with %q", service, path, want),
		func(context.Context) error {
			got, err := s.through(t, service, path)
			if err == nil && !strings.HasPrefix(got, want) {
				err = fmt.Errorf("it answers %q", got)
			}
			return err
		})
}

// bypassed: with the annotation inbound-port the agent keeps its port. A Service that
// still leads there needs no token, which lint finds.
func (s *story) bypassed(t *testing.T) {
	annotation := "  labels: {kagenti.io/inject: enabled}\n" +
		"  annotations: {kagenti.io/inbound-port: \"8001\"}\n"
	folder := s.observed(t, "bypassed", agentLabels, annotation, targetPort, "targetPort: 8000",
		agentProbe, "")
	s.applyObjects(t, s.rendered(t, folder))
	s.running(t, "bypassed")
	s.eventuallyAnswers(t, "bypassed", "/admin", "the agent listens on 8000")
	saysOf(t, "leads to port 8000", "lint", folder)

	folder = s.observed(t, "guarded", agentLabels, annotation, targetPort, "targetPort: 8001",
		agentProbe, "")
	s.applyObjects(t, s.rendered(t, folder))
	s.running(t, "guarded")
	eventually(t, 5*time.Minute, "the proxy asks for a token", func(context.Context) error {
		if got, err := s.through(t, "guarded", "/admin"); !refused(err) {
			return fmt.Errorf("it answers %q, %v", got, err)
		}
		return nil
	})
}

// fixedPort: an agent whose port another variable than PORT fixes cannot listen beside
// the reverse proxy, and lint says so.
func (s *story) fixedPort(t *testing.T) {
	saysOf(t, "APP_PORT", "lint", s.observed(t, "fixed", agentPorts,
		agentPorts+"        env: [{name: APP_PORT, value: \"8000\"}]\n"))
	objects := s.rendered(t, s.observed(t, "fixed"))
	changeAgent(t, deployed(t, objects), func(agent map[string]any) {
		env, _ := agent["env"].([]any)
		agent["env"] = append(env, map[string]any{"name": "APP_PORT", "value": "8000"})
	})
	s.applyObjects(t, objects)
	eventually(t, 5*time.Minute, "the agent cannot listen", func(ctx context.Context) error {
		text, err := s.log(ctx, s.podOf(t, ctx, "fixed"), "agent")
		if err == nil && !strings.Contains(text, "address already in use") {
			err = fmt.Errorf("it says %q", text)
		}
		return err
	})
}

// podOf is the name of the newest pod with that label, "" for none yet.
func (s *story) podOf(t *testing.T, ctx context.Context, app string) string {
	t.Helper()
	var pods corev1.PodList
	if err := s.List(ctx, &pods, client.InNamespace(s.namespace),
		client.MatchingLabels{"app": app}); err != nil || len(pods.Items) == 0 {
		return ""
	}
	newest := pods.Items[0]
	for _, pod := range pods.Items[1:] {
		if newest.CreationTimestamp.Before(&pod.CreationTimestamp) {
			newest = pod
		}
	}
	return newest.Name
}

// reload: a change of the pipeline reaches the running proxy, and diff says so. One that
// touches the listener reaches nothing until a restart, which diff says too.
func (s *story) reload(t *testing.T) {
	folder := s.observed(t, "reload")
	rewrite(t, folder, "armature.yaml", "profile: authbridge\n",
		"profile: authbridge\n  trace: {enabled: true}\n")
	git(t, folder, "init", "--quiet", "--initial-branch=main")
	commit := func() {
		git(t, folder, "add", "--all", ".")
		git(t, folder, "-c", "user.name=story", "-c", "user.email=story@example.com", "commit",
			"--quiet", "--message=A change")
	}
	configMap := func() {
		for _, o := range s.rendered(t, folder) {
			if _, found, _ := unstructured.NestedString(o.Object, "data", "config.yaml"); found {
				s.applyObjects(t, []*unstructured.Unstructured{o})
			}
		}
	}
	diff := func(want string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "armature", "diff", ".", "--against", "HEAD")
		cmd.Dir = folder
		if out, _ := cmd.CombinedOutput(); !strings.Contains(string(out), want) {
			t.Errorf("armature diff prints\n%s\nwant %q", out, want)
		}
	}
	commit()
	s.applyObjects(t, s.rendered(t, folder))
	pod := s.running(t, "reload").Name

	const issuer = "inbound: {validation: {issuer: \"https://keycloak.example.com/realms/agents\""
	rewrite(t, folder, "armature.yaml", issuer, issuer+", bypassPaths: [/healthz, /first]")
	diff("reloads ConfigMap authbridge-config-reload: config.yaml")
	configMap()
	s.eventuallyAnswers(t, "reload", "/first", "the agent listens on 8001")

	commit()
	rewrite(t, folder, "armature.yaml", "/first]", "/first, /second]")
	rewrite(t, folder, "armature.yaml", "trace: {enabled: true}",
		"trace: {exporters: [{type: otlp, endpoint: \"traces:4317\"}]}")
	diff("needs a restart for ConfigMap authbridge-config-reload: config.yaml")
	configMap()
	eventually(t, 5*time.Minute, "the proxy refuses the file", func(ctx context.Context) error {
		text, err := s.logs.CoreV1().Pods(s.namespace).ProxyGet("http", pod, "9091",
			"/reload/status", nil).DoRaw(ctx)
		if err == nil &&
			!strings.Contains(string(text), "unreloadable field changed, pod restart required") {
			err = fmt.Errorf("its status is %s", text)
		}
		return err
	})
	if got, err := s.through(t, "reload", "/second"); !refused(err) {
		t.Errorf("a path of the refused file answers %q, %v; want status 401", got, err)
	}
	must(t,
		s.Delete(t.Context(),
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: pod}}))
	s.eventuallyAnswers(t, "reload", "/second", "the agent listens on 8001")
}

// grpcProbe: the reverse proxy speaks HTTP/1.1 alone, so that a gRPC probe of its port
// never succeeds.
func (s *story) grpcProbe(t *testing.T) {
	const probe = "        readinessProbe: {grpc: {port: 8000}}\n"
	saysOf(t, "envoy-sidecar", "render", s.observed(t, "grpc", agentProbe, probe))
	objects := s.rendered(t, s.observed(t, "grpc"))
	changeAgent(t, deployed(t, objects), func(agent map[string]any) {
		agent["readinessProbe"] = map[string]any{"grpc": map[string]any{"port": int64(8000)}}
	})
	s.applyObjects(t, objects)
	s.unhealthy(t, "grpc")
}

// strict: the kubelet has no SVID, so that mtls: strict fails its HTTP probes and every
// other plain request.
func (s *story) strict(t *testing.T) {
	strict := func(folder string) string {
		rewrite(t, folder, "armature.yaml", "profile: authbridge\n",
			"profile: authbridge\n  authbridge: {mtls: strict}\n")
		return folder
	}
	saysOf(t, "set authbridge.mtls to permissive", "render", strict(s.observed(t, "strict")))
	objects := s.rendered(t, strict(s.observed(t, "strict", agentProbe, "")))
	changeAgent(t, deployed(t, objects), func(agent map[string]any) {
		agent["readinessProbe"] = map[string]any{"httpGet": map[string]any{"path": "/healthz",
			"port": int64(8000)}}
	})
	s.applyObjects(t, objects)
	s.unhealthy(t, "strict")
}

// unhealthy waits until the readiness probe of an agent that runs has failed, and the pod
// is not ready.
func (s *story) unhealthy(t *testing.T, app string) {
	t.Helper()
	eventually(t, 5*time.Minute, app+" is not ready", func(ctx context.Context) error {
		name := s.podOf(t, ctx, app)
		var pod corev1.Pod
		if err := s.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, &pod); err != nil {
			return err
		}
		if ready(pod) {
			t.Fatalf("%s is ready", app)
		}
		if statuses := pod.Status.ContainerStatuses; len(statuses) == 0 ||
			statuses[0].State.Running == nil {
			return fmt.Errorf("the agent does not run: %+v", statuses)
		}
		var events corev1.EventList
		if err := s.List(ctx, &events, client.InNamespace(s.namespace)); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.InvolvedObject.Name == name && e.Reason == "Unhealthy" &&
				e.InvolvedObject.FieldPath == "spec.containers{agent}" {
				return nil
			}
		}
		return fmt.Errorf("no probe has failed among %d events", len(events.Items))
	})
}

// helperProbe: the probe of another container's port opens nothing on the agent.
func (s *story) helperProbe(t *testing.T) {
	helper := `      - name: helper
        image: ` + s.info.Images["sidecar-authbridge-proxy"] + `
        command: [/sidecar, agent]
        env: [{name: PORT, value: "9000"}]
        ports: [{containerPort: 9000, name: admin}]
        readinessProbe: {httpGet: {path: /admin, port: admin}}
        resources: {requests: {cpu: 10m, memory: 16Mi}}
        securityContext:
          allowPrivilegeEscalation: false
          capabilities: {drop: [ALL]}
---
apiVersion: v1
kind: Service
`
	folder := s.observed(t, "helped", "---\napiVersion: v1\nkind: Service\n", helper)
	s.applyObjects(t, s.rendered(t, folder))
	s.running(t, "helped")
	s.eventuallyAnswers(t, "helped", "/healthz", "the agent listens on 8001")
	if got, err := s.through(t, "helped", "/admin"); !refused(err) {
		t.Errorf("the agent's /admin answers %q, %v without a token; want status 401", got, err)
	}
}
