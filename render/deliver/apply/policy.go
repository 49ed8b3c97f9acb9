package apply

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
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

// policyOf parses the annotations of an object. An unknown value is an error, because a guess could
// delete or overwrite an object that was meant to be kept.
func policyOf(u *unstructured.Unstructured) (policy, error) {
	if u == nil {
		return policy{}, nil
	}
	for _, key := range []string{fluxSSA, fluxReconcile, fluxPrune, fluxForce} {
		allowed := []string{"enabled", "disabled"}
		if key == fluxSSA {
			allowed = []string{"Override", "Merge", "IfNotPresent", "Ignore"}
		}
		value := cmp.Or(u.GetAnnotations()[key], u.GetLabels()[key])
		if value != "" && !slices.ContainsFunc(allowed,
			func(word string) bool { return strings.EqualFold(word, value) }) {
			return policy{}, fmt.Errorf("annotation %s: %q is unknown: use one of %s", key, value,
				strings.Join(allowed, ", "))
		}
	}
	says := func(key, value string) bool {
		return ssautil.AnyInMetadata(u, map[string]string{key: value})
	}
	ignore := says(fluxSSA, "Ignore") || says(fluxReconcile, "disabled")
	return policy{ignore, says(fluxSSA, "IfNotPresent"), says(fluxSSA, "Override"),
		says(fluxForce, "enabled"), ignore || says(fluxPrune, "disabled")}, nil
}
