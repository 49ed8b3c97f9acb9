package preflight

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/render/needs"
)

var _ = controlplane.Only

// Each need is compared with a real API server before and after the cluster is furnished,
// and by somebody who may read nothing.
func TestCompare(t *testing.T) {
	plane := controlplane.Start(t)
	client, err := kubernetes.NewForConfig(plane.Admin.Config)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	compare := func(config *rest.Config) map[string]needs.Need {
		t.Helper()
		all := []needs.Need{
			{Kind: needs.Version, Name: "1.29"}, {Kind: needs.Version, Name: "99.0"},
			{Kind: needs.CSIDriver, Name: "csi.spiffe.io"},
			{Kind: needs.Issuer, Name: "https://keycloak.example.com/realms/agents"},
			{Kind: needs.Keycloak, Name: "http://keycloak.team1.svc:8080/realms/agents"},
			{Kind: needs.Keycloak, Name: "https://keycloak.example.com/realms/agents"},
			{Kind: needs.API, Name: "apps/v1 Deployment"},
			{Kind: needs.API, Name: "example.com/v1 Thing"},
			{Kind: needs.API, Name: "apps/v1 Thing"},
			{Kind: needs.PodSecurity, Namespace: "team1", Name: "privileged"},
			{Kind: needs.PodSecurity, Namespace: "team2", Name: "restricted",
				Packaged: &needs.Namespace{}},
			{Kind: needs.ServiceAccount, Namespace: "team1", Name: "weather"},
			{Kind: needs.Secret, Name: "llm"},
			{Kind: needs.Requests, Namespace: "team1", Name: "cpu 1",
				Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}},
			{Kind: needs.Tekton, Name: "tekton.dev/v1"},
			{Kind: needs.Controller, Name: "armature-controller"},
			{Kind: needs.AttestKey, Name: "armature-attest-key"},
			{Kind: needs.Readable, Name: "web", Status: needs.Unknown},
		}
		if err := Compare(ctx, config, "team1", all); err != nil {
			t.Fatal(err)
		}
		found := map[string]needs.Need{}
		for _, n := range all {
			found[string(n.Kind)+" "+n.Name] = n
		}
		return found
	}
	check := func(found map[string]needs.Need, want map[string]needs.Status) {
		t.Helper()
		for name, status := range want {
			if n := found[name]; n.Status != status ||
				status != needs.OK && n.Found == "" && n.Kind != needs.Readable {
				t.Errorf("%s: want %s, got %+v", name, status, n)
			}
		}
	}
	always := map[string]needs.Status{
		"KubernetesVersion 1.29": needs.OK, "KubernetesVersion 99.0": needs.Missing,
		"API apps/v1 Deployment": needs.OK, "API example.com/v1 Thing": needs.Missing,
		"API apps/v1 Thing": needs.Missing,
		"Issuer https://keycloak.example.com/realms/agents":   needs.Unknown,
		"Keycloak https://keycloak.example.com/realms/agents": needs.Unknown,
		"PodSecurity restricted":                              needs.OK,
		"Readable web":                                        needs.Unknown,
	}
	depends := []string{"CSIDriver csi.spiffe.io",
		"Keycloak http://keycloak.team1.svc:8080/realms/agents", "PodSecurity privileged",
		"Secret llm", "Controller armature-controller", "AttestKey armature-attest-key"}
	each := func(status needs.Status) map[string]needs.Status {
		want := map[string]needs.Status{}
		for _, name := range depends {
			want[name] = status
		}
		return want
	}

	found := compare(plane.Admin.Config)
	check(found, always)
	check(found, each(needs.Missing))
	check(found, map[string]needs.Status{"Tekton tekton.dev/v1": needs.Missing,
		"Requests cpu 1": needs.Unknown})
	if n := found["PodSecurity privileged"]; !strings.Contains(n.Remedy,
		"kubectl create namespace team1") {
		t.Errorf("%+v", n)
	}

	at := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: "team1"}
	}
	create := metav1.CreateOptions{}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team1",
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": "baseline"}}}
	if namespace, err = client.CoreV1().Namespaces().Create(ctx, namespace, create); err != nil {
		t.Fatal(err)
	}
	_, err1 := client.StorageV1().CSIDrivers().Create(ctx,
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "csi.spiffe.io"}}, create)
	_, err2 := client.CoreV1().Secrets("team1").Create(ctx, &corev1.Secret{ObjectMeta: at("llm")}, create)
	_, err3 := client.CoreV1().Services("team1").Create(ctx,
		&corev1.Service{ObjectMeta: at("keycloak"),
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 8080}}}}, create)
	_, err4 := client.CoreV1().ServiceAccounts("team1").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: at("default"),
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}}, create)
	for _, err := range []error{err1, err2, err3, err4} {
		if err != nil {
			t.Fatal(err)
		}
	}
	furnish(t, plane, client)
	found = compare(plane.Admin.Config)
	check(found, map[string]needs.Status{"PodSecurity privileged": needs.Missing,
		"ServiceAccount weather": needs.Missing, "Tekton tekton.dev/v1": needs.Missing,
		"Controller armature-controller": needs.Missing,
		"AttestKey armature-attest-key":  needs.Missing, "Requests cpu 1": needs.Missing})
	for name, remedy := range map[string]string{"Tekton tekton.dev/v1": "--pipeline-objects",
		"Controller armature-controller": "kubectl describe deployment",
		"AttestKey armature-attest-key":  "remove results-from",
		"Requests cpu 1":                 "raise ResourceQuota compute"} {
		if n := found[name]; !strings.Contains(n.Remedy, remedy) {
			t.Errorf("%+v", n)
		}
	}
	settle(t, client)

	namespace.Labels["pod-security.kubernetes.io/enforce"] = "privileged"
	if _, err := client.CoreV1().Namespaces().Update(ctx, namespace,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().ServiceAccounts("team1").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: at("weather"),
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}}, create); err != nil {
		t.Fatal(err)
	}
	found = compare(plane.Admin.Config)
	check(found, always)
	check(found, each(needs.OK))
	check(found, map[string]needs.Status{"ServiceAccount weather": needs.OK,
		"Tekton tekton.dev/v1": needs.OK, "Requests cpu 1": needs.Unknown})
	if n := found["Tekton tekton.dev/v1"]; n.Found != "it exists, version v1.15.1" {
		t.Errorf("%+v", n)
	}

	nobody, err := plane.User("nobody")
	if err != nil {
		t.Fatal(err)
	}
	found = compare(nobody.Config)
	check(found, each(needs.Unknown))
	for _, name := range depends {
		if n := found[name]; !n.Unread || !strings.Contains(n.Found, "forbidden") {
			t.Errorf("%+v", n)
		}
	}

	away := rest.CopyConfig(plane.Admin.Config)
	away.Host = "https://127.0.0.1:1"
	if err := Compare(ctx, away, "team1", nil); err == nil ||
		!strings.Contains(err.Error(), "connecting to the cluster") {
		t.Errorf("a cluster that does not answer: %v", err)
	}
}

// furnish installs Tekton with flags that builds cannot do with, a controller without a pod, and a
// quota that is too small.
func furnish(t *testing.T, plane *controlplane.ControlPlane, client kubernetes.Interface) {
	t.Helper()
	tekton, err := controlplane.ModuleDir("github.com/tektoncd/pipeline")
	if err != nil {
		t.Fatal(err)
	}
	if err := plane.InstallCRDs(filepath.Join(tekton, "config", "300-crds",
		"300-pipelinerun.yaml")); err != nil {
		t.Fatal(err)
	}
	ctx, create := t.Context(), metav1.CreateOptions{}
	var errs []error
	for _, name := range []string{"tekton-pipelines", "armature-system"} {
		_, err := client.CoreV1().Namespaces().Create(ctx,
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, create)
		errs = append(errs, err)
	}
	for name, data := range map[string]map[string]string{
		"pipelines-info": {"version": "v1.15.1"},
		"feature-flags": {"disable-inline-spec": "pipeline,pipelinerun",
			"results-from": "sidecar-logs"},
	} {
		_, err := client.CoreV1().ConfigMaps("tekton-pipelines").Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}, create)
		errs = append(errs, err)
	}
	labels := map[string]string{"app.kubernetes.io/name": "armature-controller"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "armature-controller",
		Labels: labels}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "controller", Image: "controller"}}}},
	}}
	_, err = client.AppsV1().Deployments("armature-system").Create(ctx, d, create)
	errs = append(errs, err)
	quota, err := client.CoreV1().ResourceQuotas("team1").Create(ctx,
		&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "compute"}}, create)
	errs = append(errs, err)
	quota.Status.Hard = corev1.ResourceList{"requests.cpu": resource.MustParse("500m")}
	_, err = client.CoreV1().ResourceQuotas("team1").UpdateStatus(ctx, quota, metav1.UpdateOptions{})
	if err := errors.Join(append(errs, err)...); err != nil {
		t.Fatal(err)
	}
}

// settle sets right what furnish installs.
func settle(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	ctx, update := t.Context(), metav1.UpdateOptions{}
	flags := client.CoreV1().ConfigMaps("tekton-pipelines").Delete(ctx, "feature-flags",
		metav1.DeleteOptions{})
	d, err := client.AppsV1().Deployments("armature-system").Get(ctx, "armature-controller",
		metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d.Spec.Template.Spec.Containers[0].Args = []string{"--attest-key=signer"}
	d, err1 := client.AppsV1().Deployments("armature-system").Update(ctx, d, update)
	d.Status.Replicas, d.Status.ReadyReplicas, d.Status.AvailableReplicas = 1, 1, 1
	_, err2 := client.AppsV1().Deployments("armature-system").UpdateStatus(ctx, d, update)
	_, err3 := client.CoreV1().Secrets("armature-system").Create(ctx,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "signer"}}, metav1.CreateOptions{})
	quota, err4 := client.CoreV1().ResourceQuotas("team1").Get(ctx, "compute", metav1.GetOptions{})
	quota.Status.Hard = corev1.ResourceList{"requests.cpu": resource.MustParse("2")}
	_, err5 := client.CoreV1().ResourceQuotas("team1").UpdateStatus(ctx, quota, update)
	if err := errors.Join(flags, err1, err2, err3, err4, err5); err != nil {
		t.Fatal(err)
	}
}
