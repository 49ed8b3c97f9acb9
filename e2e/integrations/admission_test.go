package integrations

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/source"
	"github.com/armature-dev/armature/templates"
)

// decoded decodes a YAML stream.
func decoded(t *testing.T, stream []byte) (objects []*unstructured.Unstructured) {
	t.Helper()
	for document := range bytes.SplitSeq(stream, []byte("\n---\n")) {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &o.Object); err != nil {
			t.Fatal(err)
		}
		if o.GetKind() != "" {
			objects = append(objects, o)
		}
	}
	return objects
}

// rendered returns the objects that a render makes of an example.
func rendered(t *testing.T, example string) []*unstructured.Unstructured {
	t.Helper()
	src, _, err := source.Tree("../../examples/"+example, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	var spool source.Spool
	findings, _, err := render.Stream(src, render.Options{ObjectsOnly: true, Workers: 1}, spool.Write)
	if err != nil || finding.Failed(findings) {
		t.Fatal(err, findings)
	}
	var stream bytes.Buffer
	if _, err := spool.WriteTo(&stream); err != nil {
		t.Fatal(err)
	}
	return decoded(t, stream.Bytes())
}

// owned returns an object as a controller makes it for its owner: without annotations.
func owned(t *testing.T, owner *unstructured.Unstructured, apiVersion, kind string,
	spec map[string]any) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind,
		"spec": spec}}
	o.SetName(owner.GetName() + "-5d8f9")
	o.SetNamespace(owner.GetNamespace())
	o.SetUID(owner.GetUID())
	o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: owner.GetAPIVersion(),
		Kind: owner.GetKind(), Name: owner.GetName(), UID: owner.GetUID(), Controller: new(true)}})
	return o.DeepCopy()
}

// nested returns a mapping inside of an object.
func nested(t *testing.T, o *unstructured.Unstructured, path ...string) map[string]any {
	t.Helper()
	m, found, err := unstructured.NestedMap(o.Object, path...)
	if err != nil || !found {
		t.Fatal(path, err)
	}
	return m
}

// TestAdmission applies what the examples become to a real API server that
// refuses workloads which opted in and were not rendered.
func TestAdmission(t *testing.T) {
	plane := controlplane.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c, err := client.New(plane.Admin.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	policy, err := templates.Wiring.ReadFile("wiring/admission/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range decoded(t, policy) {
		if err := c.Create(ctx, o); err != nil {
			t.Fatalf("%s: %v", o.GetKind(), err)
		}
	}
	namespace := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1",
		"kind": "Namespace", "metadata": map[string]any{"name": "agents"}}}
	if err := c.Create(ctx, namespace); err != nil {
		t.Fatal(err)
	}
	apply := func(o *unstructured.Unstructured) error {
		if o.GetNamespace() == "" && o.GetKind() != "Namespace" {
			o.SetNamespace("agents")
		}
		return c.Create(ctx, o, client.FieldOwner("test"), client.DryRunAll)
	}

	// The policy takes a moment to be enforced.
	source, err := os.ReadFile("../../examples/weather-agent/deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for {
		err := apply(decoded(t, source)[0])
		if apierrors.IsInvalid(err) && strings.Contains(err.Error(), "was not rendered") {
			break
		}
		if err != nil || ctx.Err() != nil {
			t.Fatalf("a workload that was not rendered: %v", err)
		}
		time.Sleep(200 * time.Millisecond)
	}
	cron, err := os.ReadFile("../../examples/nightly-cronjob/cronjob.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range decoded(t, cron) {
		if err := apply(o); o.GetKind() == "CronJob" && !apierrors.IsInvalid(err) {
			t.Errorf("a CronJob that was not rendered: %v", err)
		}
	}

	for _, example := range []string{"weather-agent", "weather-agent-prod", "memory-agent",
		"report-job", "nightly-cronjob", "agent", "kagent"} {
		for _, o := range rendered(t, example) {
			if err := apply(o); err != nil {
				t.Errorf("%s: %s %s, which was rendered: %v", example, o.GetKind(), o.GetName(), err)
			}
		}
	}

	// Pods and ReplicaSets are refused like the rest where nobody owns them. What
	// controllers make of a rendered workload is not.
	deployment := rendered(t, "weather-agent")
	i := slices.IndexFunc(deployment, func(o *unstructured.Unstructured) bool {
		return o.GetKind() == "Deployment"
	})
	owner := deployment[i]
	owner.SetUID("1f0e3b7a-6a0c-4a3e-9a53-0a1b2c3d4e5f")
	owner.SetNamespace("agents")
	replicaSet := owned(t, owner, "apps/v1", "ReplicaSet",
		map[string]any{"selector": nested(t, owner, "spec", "selector"),
			"template": nested(t, owner, "spec", "template")})
	pod := owned(t, replicaSet, "v1", "Pod", nested(t, owner, "spec", "template", "spec"))
	replicaSet.SetLabels(owner.GetLabels())
	pod.SetLabels(owner.GetLabels())
	// Nothing in this control plane makes ServiceAccounts.
	account := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1",
		"kind": "ServiceAccount", "metadata": map[string]any{
			"name": nested(t, pod, "spec")["serviceAccountName"], "namespace": "agents"}}}
	if account.GetName() == "" {
		account.SetName("default")
	}
	if err := c.Create(ctx, account); err != nil {
		t.Fatal(err)
	}
	for _, o := range []*unstructured.Unstructured{replicaSet, pod} {
		if err := apply(o.DeepCopy()); err != nil {
			t.Errorf("a %s that its controller makes: %v", o.GetKind(), err)
		}
		bare := o.DeepCopy()
		bare.SetOwnerReferences(nil)
		if err := apply(bare); !apierrors.IsInvalid(err) ||
			!strings.Contains(err.Error(), "was not rendered") {
			t.Errorf("a %s that was not rendered: %v", o.GetKind(), err)
		}
		bare.SetAnnotations(
			map[string]string{
				"armature.dev/injected": owner.GetAnnotations()["armature.dev/injected"]})
		if err := apply(bare); err != nil {
			t.Errorf("a %s that was rendered: %v", o.GetKind(), err)
		}
		if err := c.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
		o.SetOwnerReferences(nil)
		if err := c.Update(ctx, o); err != nil {
			t.Errorf("a %s that is let go: %v", o.GetKind(), err)
		}
	}

	// The published label of Namespaces counts here as it does when rendering.
	namespace = &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1",
		"kind": "Namespace", "metadata": map[string]any{
			"name": "published", "labels": map[string]any{"kagenti-enabled": "false"}}}}
	if err := c.Create(ctx, namespace); err != nil {
		t.Fatal(err)
	}
	outside := decoded(t, source)[0]
	outside.SetNamespace("published")
	if err := apply(outside); err != nil {
		t.Errorf("a workload of a Namespace that opts out: %v", err)
	}

	quiet := rendered(t, "opted-out")
	for _, o := range quiet {
		if o.GetKind() == "Namespace" { // has to be there for the rest
			if err := c.Create(ctx, o); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, o := range quiet {
		if o.GetKind() != "Namespace" {
			if err := apply(o); err != nil {
				t.Errorf("opted-out: %s %s: %v", o.GetKind(), o.GetName(), err)
			}
		}
	}
}
