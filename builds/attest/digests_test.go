package attest_test

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
)

// Two specs whose hashes begin with the same 64 bits are two specs: a run that was composed from
// one of them is not attested as the other. The pair took six minutes of one processor.
func TestCollidingSpecs(t *testing.T) {
	read := func(name string) (spec api.AgentBuildSpec) {
		text, err := os.ReadFile("testdata/collision/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		var b api.AgentBuild
		if err := yaml.UnmarshalStrict(text, &b); err != nil {
			t.Fatal(err)
		}
		return b.Spec
	}
	hash := func(spec api.AgentBuildSpec) string {
		hash, _ := compose.InputHashes(&api.AgentBuild{Spec: spec}, templates.NoTemplate(), nil)
		return hash
	}
	ordered, shown := read("ordered"), read("shown")
	if a, b := hash(ordered), hash(shown); a[:16] != b[:16] {
		t.Fatalf(
			"the specs have the hashes %s and %s: compute another pair, with 16 digits in common", a, b)
	}
	o := observe(t, false, func(b *api.AgentBuild) { b.Spec = ordered })
	if found := refusal(t, o); found != nil {
		t.Fatal(found)
	}
	o.Build.Spec = shown
	if found := refusal(t, o); found == nil || found.Rule != api.ReasonSpecChanged {
		t.Errorf("refused with %v, want %s", found, api.ReasonSpecChanged)
	}
}

// refusal of what is observed; nil where it is vouched for.
func refusal(t *testing.T, o *attest.Observed) *finding.Finding {
	t.Helper()
	_, err := attest.Check(*o)
	var found *finding.Finding
	if err != nil && !errors.As(err, &found) {
		t.Fatal(err)
	}
	return found
}

// A run of a repository without a canonical form is not vouched for.
func TestRepositoryWithoutCanonicalForm(t *testing.T) {
	o := observe(t, false)
	rewrite := func(v any) {
		text := strings.ReplaceAll(marshal(t, v), "https://github.com/org/weather.git",
			"https://github.com/org/weather@refs/../../evil/weather")
		if err := json.Unmarshal([]byte(text), v); err != nil {
			t.Fatal(err)
		}
	}
	rewrite(&o.Run)
	rewrite(&o.TaskRuns)
	o.Run.Annotations[keys.AnnotationRunDigest] = compose.RunDigest(&o.Run.Spec)
	if found := refusal(t, o); found == nil || found.Rule != api.ReasonNotAsOrdered ||
		!strings.Contains(found.Message, "a repository without a canonical form") {
		t.Errorf("refused with %v", found)
	}
}
