package sign_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/render/deliver/sign"
)

// printed returns the first block of a language in docs/contributing/provenance.md.
func printed(t *testing.T, language string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "contributing", "provenance.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "```"+language+"\n")
	text, _, ended := strings.Cut(text, "```")
	if !found || !ended {
		t.Fatalf("docs/contributing/provenance.md has no block of %s", language)
	}
	return text
}

// The policy that docs/contributing/provenance.md prints accepts the run that it prints, and each
// single change of any field of builds is refused.
func TestDocumentedPolicy(t *testing.T) {
	f := setup(t)
	private, public := f.key("cosign")
	file := f.write("policy.yaml", []byte(printed(t, "yaml")))
	policy := func() sign.Policy {
		p, err := sign.ReadPolicy(file)
		if err != nil {
			t.Fatal(err)
		}
		if p.Keys[0] != public {
			t.Fatalf("the policy names %v", p.Keys)
		}
		return p
	}
	var statement struct {
		Predicate json.RawMessage `json:"predicate"`
	}
	if err := json.Unmarshal([]byte(printed(t, "json")), &statement); err != nil {
		t.Fatal(err)
	}
	f.attest(private, map[string]any{sign.PredicateType: statement.Predicate})
	v, err := sign.Verify(t.Context(), f.artifact, policy())
	if err != nil || v.Level == nil || *v.Level != 2 || len(v.Attestations) != 1 {
		t.Fatalf("%+v %v", v, err)
	}
	changes := map[string]struct {
		change func(*sign.Builds)
		why    string
	}{
		"builders.id": {func(b *sign.Builds) { b.Builders[0].ID += "2" },
			"is none of the policy's"},
		"builders.level": {func(b *sign.Builds) {
			b.Builders = append([]sign.TrustedBuilder{{ID: "x", Level: 2}}, lower(b.Builders)...)
		}, "has level 1, and the policy demands 2"},
		"minimumLevel": {func(b *sign.Builds) {
			b.MinimumLevel = 3
			b.Builders = append(b.Builders, sign.TrustedBuilder{ID: "x", Level: 3})
		}, "has level 2, and the policy demands 3"},
		"sources.repository": {func(b *sign.Builds) { b.Sources[0].Repository += "2" },
			"none of the policy's sources"},
		"sources.branches": {func(b *sign.Builds) { b.Sources[0].Branches = []string{"release"} },
			"demands a branch of release"},
		"sources.verified": {func(b *sign.Builds) {
			b.Sources[0].Verified = sign.VerifiedReachable
		}, "does not say that the commit"},
		"templates": {func(b *sign.Builds) { b.Templates = []string{template} },
			"which is none of the policy's"},
		"maxAge": {func(b *sign.Builds) {
			b.MaxAge = &metav1.Duration{Duration: time.Second}
		}, "the policy's maxAge is 1s"},
		"sbom": {func(b *sign.Builds) { b.SBOM = true }, "bill of materials: "},
		"tests.step": {func(b *sign.Builds) {
			b.Tests = []sign.RequiredTest{{Step: "evaluate"}}
		}, "tests: "},
		"tests.maxResult": {func(b *sign.Builds) {
			b.Tests = []sign.RequiredTest{{Step: "tests", MaxResult: sign.Warned}}
		}, "tests: "},
		"tests.digests": {func(b *sign.Builds) {
			b.Tests = []sign.RequiredTest{{Step: "tests", Digests: []string{template}}}
		}, "tests: "},
		"tests.parameters": {func(b *sign.Builds) {
			b.Tests = []sign.RequiredTest{{Step: "tests",
				Parameters: map[string]string{"TEST_COMMAND": "x"}}}
		}, "tests: "},
		"maxSeverity": {func(b *sign.Builds) { b.MaxSeverity = "high" }, "vulnerabilities: "},
	}
	for field, c := range changes {
		p := policy()
		c.change(p.Builds)
		if err := p.Check(); err != nil {
			t.Errorf("%s: the changed policy is not one: %v", field, err)
		}
		t.Run(field, func(t *testing.T) {
			(&fixture{t, f.dir, f.host, f.artifact}).refused(p, c.why)
		})
	}
	if diff := cmp.Diff(leaves("", reflect.TypeFor[sign.Builds]()),
		slices.Sorted(maps.Keys(changes))); diff != "" {
		t.Errorf("not every field of builds is changed (-fields +changed):\n%s", diff)
	}
}

// lower takes a level from each builder.
func lower(builders []sign.TrustedBuilder) []sign.TrustedBuilder {
	for i := range builders {
		builders[i].Level--
	}
	return builders
}

// leaves are the fields of a policy's type by the names that they have in YAML, in order.
func leaves(at string, of reflect.Type) (out []string) {
	for _, field := range reflect.VisibleFields(of) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if inner := field.Type; inner.Kind() == reflect.Slice &&
			inner.Elem().Kind() == reflect.Struct {
			out = append(out, leaves(at+name+".", inner.Elem())...)
			continue
		}
		out = append(out, at+name)
	}
	slices.Sort(out)
	return out
}
