package turns

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Limits of the isolated runs of one namespace that are under way together. What is zero is
// unlimited.
type Limits struct {
	Runs     int64
	Requests corev1.ResourceList // of CPU and memory
}

// ParseLimits reads limits such as runs=8,cpu=16,memory=32Gi. What is 0 or left out is unlimited.
func ParseLimits(text string) (Limits, error) {
	l := Limits{Requests: corev1.ResourceList{}}
	for item := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(item, "=")
		amount, err := resource.ParseQuantity(value)
		whole, isWhole := amount.AsInt64()
		switch {
		case text == "":
		case err == nil && amount.Sign() >= 0 && key == "runs" && isWhole:
			l.Runs = whole
		case err == nil && amount.Sign() >= 0 && (key == "cpu" || key == "memory"):
			l.Requests[corev1.ResourceName(key)] = amount
		default:
			return Limits{}, fmt.Errorf("%q: write it like runs=8,cpu=16,memory=32Gi, where 0 is unlimited", text)
		}
	}
	return l, nil
}

// Any reports whether there is a limit.
func (l Limits) Any() bool {
	return l.Runs > 0 || !l.Requests.Cpu().IsZero() || !l.Requests.Memory().IsZero()
}

// Exceeded says which limit so many runs with these requests together exceed; "" for none.
func (l Limits) Exceeded(runs int64, requests corev1.ResourceList) string {
	if l.Runs > 0 && runs > l.Runs {
		return fmt.Sprintf("%d runs, of %d", runs, l.Runs)
	}
	for _, name := range [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		have, limit := requests[name], l.Requests[name]
		if !limit.IsZero() && have.Cmp(limit) > 0 {
			return fmt.Sprintf("%s of %s, of %s", have.String(), name, limit.String())
		}
	}
	return ""
}
