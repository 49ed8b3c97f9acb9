package controller_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

// deny refuses runs of the test's namespace, in words that a user shall see.
func (w *world) deny() (lift func()) {
	w.Helper()
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "deny-" + w.namespace},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{
				ResourceRules: []admissionv1.NamedRuleWithOperations{
					{RuleWithOperations: admissionv1.RuleWithOperations{
						Operations: []admissionv1.OperationType{admissionv1.Create},
						Rule: admissionv1.Rule{APIGroups: []string{"tekton.dev"},
							APIVersions: []string{"*"}, Resources: []string{"pipelineruns"}},
					}}}},
			Validations: []admissionv1.Validation{
				{Expression: "object.metadata.namespace != '" + w.namespace + "'",
					Message: "builds are frozen until Monday"}},
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: policy.Name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: policy.Name,
			ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}
	w.must(w.Client.Create(w.Context(), policy))
	w.must(w.Client.Create(w.Context(), binding))
	w.eventually("the policy is in force", func() string {
		pr := w.probe()
		if err := w.Client.Create(w.Context(), pr, client.DryRunAll); err == nil ||
			!strings.Contains(err.Error(), "frozen") {
			return fmt.Sprint(err)
		}
		return ""
	})
	return func() {
		w.must(w.Client.Delete(w.Context(), binding))
		w.must(w.Client.Delete(w.Context(), policy))
	}
}

// A denial becomes a condition and an event in the server's words within two
// seconds; when the policy goes, the build then continues by itself.
func TestDenied(t *testing.T) {
	w := newWorld(t)
	lift := w.deny()
	w.start()
	w.create("warm-up", func(b *api.AgentBuild) { b.Spec.Mode = "none" })
	w.phase("warm-up", api.PhaseFailed)

	began := time.Now()
	b := w.create("weather")
	var got *api.AgentBuild
	w.eventually("the denial is in status", func() string {
		got = w.build("weather")
		if c := condition(got, api.ConditionRunExists); c.Reason != api.ReasonRunDenied ||
			!strings.Contains(c.Message, "builds are frozen until Monday") {
			return fmt.Sprintf("%+v", c)
		}
		return ""
	})
	// ten times the aim, for a machine under load
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the denial took %s to show", took)
	}
	if got.Status.Phase != api.PhaseFailed {
		t.Errorf("phase %s", got.Status.Phase)
	}
	w.eventually("an event reports it, too", func() string {
		var list eventsv1.EventList
		w.must(w.List(w.Context(), &list, client.InNamespace(w.namespace)))
		for _, e := range list.Items {
			if e.Regarding.UID == b.UID && e.Type == "Warning" && e.Reason == api.ReasonRunDenied &&
				strings.Contains(e.Note, "frozen until Monday") {
				return ""
			}
		}
		return fmt.Sprintf("%d events", len(list.Items))
	})
	before, _ := w.writes.total()
	w.never("hammering", func() string {
		if now, by := w.writes.total(); now > before+1 {
			return fmt.Sprintf("%v", by)
		}
		return ""
	})
	lift()
	w.run(1)
	w.phase("weather", api.PhaseBuilding)
}
