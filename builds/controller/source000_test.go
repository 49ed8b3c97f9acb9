package controller_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/e2e/controlplane"
)

// printed reads a block of source 000, kept as it is printed there.
func (w *world) printed(name string) []byte {
	w.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "source-000", name))
	w.must(err)
	return data
}

// The custom step and the custom template of "Extension Points" make a build
// mode of their own, in the namespace that they are printed with.
func TestSource000ExtensionPoints(t *testing.T) {
	w := newWorld(t)
	w.options.Namespace = "kagenti-system"
	w.must(w.Client.Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kagenti-system"}}))
	for _, name := range []string{"custom-step.yaml", "custom-template.yaml"} {
		cm := &corev1.ConfigMap{}
		w.must(yaml.UnmarshalStrict(w.printed(name), cm))
		w.must(w.Client.Create(t.Context(), cm))
	}
	// The document names a second step, but does not print it.
	w.must(w.Client.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kagenti-system", Name: "compliance-check-task"},
		Data: map[string]string{
			"task-spec.yaml": "steps: [{name: check, image: busybox, command: [\"true\"]}]"},
	}))
	w.start()
	w.create("weather", func(b *api.AgentBuild) { b.Spec.Mode = "enterprise" })
	run := w.run(1)
	spec := run.Spec.PipelineSpec
	if len(spec.Tasks) != 2 || spec.Tasks[0].Name != "security-scan" ||
		spec.Tasks[1].Name != "compliance-check" {
		t.Fatalf("tasks: %+v", spec.Tasks)
	}
	scan := spec.Tasks[0]
	if got := scan.TaskSpec.Steps[0]; got.Image != "security-scanner:latest" ||
		got.Script != "scan-image $(params.image)\n" {
		t.Errorf("step: %+v", got)
	}
	want := tektonv1.Params{{Name: "image",
		Value: *tektonv1.NewStructuredValues("$(params.image)")}}
	if diff := cmp.Diff(want, scan.Params); diff != "" {
		t.Errorf("the step's parameters (-want +got):\n%s", diff)
	}
}

// The fragments of "Parameter Resolution" and "Secret Management" are in a build
// as printed.
func TestSource000Fragments(t *testing.T) {
	w := newWorld(t)
	w.own("pipeline-template-order", "template.yaml", `
steps:
  - name: show
    configMap: order-step
    defaultParameters: [{name: SOURCE_REVISION, value: main}]`)
	w.own("order-step", "task-spec.yaml", `
params: [{name: SOURCE_REPO_URL}, {name: SOURCE_REVISION}, {name: BUILD_CONTEXT, default: "."}]
steps: [{name: show, image: busybox, command: [echo, $(params.SOURCE_REPO_URL), $(params.SOURCE_REVISION), $(params.BUILD_CONTEXT)]}]`)
	r := w.serveGit("")
	w.start()

	var fragment struct {
		Parameters []api.Parameter `json:"parameters"`
	}
	w.must(yaml.UnmarshalStrict(w.printed("parameters.yaml"), &fragment))
	if got := *fragment.Parameters[0].Value; got != "github.com/myorg/myapp" {
		t.Fatalf("the document says %q", got)
	}
	// The printed repository is on the Internet; a real one is put in its place.
	fragment.Parameters[0].Value = &r.url
	w.create("parameters", func(b *api.AgentBuild) {
		b.Spec.Mode, b.Spec.Source = "order", api.SourceSpec{}
		b.Spec.Pipeline = &api.PipelineSpec{Parameters: fragment.Parameters}
	})
	run := w.run(1)
	values := map[string]string{}
	for _, p := range run.Spec.PipelineSpec.Tasks[0].Params {
		values[p.Name] = p.Value.StringVal
	}
	for _, p := range run.Spec.Params {
		values[p.Name] = p.Value.StringVal
	}
	commit := r.git("rev-parse", "main")
	want := map[string]string{"SOURCE_REPO_URL": r.url, "SOURCE_REVISION": "$(params.revision)",
		"revision": commit}
	if diff := cmp.Diff(want, values); diff != "" {
		t.Errorf("parameters, with BUILD_CONTEXT left to the step (-want +got):\n%s", diff)
	}

	var secrets struct {
		Source   *corev1.LocalObjectReference `json:"sourceCredentials"`
		Registry *corev1.LocalObjectReference `json:"imageRepoCredentials"`
	}
	w.must(yaml.UnmarshalStrict(w.printed("secrets.yaml"), &secrets))
	w.create("secrets", func(b *api.AgentBuild) {
		b.Spec.Source.SourceCredentials, b.Spec.BuildOutput.ImageRepoCredentials =
			secrets.Source, secrets.Registry
	})
	got := w.phase("secrets", api.PhaseFailed)
	for _, name := range []string{"github-token-secret", "ghcr-secret"} {
		if !strings.Contains(got.Status.Message, name) {
			t.Errorf("Secret %s is not named in %s", name, got.Status.Message)
		}
	}
}

// The roles of "Deployment Modes" apply as printed and grant what the modes
// promise: everywhere, or in one namespace.
func TestSource000RBACModes(t *testing.T) {
	plane := controlplane.Start(t)
	w := newWorldOn(t, plane)
	w.must(w.Client.Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team1x"}}))
	w.must(w.Client.Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "operators"}}))
	cluster, role := &rbacv1.ClusterRole{}, &rbacv1.Role{}
	w.must(yaml.UnmarshalStrict(w.printed("cluster-role.yaml"), cluster))
	w.must(yaml.UnmarshalStrict(w.printed("role.yaml"), role))
	if role.Namespace != w.namespace {
		w.must(w.Client.Create(t.Context(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: role.Namespace}}))
	}
	w.must(w.Client.Create(t.Context(), cluster))
	w.must(w.Client.Create(t.Context(), role))
	subject := func(name string) []rbacv1.Subject {
		_, err := plane.ServiceAccount(t.Context(), "operators", name)
		w.must(err)
		return []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "operators", Name: name}}
	}
	w.must(w.Client.Create(t.Context(),
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "wide"},
			Subjects: subject("wide"),
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole",
				Name: cluster.Name}}))
	w.must(w.Client.Create(t.Context(),
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "narrow",
			Namespace: role.Namespace}, Subjects: subject("narrow"),
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name}}))
	for _, test := range []struct {
		who, namespace string
		may            bool
	}{{"wide", role.Namespace, true}, {"wide", "team1x", true}, {"narrow", role.Namespace, true},
		{"narrow", "team1x", false}} {
		w.eventually(test.who+" in "+test.namespace, func() string {
			review := &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{
					User: "system:serviceaccount:operators:" + test.who,
					ResourceAttributes: &authorizationv1.ResourceAttributes{
						Namespace: test.namespace,
						Verb:      "patch", Group: api.DefaultGroup, Resource: "agentbuilds"},
				}}
			w.must(w.Client.Create(t.Context(), review))
			if review.Status.Allowed != test.may {
				return review.Status.Reason
			}
			return ""
		})
	}
}
