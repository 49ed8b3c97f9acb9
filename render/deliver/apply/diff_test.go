package apply_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/armature-dev/armature/render/deliver/apply"
)

// A diff shows what would change, computed by the API server, so that defaults
// do not show. Secrets' values never do.
func TestDiff(t *testing.T) {
	w := newWorld(t)
	w.apply(apply.Options{}, web, configMap("gone", "a"), everyday)
	w.patch("v1", "Secret", "token", "kubectl-client-side-apply",
		`{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"hunter2"}}}`)
	plan, err := w.Plan(t.Context(), w.Package,
		w.read(strings.Replace(web, "nginx:1", "nginx:2", 1), configMap("new", "a"),
			strings.Replace(everyday, "hunter2", "correct horse", 1)), apply.Options{})
	w.must(err)
	all := make(map[string]string)
	for _, s := range plan.Steps {
		text, err := s.Diff()
		w.must(err)
		all[s.ID.GroupKind.Kind+" "+s.ID.Name] = text
	}
	// One line changes, below the line that names the file.
	if got := all["Deployment web"]; strings.Count(got, "\n-") != 2 ||
		strings.Count(got, "\n+") != 2 || !strings.Contains(got, "image: nginx:2") {
		t.Errorf("the Deployment's diff:\n%s", got)
	}
	if got := all["ConfigMap new"]; !strings.Contains(got, "+  key: a\n") ||
		strings.Contains(got, "\n-  ") {
		t.Errorf("the new ConfigMap's diff:\n%s", got)
	}
	if got := all["ConfigMap gone"]; !strings.Contains(got, "-  key: a\n") ||
		strings.Contains(got, "\n+  ") {
		t.Errorf("the pruned ConfigMap's diff:\n%s", got)
	}
	if all["Service web"] != "" || all["Role web:reader"] != "" {
		t.Errorf("what does not change has a diff: %v", all)
	}
	secret := all["Secret token"]
	if !strings.Contains(secret, "-  password: '*** (before)'") ||
		!strings.Contains(secret, "+  password: '*** (after)'") {
		t.Errorf("the Secret's diff:\n%s", secret)
	}
	for _, value := range []string{"hunter2", "aHVudGVyMg", "correct horse", "Y29ycmVjdCBob3JzZQ"} {
		if strings.Contains(secret, value) {
			t.Errorf("the Secret's diff shows %s:\n%s", value, secret)
		}
	}
}

// A new object shows with the API server's defaults, and without what is left to others
// only once it exists. Where the API server cannot know it yet, because its namespace or
// CRD comes with the package, it shows as it is sent.
func TestDiffOfNewObjects(t *testing.T) {
	w := newWorld(t)
	group := w.Package.Namespace + ".example.com"
	before := w.writes.count()
	plan, err := w.Plan(t.Context(), w.Package, w.read(
		strings.Replace(web, "{name: web}", "{name: web"+ignoring("/spec/replicas")+"}", 1),
		"{apiVersion: v1, kind: Namespace, metadata: {name: NS-second}}",
		"{apiVersion: v1, kind: Service, metadata: {name: later, namespace: NS-second}, spec: "+
			"{ports: [{port: 80}]}}",
		crd(group, "v1", "Part"),
		"{apiVersion: "+group+"/v1, kind: Part, metadata: {name: one}, spec: {size: 1}}",
	), apply.Options{})
	w.must(err)
	for name, c := range map[string]struct{ with, without []string }{
		"web": {[]string{"+  replicas: 2\n",
			"+  progressDeadlineSeconds: 600\n", "+        imagePullPolicy: IfNotPresent\n",
			"+    armature.dev/name: weather\n"}, []string{"uid:", "managedFields:"}},
		w.Package.Namespace +
			"-second": {[]string{"+    kubernetes.io/metadata.name: " + w.Package.Namespace +
			"-second\n"}, nil},
		"later":          {[]string{"+  - port: 80\n"}, []string{"clusterIP"}},
		"parts." + group: {[]string{"+  conversion:\n+    strategy: None\n"}, nil},
		"one": {[]string{"+  size: 1\n",
			"+    armature.dev/name: weather\n"}, nil},
	} {
		i := slices.IndexFunc(plan.Steps, func(s *apply.Step) bool { return s.Name == name })
		text, err := plan.Steps[i].Diff()
		w.must(err)
		for _, line := range c.with {
			if !strings.Contains(text, line) {
				t.Errorf("%s: no %q in\n%s", name, line, text)
			}
		}
		for _, word := range append(c.without, "\n-  ") {
			if strings.Contains(text, word) {
				t.Errorf("%s: %q in\n%s", name, word, text)
			}
		}
	}
	if all := w.writes.since(before); len(all) != 0 {
		t.Errorf("diff wrote %v", all)
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
