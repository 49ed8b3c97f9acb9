package apply_test

import (
	"strings"
	"testing"

	"github.com/armature-dev/armature/render/apply"
)

// A diff shows what would change, computed by the API server, so that defaults
// do not show. Secrets' values never do.
func TestDiff(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, web, configMap("gone", "a"), everyday)
	w.patch("v1", "Secret", "token", "kubectl-client-side-apply", `{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"hunter2"}}}`)
	plan, err := w.Plan(t.Context(), w.Package, w.read(strings.Replace(web, "nginx:1", "nginx:2", 1), configMap("new", "a"), strings.Replace(everyday, "hunter2", "correct horse", 1)), apply.Options{})
	w.must(err)
	all := make(map[string]string)
	for _, s := range plan.Steps {
		text, err := s.Diff()
		w.must(err)
		all[s.ID.GroupKind.Kind+" "+s.ID.Name] = text
	}
	// One line changes, below the line that names the file.
	if got := all["Deployment web"]; strings.Count(got, "\n-") != 2 || strings.Count(got, "\n+") != 2 || !strings.Contains(got, "image: nginx:2") {
		t.Errorf("the Deployment's diff:\n%s", got)
	}
	if got := all["ConfigMap new"]; !strings.Contains(got, "+  key: a\n") || strings.Contains(got, "\n-  ") {
		t.Errorf("the new ConfigMap's diff:\n%s", got)
	}
	if got := all["ConfigMap gone"]; !strings.Contains(got, "-  key: a\n") || strings.Contains(got, "\n+  ") {
		t.Errorf("the pruned ConfigMap's diff:\n%s", got)
	}
	if all["Service web"] != "" || all["Role web:reader"] != "" {
		t.Errorf("what does not change has a diff: %v", all)
	}
	secret := all["Secret token"]
	if !strings.Contains(secret, "-  password: '*** (before)'") || !strings.Contains(secret, "+  password: '*** (after)'") {
		t.Errorf("the Secret's diff:\n%s", secret)
	}
	for _, value := range []string{"hunter2", "aHVudGVyMg", "correct horse", "Y29ycmVjdCBob3JzZQ"} {
		if strings.Contains(secret, value) {
			t.Errorf("the Secret's diff shows %s:\n%s", value, secret)
		}
	}
}

// The inventory does not reveal what is in a Secret: not even by a digest, which
// could be guessed.
func TestSecretIsNotSealed(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, everyday)
	text, _ := field(w.get("v1", "ConfigMap", "armature-weather"), "data", "objects").(string)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "v1 Secret ") != strings.HasSuffix(line, " -\n") {
			t.Errorf("line %q", line)
		}
	}
}
