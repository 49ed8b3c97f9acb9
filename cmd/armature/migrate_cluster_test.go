package main

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/e2e/programs"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render/migrate"
)

// leaving is a cluster of another platform: its webhook runs, its custom
// resources are there, and its controllers have made their objects.
type leaving struct {
	client.Client
	plane   *controlplane.ControlPlane
	program string // armature
	kubectl string
}

// platform starts a cluster with the old platform's definitions. Where kubectl
// has not been built it skips the test, or fails it where peers are required.
func platform(t *testing.T) *leaving {
	kubectl := programs.Peer(t, "kubectl")
	plane := controlplane.Start(t)
	if err := plane.InstallCRDs("testdata/migrate/crds.yaml"); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(plane.Admin.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return &leaving{c, plane, buildArmature(t).file, kubectl}
}

// command runs a program that has to succeed, and returns its standard output.
func (l *leaving) command(t *testing.T, stdin, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(environ, "KUBECONFIG="+l.plane.Admin.Kubeconfig)
	var errs bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(stdin), &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s\n%s", filepath.Base(program), strings.Join(args, " "), err,
			errs.String(), stdin)
	}
	return string(out)
}

func (l *leaving) armature(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	return l.command(t, stdin, l.program, args...)
}

// applies are the ways in which people apply manifests.
var applies = map[string][]string{
	"client-side": {"apply", "-f", "-"},
	"server-side": {"apply", "--server-side", "--force-conflicts", "-f", "-"},
}

func (l *leaving) apply(t *testing.T, how []string, namespace, manifests string) {
	t.Helper()
	l.command(t, manifests, l.kubectl, slices.Concat(how, []string{"-n", namespace})...)
}

// populate makes a namespace whose objects came about as they do: authors apply
// theirs, while the webhooks run, and controllers create the generated objects.
func (l *leaving) populate(t *testing.T, how []string, namespace string) {
	t.Helper()
	if err := l.Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		t.Fatal(err)
	}
	if err := l.Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default",
			Namespace: namespace}}); err != nil {
		t.Fatal(err)
	}
	stop := l.webhook(t)
	l.apply(t, how, namespace, read(t, "testdata/migrate/authored.yaml"))
	stop()
	l.control(t, namespace, read(t, "testdata/migrate/controlled.yaml"))
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// control creates the objects of controllers, each with the identity of its owner.
func (l *leaving) control(t *testing.T, namespace, manifests string) {
	t.Helper()
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
			t.Fatal(err)
		}
		owners := o.GetOwnerReferences()
		for i, ref := range owners {
			owner := &unstructured.Unstructured{}
			owner.SetAPIVersion(ref.APIVersion)
			owner.SetKind(ref.Kind)
			if err := l.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: ref.Name},
				owner); err != nil {
				t.Fatal(err)
			}
			owners[i].UID = owner.GetUID()
		}
		o.SetOwnerReferences(owners)
		o.SetNamespace(namespace)
		if err := l.Create(t.Context(), o, client.FieldOwner("manager")); err != nil {
			t.Fatal(err)
		}
	}
}

// injection is what the platform's webhook does to a Deployment, and
// computation what the webhook of OvercommitClasses does to a Pod, as JSON patches.
const (
	injection = `[
{"op":"add","path":"/spec/template/spec/initContainers","value":[{"name":"proxy-init","image":"ghcr.io/kagenti/kagenti-extensions/proxy-init:latest"}]},
{"op":"add","path":"/spec/template/spec/containers/-","value":{"name":"spiffe-helper","image":"ghcr.io/spiffe/spiffe-helper:nightly","volumeMounts":[{"name":"svid-output","mountPath":"/opt"}]}},
{"op":"add","path":"/spec/template/spec/containers/-","value":{"name":"envoy-proxy","image":"ghcr.io/kagenti/kagenti-extensions/envoy-with-processor:latest"}},
{"op":"add","path":"/spec/template/spec/volumes","value":[{"name":"svid-output","emptyDir":{}}]}]`
	computation = `[
{"op":"add","path":"/metadata/annotations/overcommit.inditex.dev~1applied","value":"steady"},
{"op":"add","path":"/spec/containers/0/resources/requests","value":{"cpu":"500m","memory":"1Gi"}}]`
)

// webhook lets the API server ask the old platforms, until stop.
func (l *leaving) webhook(t *testing.T) (stop func()) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		patch := injection
		if review.Request.Kind.Kind == "Pod" {
			patch = computation
			if !bytes.Contains(review.Request.Object.Raw, []byte(`"annotations":`)) {
				patch = `[{"op":"add","path":"/metadata/annotations","value":{}},` + patch[1:]
			}
		}
		kind := admissionv1.PatchTypeJSONPatch
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true,
			Patch: []byte(patch), PatchType: &kind}
		_ = json.NewEncoder(w).Encode(review)
	}))
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: server.Certificate().Raw})
	none, fail := admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Fail
	configuration := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "platform"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "inject.platform.example", SideEffects: &none, FailurePolicy: &fail,
			AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &server.URL,
				CABundle: certificate},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule: admissionregistrationv1.Rule{APIGroups: []string{"", "apps"},
					APIVersions: []string{"v1"}, Resources: []string{"pods", "deployments"}},
			}},
		}},
	}
	if err := l.Create(t.Context(), configuration); err != nil {
		t.Fatal(err)
	}
	l.settle(t, true)
	return func() {
		if err := l.Delete(t.Context(), configuration); err != nil {
			t.Fatal(err)
		}
		l.settle(t, false)
		server.Close()
	}
}

// settle waits until the API server asks the webhook, or does so no more.
func (l *leaving) settle(t *testing.T, asks bool) {
	t.Helper()
	for t.Context().Err() == nil {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "probe", Namespace: "default"},
			Spec: corev1.PodSpec{
				Containers:         []corev1.Container{{Name: "a", Image: "a"}},
				ServiceAccountName: "default",
			}}
		if err := l.Create(t.Context(), pod, client.DryRunAll); err != nil {
			t.Fatal(err)
		}
		if (pod.Annotations != nil) == asks {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// running is what restarts a workload when it changes: the template of its pods,
// or a Pod's containers and identity.
func (l *leaving) running(t *testing.T, namespace string, workload finding.Ref) map[string]any {
	t.Helper()
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(workload.APIVersion)
	o.SetKind(workload.Kind)
	if err := l.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: workload.Name},
		o); err != nil {
		t.Fatal(err)
	}
	if workload.Kind == "Pod" {
		return map[string]any{"uid": o.GetUID(), "spec": o.Object["spec"]}
	}
	template, _, err := unstructured.NestedMap(o.Object, "spec", "template")
	if err != nil {
		t.Fatal(err)
	}
	return template
}

// TestMigrateFromCluster reads a namespace of another platform, whose webhooks
// have gone, and applies what is migrated, and then what is rendered of it. The
// workloads that roll are those that the report names.
func TestMigrateFromCluster(t *testing.T) {
	l := platform(t)
	want := map[string]bool{"Deployment weather": false, "Deployment byo": true,
		"Deployment injected": true, "Pod batch": false}
	for name, how := range applies {
		t.Run(name, func(t *testing.T) {
			namespace := "team-" + name
			l.populate(t, how, namespace)

			var reports []migrate.Report
			if err := json.Unmarshal([]byte(l.armature(t, "", "migrate", "--from-cluster",
				"--report", "json", "-n", namespace)), &reports); err != nil {
				t.Fatal(err)
			}
			rolls, before := make(map[string]bool), make(map[finding.Ref]map[string]any)
			for _, r := range reports {
				for _, roll := range r.Rolls {
					rolls[roll.Workload.Kind+" "+roll.Workload.Name] = roll.Rolls
					before[roll.Workload] = l.running(t, namespace, roll.Workload)
				}
			}
			if diff := cmp.Diff(want, rolls); diff != "" {
				t.Fatalf("the report's rolls (-want +got):\n%s", diff)
			}

			folder := t.TempDir()
			migrated := l.armature(t, "", "migrate", "--from-cluster", "--write", "-n", namespace)
			for file, text := range map[string]string{"migrated.yaml": migrated,
				"classes.yaml": classes, "armature.yaml": config} {
				if err := os.WriteFile(filepath.Join(folder, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, unwanted := range []string{"ownerReferences", "managedFields",
				"the value of a secret", "spiffe-helper", "kind: Secret"} {
				if strings.Contains(migrated, unwanted) {
					t.Errorf("%s is in what was migrated:\n%s", unwanted, migrated)
				}
			}
			l.apply(t, how, namespace, withoutPlatform(migrated))
			rendered := withoutPlatform(l.armature(t, "", "render", "-q", folder))
			if out := l.refused(t, rendered,
				append(slices.Clone(how), "-n", namespace)...); !strings.Contains(out,
				`initContainers[1].name: Duplicate value: "spiffe-helper"`) {
				t.Errorf("applying over what a webhook injected is as docs/migration.md says "+
					"no more: %s", out)
			}
			l.command(t, only(rendered, "name: injected"), l.kubectl, "replace", "-n", namespace,
				"-f", "-")
			l.apply(t, how, namespace, rendered)
			for workload, was := range before {
				is := l.running(t, namespace, workload)
				name := workload.Kind + " " + workload.Name
				if diff := cmp.Diff(was, is); (diff != "") != rolls[name] {
					t.Errorf(
						"%s: the report says that it rolls: %v; what changed (-before +after):\n%s",
						name, rolls[name], diff)
				}
			}
		})
	}
}

// config renders what the platform's webhook injected.
const config = "apiVersion: armature.dev/v1alpha1\nkind: RenderConfig\n" +
	"metadata: {name: migrated}\nspec: {profile: kagenti}\n"

// classes is what the OvercommitClasses of the cluster are in Git.
const classes = `apiVersion: overcommit.inditex.dev/v1alpha1
kind: Overcommit
metadata: {name: cluster}
spec: {overcommitLabel: inditex.com/overcommit-class}
---
apiVersion: overcommit.inditex.dev/v1alpha1
kind: OvercommitClass
metadata: {name: steady}
spec: {cpuOvercommit: 0.5, memoryOvercommit: 1, isDefault: false, excludedNamespaces: ""}
`

// refused runs kubectl, which has to fail, and returns its output.
func (l *leaving) refused(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), l.kubectl, args...)
	cmd.Env = append(environ, "KUBECONFIG="+l.plane.Admin.Kubeconfig)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("kubectl %s succeeded", strings.Join(args, " "))
	}
	return string(out)
}

// only returns the Deployment that contains a line.
func only(manifests, line string) string {
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		if strings.Contains(document, "kind: Deployment\n") &&
			strings.Contains(document, line+"\n") {
			return document
		}
	}
	return ""
}

// workloads leaves out what needs definitions that this cluster does not have.
func withoutPlatform(manifests string) string {
	var kept []string
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		if !strings.Contains(document, "kind: AgentCard") {
			kept = append(kept, document)
		}
	}
	return strings.Join(kept, "\n---\n")
}
