package integrations

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/e2e/fakesidecars/authbridge"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/lint"
	"github.com/armature-dev/armature/render/source"
)

// authBridge returns the objects of examples/authbridge by kind, with a change of its
// configuration.
func authBridge(t *testing.T, old, new string) map[string]*unstructured.Unstructured {
	t.Helper()
	const folder = "../../examples/authbridge"
	text, err := os.ReadFile(folder + "/armature.yaml")
	if err != nil || !strings.Contains(string(text), old) {
		t.Fatalf("the configuration has no %q: %v", old, err)
	}
	config, findings := render.ReadConfig(bytes.Replace(text, []byte(old), []byte(new), 1),
		"armature.yaml")
	if len(findings) > 0 {
		t.Fatal(findings)
	}
	src, _, err := source.Tree(folder, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	var spool source.Spool
	findings, _, err = render.Stream(src,
		render.Options{ObjectsOnly: true, Workers: 1, Config: config}, spool.Write)
	if err != nil || finding.Failed(findings) {
		t.Fatal(err, findings)
	}
	linted, _, err := lint.Run(src, render.Options{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range linted {
		// which is what the API server is asked
		if f.Severity != finding.Info && f.Rule != "lint/pod-security" {
			t.Errorf("lint: %s", f)
		}
	}
	var stream bytes.Buffer
	if _, err := spool.WriteTo(&stream); err != nil {
		t.Fatal(err)
	}
	objects := make(map[string]*unstructured.Unstructured)
	for _, o := range decoded(t, stream.Bytes()) {
		if kind := o.GetKind(); kind != "ConfigMap" ||
			strings.HasPrefix(o.GetName(), "authbridge-config-") {
			objects[kind] = o
		}
	}
	return objects
}

// TestAuthBridgeRestricted: a real API server whose namespace enforces Pod Security
// restricted takes the pod of the example, and refuses it for proxy-init where traffic
// is intercepted. AuthBridge's stand-in reads the example's configuration.
func TestAuthBridgeRestricted(t *testing.T) {
	plane := controlplane.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c, err := client.New(plane.Admin.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	objects := authBridge(t, "enabled: false", "enabled: false")
	for _, kind := range []string{"Namespace", "ServiceAccount", "ConfigMap", "Deployment", "Service"} {
		if objects[kind] == nil {
			t.Fatalf("the example has no %s", kind)
		}
		if err := c.Create(ctx, objects[kind].DeepCopy()); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
	}
	create := func(deployment *unstructured.Unstructured) error {
		pod := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod",
			"spec": nested(t, deployment, "spec", "template", "spec")}}
		pod.SetName("weather-agent-1")
		pod.SetNamespace("weather")
		return c.Create(ctx, pod, client.DryRunAll)
	}
	if err := create(objects["Deployment"]); err != nil {
		t.Errorf("the pod is refused: %v", err)
	}
	err = create(authBridge(t, "enabled: false", "enabled: true")["Deployment"])
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `"proxy-init"`) ||
		strings.Contains(err.Error(), `"authbridge-proxy"`) {
		t.Errorf(
			"a pod with proxy-init: %v, want that Pod Security refuses it for proxy-init alone", err)
	}

	text, _, _ := unstructured.NestedString(objects["ConfigMap"].Object, "data", "config.yaml")
	pod := map[string]string{"POD_NAMESPACE": "weather", "POD_SERVICE_ACCOUNT": "weather-agent"}
	config, err := authbridge.Read([]byte(text),
		func(name string) (string, bool) { v, ok := pod[name]; return v, ok })
	if err != nil {
		t.Fatalf("AuthBridge refuses its configuration: %v\n%s", err, text)
	}
	if id := config.Exchange.Identity; id.ClientID !=
		"spiffe://example.com/ns/weather/sa/weather-agent" ||
		id.JWTAudience != "https://keycloak.example.com/realms/agents" {
		t.Errorf("the client is %+v", id)
	}
	for kind := range objects {
		if kind == "Secret" || kind == "AgentRuntime" || kind == "TokenExchange" {
			t.Errorf("the output has a %s", kind)
		}
	}
}
