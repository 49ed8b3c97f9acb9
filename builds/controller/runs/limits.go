package runs

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Limits are the limits of the isolated runs under way of one namespace: of the sum of their
// requests of CPU and memory, and of their number. An absent resource is unlimited.
type Limits corev1.ResourceList

// Isolated is the resource name for the number of isolated runs.
const Isolated corev1.ResourceName = "runs"

// ParseLimits parses limits, for example runs=8,cpu=16,memory=32Gi. 0 is unlimited.
func ParseLimits(text string) (Limits, error) {
	l := Limits{}
	for item := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(item, "=")
		name := corev1.ResourceName(key)
		amount, err := resource.ParseQuantity(value)
		_, isWhole := amount.AsInt64()
		known := name == Isolated && isWhole || name == corev1.ResourceCPU ||
			name == corev1.ResourceMemory
		switch {
		case text == "":
		case err != nil || amount.Sign() < 0 || !known:
			return nil, fmt.Errorf(
				"%q: write it like runs=8,cpu=16,memory=32Gi, where 0 is unlimited", text)
		case amount.Sign() > 0:
			l[name] = amount
		}
	}
	return l, nil
}

// Exceeded returns the first limit that a run exceeds together with the use of others, or "".
func (l Limits) Exceeded(use, others corev1.ResourceList) string {
	for _, name := range slices.Sorted(maps.Keys(l)) {
		limit := l[name]
		if amount, uses := use[name]; uses {
			if amount.Add(others[name]); amount.Cmp(limit) > 0 {
				return fmt.Sprintf("%s of %s, of %s", amount.String(), name, limit.String())
			}
		}
	}
	return ""
}
