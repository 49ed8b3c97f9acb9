package functions

import (
	"strings"
	"testing"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// TestPages: each function has a page with its input and output, its configuration, and a valid
// example.
func TestPages(t *testing.T) {
	for _, f := range Table() {
		page, ok := Page(f.Name)
		if !ok || !strings.HasPrefix(page, "# "+f.Name+"\n\n") {
			t.Errorf("%s: no page of that title", f.Name)
			continue
		}
		for _, part := range []string{"**In:**", "**Out:**", "**Configuration:**", "```yaml\n"} {
			if !strings.Contains(page, part) {
				t.Errorf("%s: no %s", f.Name, strings.TrimSpace(part))
			}
		}
		for _, text := range strings.Split(page, "```yaml\n")[1:] {
			example, _, closed := strings.Cut(text, "```")
			n, err := yaml.Parse(example)
			if !closed || err != nil || n.GetKind() == "" {
				t.Errorf("%s: an example that is none: %v\n%s", f.Name, err, example)
			}
		}
	}
}
