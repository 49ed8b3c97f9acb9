package identity

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
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
		standard := x.shown.Text()
		if standard == "" && x.standard.IsScalar() {
			standard = "`" + x.standard.Text() + "`"
		} else if standard == "" && x.standard.IsList() {
			standard = "`" + strings.Join(texts(x.standard), "`, `") + "`"
		}
		if x.is == nil {
			t.Errorf("%s: there is no check of its name", x.path)
		}
		key := "| `" + name + "` | "
		want := key + strings.TrimSpace(standard+" |") + " " +
			strings.TrimSpace(strings.ReplaceAll(x.means.Text(), "](", "](../")+" |")
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

// TestRows: the scanner reads settings.yaml as it is, and the rows have no field that nothing
// reads.
func TestRows(t *testing.T) {
	if why, rewritten := rows().Rewritten(); rewritten {
		t.Errorf("settings.yaml is read by the YAML library: it has %s", why)
	}
	known := []string{"path", "annotation", "runtime", "alias", "follows", "in", "standard", "oneOf",
		"check", "derived", "shown", "means"}
	for section, list := range rows().Root().Fields() {
		for row := range list.Items() {
			for field := range row.Fields() {
				if !slices.Contains(known, field) {
					t.Errorf("%s of %s in %s is not read", field, row.Get("path").Text(), section)
				}
			}
		}
	}
}
