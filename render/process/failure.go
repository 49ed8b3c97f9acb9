package process

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Failure is why a controller did not do what an object asks for.
type Failure struct {
	// Reason is the reason of the condition that reports the failure.
	Reason string
	// Stalled reports that a retry does not help: the object or one that it names has to change.
	Stalled bool
	Err     error
}

func (f *Failure) Error() string { return f.Err.Error() }

// Unwrap returns Err.
func (f *Failure) Unwrap() error { return f.Err }

// Stalled returns a failure that a retry does not resolve.
func Stalled(reason string, err error) *Failure {
	return &Failure{Reason: reason, Stalled: true, Err: err}
}

// Retry returns a failure that a retry may resolve.
func Retry(reason string, err error) *Failure { return &Failure{Reason: reason, Err: err} }

// FailureOf returns the Failure that an error wraps, with the text of the whole error. For any
// other error it returns a failure with the given reason that a retry may resolve.
func FailureOf(err error, reason string) *Failure {
	known := Failure{Reason: reason}
	if f := (*Failure)(nil); errors.As(err, &f) {
		known = *f
	}
	known.Err = err
	return &known
}

// Conditions sets the conditions of an object.
type Conditions struct {
	List       *[]metav1.Condition
	Generation int64
	// Now is the transition time of conditions that change; zero means the current time.
	Now time.Time
}

// Set sets a condition, and reports whether it has changed.
func (c Conditions) Set(kind string, status metav1.ConditionStatus, reason, message string) bool {
	condition := metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message,
		ObservedGeneration: c.Generation,
	}
	if !c.Now.IsZero() {
		condition.LastTransitionTime = metav1.NewTime(c.Now).Rfc3339Copy()
	}
	return meta.SetStatusCondition(c.List, condition)
}

// Report sets the condition Ready, which is true without a failure. By the rules of kstatus,
// Stalled and Reconciling exist only while they are true.
func (c Conditions) Report(f *Failure, reason, message string) {
	if f == nil || f.Stalled {
		meta.RemoveStatusCondition(c.List, "Reconciling")
	}
	if f == nil || !f.Stalled {
		meta.RemoveStatusCondition(c.List, "Stalled")
	}
	switch {
	case f == nil:
		c.Set("Ready", metav1.ConditionTrue, reason, message)
	case f.Stalled:
		c.Set("Ready", metav1.ConditionFalse, reason, message)
		c.Set("Stalled", metav1.ConditionTrue, reason, message)
	default:
		c.Set("Ready", metav1.ConditionFalse, reason, message)
		c.Set("Reconciling", metav1.ConditionTrue, "ProgressingWithRetry", message)
	}
}
