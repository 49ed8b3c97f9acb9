package apply

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/armature-dev/armature/functions/krm"
)

// FieldConflict is a field that somebody else set to another value.
type FieldConflict struct {
	Manager string `json:"manager"`
	Field   string `json:"field"`
}

// managerOf finds the manager in the API server's `conflict with "kubectl-edit"
// using apps/v1`, which has it nowhere else.
var managerOf = krm.Pattern(`^conflict with "((?:[^"\\]|\\.)*)"`)

// conflictsOf reads the conflicts out of the API server's answer; nil where the
// answer is another one.
func conflictsOf(err error) []FieldConflict {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil || !apierrors.IsConflict(err) {
		return nil
	}
	var out []FieldConflict
	for _, cause := range status.Status().Details.Causes {
		if cause.Type != metav1.CauseTypeFieldManagerConflict {
			continue
		}
		manager := "somebody else"
		if m := managerOf().FindStringSubmatch(cause.Message); m != nil {
			manager = m[1]
		}
		out = append(out, FieldConflict{Manager: manager, Field: strings.TrimPrefix(cause.Field, ".")})
	}
	return out
}

func explain(conflicts []FieldConflict) string {
	fields := make(map[string][]string)
	var managers []string
	for _, c := range conflicts {
		if fields[c.Manager] == nil {
			managers = append(managers, c.Manager)
		}
		fields[c.Manager] = append(fields[c.Manager], c.Field)
	}
	var parts []string
	for _, m := range managers {
		parts = append(parts, fmt.Sprintf("%s has set %s", m, strings.Join(fields[m], ", ")))
	}
	return fmt.Sprintf("%s; take the fields over with --force-conflicts %s, or leave them out of the package", strings.Join(parts, "; "), strings.Join(managers, ","))
}

func taking(conflicts []FieldConflict) string {
	var parts []string
	for _, c := range conflicts {
		parts = append(parts, c.Field+" from "+c.Manager)
	}
	return "takes " + strings.Join(parts, ", ")
}

// mayForce reports whether an object's conflicts are all with managers that the
// user named, with this program where it made the namespace of the inventory, or
// about the replicas that a pruned autoscaler leaves. One more and nothing is taken
// from anybody.
func (a *application) mayForce(o *object) bool {
	conflicts := conflictsOf(o.refusal)
	for _, c := range conflicts {
		if !o.policy.override && !slices.Contains(a.ForceConflicts, c.Manager) && c.Manager != FieldManager && !a.takesReplicas(o, c.Field) {
			return false
		}
	}
	return len(conflicts) > 0
}

// unchangeable are the API server's words for a field that cannot change. Only
// some of them come with a reason of their own.
var unchangeable = krm.Pattern(`(?i)\bis immutable\b|\bimmutable field\b|may not change once set|cannot change roleRef|updates to statefulset spec for fields other than|may not be changed|cannot be changed`)

// immutable reports whether the API server refused to change a field. No other
// invalid object counts: to recreate that would delete it for nothing.
func immutable(err error) bool {
	return err != nil && !apierrors.IsConflict(err) && unchangeable().MatchString(err.Error())
}

// precious objects take data or other objects with them, so that they are never
// recreated.
func precious(id ID) bool {
	switch id.GroupKind {
	case namespaceKind, crdKind, schema.GroupKind{Kind: "PersistentVolume"}, schema.GroupKind{Kind: "PersistentVolumeClaim"}:
		return true
	}
	return false
}

func immutableReason(o *object) string {
	hint := "recreate it with --recreate, which deletes it first"
	switch {
	case precious(o.id):
		hint = "to recreate it would lose what it holds: do that by hand"
	case !o.fits:
		hint = "and it could not be created again either"
	}
	return refusal(o.refusal) + "; " + hint
}

// refusal is the API server's reason, without the words around it.
func refusal(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		if d := status.Status().Details; d != nil && len(d.Causes) > 0 && status.Status().Reason == metav1.StatusReasonInvalid {
			var parts []string
			for _, c := range d.Causes {
				if c.Field != "" && c.Field != "<nil>" {
					parts = append(parts, c.Field+": "+c.Message)
				} else {
					parts = append(parts, c.Message)
				}
			}
			return oneLine(strings.Join(parts, "; "))
		}
	}
	if e := apierrors.APIStatus(nil); errors.As(err, &e) {
		return oneLine(err.Error())
	}
	return short(err)
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// brief shows an error as the one line that people need.
type brief struct{ error }

func (b brief) Error() string { return refusal(b.error) }
func (b brief) Unwrap() error { return b.error }

// answered reports whether an error is the API server's own.
func answered(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}
