package identity

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

var update = flag.Bool("update", false,
	"write the lines of settings into docs/reference/configuration.md")

// TestReference: docs/reference/configuration.md has the line of each setting as the table has it.
func TestReference(t *testing.T) {
	const page = "../../docs/reference/configuration.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	lines, last := strings.Split(string(text), "\n"), 0
	for _, x := range NewProfiles(Profile{}).table {
		section, name, _ := strings.Cut(x.path, ".")
		switch {
		case section == "components" || section == "authbridge" && x.oneOf == nil:
			// not settings of one field of the RenderConfig
			continue
		case section != "trace" && section != "authbridge":
			name = x.path
		}
		standard := x.shown
		if value := x.standard; standard == "" && value.Kind == yaml.ScalarNode {
			standard = "`" + value.Value + "`"
		} else if standard == "" && value.Kind == yaml.SequenceNode {
			var all []string
			if err := value.Decode(&all); err != nil {
				t.Fatal(err)
			}
			standard = "`" + strings.Join(all, "`, `") + "`"
		}
		if x.is == nil {
			t.Errorf("%s: there is no check of its name", x.path)
		}
		key := "| `" + name + "` | "
		want := key + strings.TrimSpace(standard+" |") + " " +
			strings.TrimSpace(strings.ReplaceAll(x.means, "](", "](../")+" |")
		from := 0
		if name != x.path { // other sections have fields of the same name
			from = max(from, slices.Index(lines, "## spec."+section))
		}
		at := slices.IndexFunc(lines[from:],
			func(line string) bool { return strings.HasPrefix(line, key) })
		if at >= 0 {
			at += from
		}
		switch {
		case slices.Contains(lines, want):
			at = slices.Index(lines, want)
		case !*update:
			t.Errorf("docs/reference/configuration.md lacks the line, which -update writes\n%s", want)
		case at < 0: // behind the setting before it
			at = last + 1
			lines = slices.Insert(lines, at, want)
		default:
			lines[at] = want
		}
		last = at
	}
	if *update {
		if err := os.WriteFile(page, []byte(strings.Join(lines, "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
