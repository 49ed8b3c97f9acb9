package controller_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
)

// Tekton mounts the logins of a run's ServiceAccount into every step, so that the commit of a
// stranger does not run under an account that has some.
func TestForkUnderAnAccountWithSecrets(t *testing.T) {
	w := newWorld(t)
	w.options.Settings.CreateServiceAccount, w.options.Settings.ServiceAccountName = false, "builder"
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace,
		Name: "builder"}, Secrets: []corev1.ObjectReference{{Name: "registry-login"}}}
	w.must(w.Client.Create(t.Context(), account))
	w.start()
	w.create("fork", func(b *api.AgentBuild) {
		b.Spec.Source.PullRequest = &api.SourcePullRequest{Number: 7, Fork: true}
	})
	w.create("own", func(b *api.AgentBuild) {
		b.Spec.Source.PullRequest = &api.SourcePullRequest{Number: 8}
	})
	c := condition(w.phase("fork", api.PhaseFailed), api.ConditionReady)
	if c.Reason != api.ReasonForkRestricted ||
		!strings.Contains(c.Message, "has the Secret registry-login") ||
		!strings.Contains(c.Message, "hint: remove") {
		t.Errorf("%s: %s", c.Reason, c.Message)
	}
	if run := w.run(1); !strings.HasPrefix(run.Name, "own-") {
		t.Errorf("run %s", run.Name)
	}
	account.Secrets = nil
	w.must(w.Update(t.Context(), account))
	w.change(w.build("fork"), func(b *api.AgentBuild) {
		b.Annotations = map[string]string{"touched": "1"}
	})
	w.run(2)
}
