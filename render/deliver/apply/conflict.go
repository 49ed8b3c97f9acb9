package apply

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/deliver/health"
)

// FieldConflict is a field that another manager set to another value.
type FieldConflict struct {
	Manager string `json:"manager"`
	Field   string `json:"field"`
}

// conflictsOf returns the conflicts in the API server's answer, or nil if it is another answer.
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
		f := FieldConflict{Manager: "somebody else", Field: strings.TrimPrefix(cause.Field, ".")}
		// The API server reports the manager only in this message.
		_, _ = fmt.Sscanf(cause.Message, "conflict with %q", &f.Manager)
		out = append(out, f)
	}
	return out
}

// explain describes the managers in conflict, their fields and the remedy.
func explain(conflicts []FieldConflict) string {
	fields := make(map[string][]string)
	for _, c := range conflicts {
		fields[c.Manager] = append(fields[c.Manager], c.Field)
	}
	managers := slices.Sorted(maps.Keys(fields))
	var parts []string
	for _, m := range managers {
		parts = append(parts, fmt.Sprintf("%s has set %s", m, strings.Join(fields[m], ", ")))
	}
	return fmt.Sprintf(
		"%s; take the fields over with --allow conflicts=%s, or leave them out of the package",
		strings.Join(parts, "; "), strings.Join(managers, ",conflicts="))
}

// taking lists the fields that are taken over. It returns "" for none.
func taking(conflicts []FieldConflict) string {
	list := ""
	for _, c := range conflicts {
		list += ", " + c.Field + " from " + c.Manager
	}
	return strings.Replace(list, ", ", "takes ", 1)
}

// mayForce reports whether all conflicts of an object are with managers that the user named, or
// about replicas that a pruned autoscaler leaves. A single other conflict prevents taking any
// field.
func (p *Plan) mayForce(s *Step) bool {
	conflicts := conflictsOf(s.dry.refusal)
	for _, c := range conflicts {
		if !s.want.policy.override && !slices.Contains(p.opt.ForceConflicts, c.Manager) &&
			!(c.Field == "spec.replicas" && s.seen.unscaled && !s.seen.scaled) {
			return false
		}
	}
	return len(conflicts) > 0
}

// unchangeable matches the API server's messages about fields that cannot change. Only some of them
// have a status reason of their own.
var unchangeable = text.Pattern(
	`(?i)\bis immutable\b|\bimmutable field\b|may not change once set|cannot change roleRef|updates to statefulset spec for fields other than|may not be changed|cannot be changed`)

// immutable reports whether the API server refused to change a field. Other invalid objects do not
// count: recreating them would delete them in vain.
func immutable(err error) bool {
	return err != nil && !apierrors.IsConflict(err) && unchangeable().MatchString(err.Error())
}

// precious reports whether deleting an object deletes data or other objects with it, so that
// it is never recreated.
func precious(id ID) bool {
	return id.GroupKind == crdKind || id.GroupKind.Group == "" && slices.Contains(
		[]string{"Namespace", "PersistentVolume", "PersistentVolumeClaim"}, id.GroupKind.Kind)
}

func immutableReason(s *Step) string {
	hint := "recreate it with --allow recreate, which deletes it first"
	switch {
	case precious(s.ID):
		hint = "recreating it would lose its data: do that manually"
	case !s.dry.fits:
		hint = "and it could not be created again either"
	}
	return refusal(s.dry.refusal) + "; " + hint
}

// refusal returns the reason of the API server, without the text around it.
func refusal(err error) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return short(err)
	}
	if conflicts := conflictsOf(err); len(conflicts) > 0 {
		return explain(conflicts)
	}
	var parts []string
	if d := status.Status().Details; d != nil &&
		status.Status().Reason == metav1.StatusReasonInvalid {
		for _, c := range d.Causes {
			parts = append(parts,
				strings.TrimPrefix(strings.TrimPrefix(c.Field, "<nil>")+": "+c.Message, ": "))
		}
	}
	return health.OneLine(cmp.Or(strings.Join(parts, "; "), status.Status().Message))
}

// brief prints an error as the one line that people need.
type brief struct{ error }

func (b brief) Error() string { return refusal(b.error) }
func (b brief) Unwrap() error { return b.error }
