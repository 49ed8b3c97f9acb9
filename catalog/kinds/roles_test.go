package kinds_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/catalog/kinds"
)

// roleRules are the rules of a role with the rights of all kinds, each right once.
func roleRules() string {
	type rule struct {
		kinds.Right
		resources []string
	}
	var rules []rule
	for _, k := range kinds.All() {
		for _, r := range k.Rights() {
			if slices.ContainsFunc(rules, func(have rule) bool {
				missing := slices.ContainsFunc(r.Verbs,
					func(verb string) bool { return !slices.Contains(have.Verbs, verb) })
				return have.Group == r.Group && slices.Contains(have.resources, r.Resource) && !missing
			}) {
				continue
			}
			if last := len(rules) - 1; r.For == "" && rules[last].Group == r.Group &&
				slices.Equal(rules[last].Verbs, r.Verbs) {
				rules[last].resources = append(rules[last].resources, r.Resource)
				continue
			}
			rules = append(rules, rule{r, []string{r.Resource}})
		}
	}
	var out strings.Builder
	for _, r := range rules {
		if r.For != "" {
			fmt.Fprintf(&out, "  # %s.\n", strings.ToUpper(r.For[:1])+r.For[1:])
		}
		group := r.Group
		if group == "" {
			group = `""`
		}
		fmt.Fprintf(&out, "  - apiGroups: [%s]\n    resources: [%s]\n    verbs: [%s]\n", group,
			strings.Join(r.resources, ", "), strings.Join(r.Verbs, ", "))
	}
	return out.String()
}

// The shipped roles let the catalog follow each of its kinds, ask and report. UPDATE=1 writes them.
func TestRoles(t *testing.T) {
	const begin, end = "rules:\n", "  # What the console shows"
	for _, mode := range []string{"cluster", "namespaced"} {
		file := "../../templates/install/catalog/" + mode + "/role.yaml"
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		before, rest, found := strings.Cut(string(text), begin)
		_, after, ended := strings.Cut(rest, end)
		if !found || !ended {
			t.Fatalf("%s has no rules of kinds", file)
		}
		want := before + begin +
			"  # Written from catalog/kinds by `UPDATE=1 go test ./catalog/kinds -run Roles`.\n" +
			roleRules() + end + after
		if os.Getenv("UPDATE") != "" {
			if err := os.WriteFile(file, []byte(want), 0o600); err != nil {
				t.Fatal(err)
			}
		} else if diff := cmp.Diff(want, string(text)); diff != "" {
			t.Errorf("%s is out of date: run this test with UPDATE=1 (-want +got):\n%s", file, diff)
		}
	}
}
