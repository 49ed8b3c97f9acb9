package workload

import (
	"slices"
	"testing"
)

// TestKinds: a kind has its template at a place that krm looks at, unless it is a Pod.
func TestKinds(t *testing.T) {
	for _, k := range kinds {
		known := slices.ContainsFunc(Templates(),
			func(at Template) bool { return at.Path == k.Template })
		if pod := k.Name == "Pod"; known == pod {
			t.Errorf("%s: the template is at %q", k.Name, k.Template)
		}
	}
}

// TestImmutable: a field inside an immutable one is immutable, and one that begins like it
// is not.
func TestImmutable(t *testing.T) {
	for field, want := range map[string]bool{
		"spec.selector":             true,
		"spec.selector.matchLabels": true,
		"spec.selectors":            false,
		"spec.replicas":             false,
	} {
		if got := Immutable("Deployment", field); got != want {
			t.Errorf("%s: %v, want %v", field, got, want)
		}
	}
	if Immutable("CronJob", "spec.selector") || Immutable("Service", "spec.selector") {
		t.Error("a CronJob and a Service have no immutable selector")
	}
}
