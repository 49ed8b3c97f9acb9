package identity

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestReference: docs/configuration.md has the line of each setting as the table has it.
func TestReference(t *testing.T) {
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	for _, x := range NewProfiles(Profile{}).table {
		section, name, _ := strings.Cut(x.path, ".")
		switch {
		case section == "components" || section == "authbridge" && x.oneOf == nil: // not settings of one field of the RenderConfig
			continue
		case section != "trace" && section != "authbridge":
			name = x.path
		}
		standard := x.shown
		switch v := x.standard.(type) {
		case []Exporter, nil:
		case []string:
			standard = "`" + strings.Join(v, "`, `") + "`"
		default:
			standard = fmt.Sprintf("`%v`", v)
		}
		want := "| `" + name + "` | " + strings.TrimSpace(standard+" |") + " " + strings.TrimSpace(x.means+" |")
		if !slices.Contains(lines, want) {
			t.Errorf("docs/configuration.md lacks the line\n%s", want)
		}
	}
}
