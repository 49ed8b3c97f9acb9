package controller_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/api/keys"
)

// A template or a step in a namespace that the controller may not read is
// reported with its place. The one of the same name further on is not used.
// Once it may be read, the build goes on.
func TestForbiddenTemplate(t *testing.T) {
	w := newWorld(t)
	platform := w.namespace + "-platform"
	w.must(w.Client.Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: platform}}))
	const text = "steps: [{name: say, image: %s, command: [echo]}]"
	for namespace, image := range map[string]string{platform: "right", w.namespace: "wrong"} {
		for name, data := range map[string]map[string]string{
			"pipeline-template-own": {
				"template.yaml": "steps: [{name: only, configMap: own-step}]"},
			"own-step": {"task-spec.yaml": fmt.Sprintf(text, image)},
		} {
			w.must(w.Client.Create(t.Context(),
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
					Labels: map[string]string{keys.SharePrefix + w.namespace: "true"}}, Data: data}))
		}
	}
	user := "controller-" + w.namespace
	bind := func(namespace, role string, ref rbacv1.RoleRef) {
		w.must(w.Client.Create(t.Context(),
			&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
				Name: user + "-" + role}, RoleRef: ref,
				Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName,
					Name: user}}}))
	}
	for _, namespace := range []string{systemNamespace, w.namespace,
		w.options.Settings.BuildNamespace} {
		bind(namespace, "all", rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole",
			Name: "cluster-admin"})
	}
	access, err := shared.Get(t).User(user)
	w.must(err)
	w.config = access.Config
	own, err := client.New(access.Config, client.Options{})
	w.must(err)
	w.start()

	b := w.create("weather", func(b *api.AgentBuild) {
		b.Spec.Mode, b.Spec.Pipeline =
			"own", &api.PipelineSpec{Namespace: platform}
	})
	grant := func(name string) {
		w.must(w.Client.Create(t.Context(),
			&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: platform, Name: name},
				Rules: []rbacv1.PolicyRule{{APIGroups: []string{""},
					Resources: []string{"configmaps"}, ResourceNames: []string{name},
					Verbs: []string{"get"}}}}))
		bind(platform, name, rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name})
		w.eventually(name+" may be read", func() string {
			if err := own.Get(t.Context(), client.ObjectKey{Namespace: platform, Name: name},
				&corev1.ConfigMap{}); err != nil {
				return err.Error()
			}
			return ""
		})
		// Somebody touches the build, so that the test need not wait for the next look.
		w.change(b, func(b *api.AgentBuild) { b.Annotations = map[string]string{"granted": name} })
	}
	for _, name := range []string{"pipeline-template-own", "own-step"} {
		w.eventually(name+" is reported as forbidden", func() string {
			got := w.build("weather")
			c := condition(got, api.ConditionReady)
			for _, want := range []string{"ConfigMap " + platform + "/" + name +
				": the controller may not read it",
				"hint: grant the controller's ServiceAccount get on configmaps"} {
				if got.Status.Phase != api.PhaseFailed || c.Reason != api.ReasonTemplateForbidden ||
					!strings.Contains(c.Message, want) {
					return fmt.Sprintf("%s %s: %s", got.Status.Phase, c.Reason, c.Message)
				}
			}
			return ""
		})
		if n := len(w.runs()); n != 0 {
			t.Fatalf("%d runs", n)
		}
		grant(name)
	}
	if got := w.run(1).Spec.PipelineSpec.Tasks[0].TaskSpec.Steps[0].Image; got != "right" {
		t.Errorf("the step's image is %q", got)
	}
}
