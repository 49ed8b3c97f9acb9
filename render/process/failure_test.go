package process_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/render/process"
)

// A failure keeps its reason within other errors, and conditions are there while they are true.
func TestFailure(t *testing.T) {
	down := errors.New("no answer")
	wrong := fmt.Errorf("reading: %w", process.Stalled("Invalid", down))
	if f := process.FailureOf(wrong, "Failed"); f.Reason != "Invalid" || !f.Stalled ||
		f.Error() != wrong.Error() {
		t.Errorf("%+v", f)
	}
	if f := process.FailureOf(down, "Failed"); f.Reason != "Failed" || f.Stalled || !errors.Is(f, down) {
		t.Errorf("%+v", f)
	}
	var list []metav1.Condition
	c := process.Conditions{List: &list, Generation: 3, Now: time.Unix(1e9, 0)}
	for _, step := range []struct {
		failed *process.Failure
		want   string
	}{
		{process.Retry("Failed", down),
			"Ready False Failed, Reconciling True ProgressingWithRetry"},
		{process.Stalled("Invalid", down), "Ready False Invalid, Stalled True Invalid"},
		{nil, "Ready True Good"},
	} {
		reason := "Good"
		if step.failed != nil {
			reason = step.failed.Reason
		}
		c.Report(step.failed, reason, "message")
		var got []string
		for _, o := range list {
			got = append(got, fmt.Sprintf("%s %s %s", o.Type, o.Status, o.Reason))
			if o.ObservedGeneration != 3 || o.Message != "message" ||
				!o.LastTransitionTime.Time.Equal(c.Now) {
				t.Errorf("%+v", o)
			}
		}
		if strings.Join(got, ", ") != step.want {
			t.Errorf("%q, want %q", got, step.want)
		}
	}
}
