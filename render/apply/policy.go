package apply

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Flux's annotations (kustomize-controller, "Controlling the apply behavior of
// resources"); as with Flux, a label of the same name counts too.
const (
	fluxSSA       = "kustomize.toolkit.fluxcd.io/ssa"
	fluxPrune     = "kustomize.toolkit.fluxcd.io/prune"
	fluxReconcile = "kustomize.toolkit.fluxcd.io/reconcile"
	fluxForce     = "kustomize.toolkit.fluxcd.io/force"
)

// policy is what the annotations of an object say about how to apply it.
type policy struct {
	ignore       bool // never touched
	ifNotPresent bool // created, then left alone
	override     bool // taken from other field managers
	recreate     bool // created again where a field is immutable
	keep         bool // never pruned
}

func says(u *unstructured.Unstructured, key string) string {
	if u == nil {
		return ""
	}
	if v := u.GetAnnotations()[key]; v != "" {
		return strings.ToLower(v)
	}
	return strings.ToLower(u.GetLabels()[key])
}

// policyOf reads the annotations. An unknown value is an error: guessing could
// delete or overwrite what somebody meant to keep.
func policyOf(u *unstructured.Unstructured) (policy, error) {
	var p policy
	bad := func(key, allowed string) (policy, error) {
		return policy{}, fmt.Errorf("annotation %s: %q is unknown: use %s", key, says(u, key), allowed)
	}
	switch says(u, fluxSSA) {
	case "", "merge":
	case "override":
		p.override = true
	case "ifnotpresent":
		p.ifNotPresent = true
	case "ignore":
		p.ignore, p.keep = true, true
	default:
		return bad(fluxSSA, "Override, Merge, IfNotPresent or Ignore")
	}
	switch says(u, fluxReconcile) {
	case "", "enabled":
	case "disabled":
		p.ignore, p.keep = true, true
	default:
		return bad(fluxReconcile, "enabled or disabled")
	}
	switch says(u, fluxPrune) {
	case "", "enabled":
	case "disabled":
		p.keep = true
	default:
		return bad(fluxPrune, "enabled or disabled")
	}
	switch says(u, fluxForce) {
	case "", "disabled":
	case "enabled":
		p.recreate = true
	default:
		return bad(fluxForce, "enabled or disabled")
	}
	return p, nil
}
