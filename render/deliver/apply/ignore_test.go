package apply_test

import (
	"strings"
	"testing"

	"github.com/armature-dev/armature/render/deliver/apply"
)

// ignoring is metadata with the annotation.
func ignoring(pointers string) string {
	return `, annotations: {armature.dev/ignore-fields: "` + pointers + `"}`
}

// Fields that somebody else sets are left to them, and show in no diff, whatever the
// package says; the rest of the object is applied.
func TestIgnoreFields(t *testing.T) {
	w := newWorld(t)
	scaled := strings.Replace(web, "{name: web}",
		"{name: web"+ignoring("/spec/replicas, /spec/template/spec/containers/0/resources")+"}", 1)
	w.apply(apply.Options{}, scaled)
	w.replicas(2)
	w.patch("apps/v1", "Deployment", "web", "scaler", `{"spec":{"replicas":7}}`, "scale")
	w.patch("apps/v1", "Deployment", "web", "sizer", `{"spec":{"template":{"spec":{"containers":[
		{"name":"web","image":"nginx:1","ports":[{"containerPort":80}],"resources":{"limits":{"cpu":"3","memory":"1Gi"},"requests":{"cpu":"1"}},"env":[{"name":"MODE","value":"fast"}]}]}}}}`)
	resources := func() any {
		containers := field(w.get("apps/v1", "Deployment", "web"), "spec", "template", "spec",
			"containers").([]any)
		return containers[0].(map[string]any)["resources"].(map[string]any)["limits"].(map[string]any)["cpu"]
	}
	changed := strings.NewReplacer("replicas: 2", "replicas: 4", "cpu: 1000m", "cpu: 500m",
		"memory: 1Gi", "memory: 2Gi", "value: fast", "value: slow").Replace(scaled)
	plan, err := w.Plan(t.Context(), w.Package, w.read(changed), apply.Options{})
	w.must(err)
	w.expect(plan, "change Deployment NS/web")
	text, err := plan.Steps[0].Diff()
	w.must(err)
	if !strings.Contains(text, "+          value: slow") || strings.Contains(text, "-  replicas") ||
		strings.Contains(text, "-            cpu") ||
		strings.Contains(text, "-            memory") {
		t.Errorf("diff:\n%s", text)
	}
	w.apply(apply.Options{}, changed)
	w.replicas(7)
	if got := resources(); got != "3" {
		t.Errorf("the limit is %v", got)
	}
	before := w.writes.count()
	w.expect(w.apply(apply.Options{}, changed), "unchanged Deployment NS/web")
	w.expect(w.apply(apply.Options{}, strings.Replace(changed, "replicas: 4", "replicas: 5", 1)),
		"unchanged Deployment NS/web")
	if all := w.writes.since(before); len(all) != 0 {
		t.Errorf("wrote %v", all)
	}
	// Without the annotation it is as ever: the fields have another owner.
	w.refused(apply.Options{}, "scaler has set spec.replicas", web)
}

// A field that nobody else has set yet keeps its live value, also where the package
// drops it, and where it is one of a value that the API server replaces as a whole.
func TestIgnoreFieldsOfOurs(t *testing.T) {
	w := newWorld(t)
	settings := strings.Replace(configMap("settings", "a"), "name: settings",
		"name: settings"+ignoring("/data/key"), 1)
	service := "{apiVersion: v1, kind: Service, metadata: {name: web" +
		ignoring("/spec/selector/app, /metadata/labels/example.com~1tier") +
		"}, spec: {ports: [{port: 80}], selector: {app: a, tier: web}}}"
	w.apply(apply.Options{}, settings, service)
	for _, next := range []string{strings.Replace(settings, `key: "a"`, `key: "b"`, 1),
		strings.Replace(settings, "data: {key", "data: {other", 1)} {
		w.apply(apply.Options{}, next,
			strings.Replace(service, "app: a, tier: web", "app: b, tier: back", 1))
		if got := field(w.get("v1", "ConfigMap", "settings"), "data", "key"); got != "a" {
			t.Errorf("the key has %v", got)
		}
	}
	selector := field(w.get("v1", "Service", "web"), "spec", "selector").(map[string]any)
	if selector["app"] != "a" || selector["tier"] != "back" {
		t.Errorf("the selector is %v", selector)
	}
	// So it does where that was all of its parent, and is somebody else's now.
	w.apply(apply.Options{}, settings, service)
	w.patch("v1", "ConfigMap", "settings", "somebody", `{"data":{"key":"theirs"}}`)
	w.expect(w.apply(apply.Options{}, settings, service), "unchanged ConfigMap NS/settings",
		"unchanged Service NS/web")
	before := w.writes.count()
	w.apply(apply.Options{}, settings, service)
	if all := w.writes.since(before); len(all) != 0 {
		t.Errorf("wrote %v", all)
	}
	if got := field(w.get("v1", "ConfigMap", "settings"), "data", "key"); got != "theirs" {
		t.Errorf("the key has %v", got)
	}
	// Without the annotation it is the package's again.
	w.apply(apply.Options{ForceConflicts: []string{"somebody"}}, configMap("settings", "c"), service)
	if got := field(w.get("v1", "ConfigMap", "settings"), "data", "key"); got != "c" {
		t.Errorf("the key has %v", got)
	}
}

// An object that is created again has its fields as the package says.
func TestIgnoreFieldsRecreate(t *testing.T) {
	w := newWorld(t)
	scaled := strings.Replace(web, "{name: web}", "{name: web"+ignoring("/spec/replicas")+"}", 1)
	w.apply(apply.Options{}, scaled)
	w.patch("apps/v1", "Deployment", "web", "scaler", `{"spec":{"replicas":7}}`, "scale")
	w.expect(w.apply(apply.Options{Recreate: true},
		strings.ReplaceAll(scaled, "app: web", "app: other")), "recreate Deployment NS/web")
	w.replicas(2)
}

// What cannot be ignored is an error with its place, before anything is written.
func TestIgnoreFieldsRefused(t *testing.T) {
	w := newWorld(t)
	for pointers, words := range map[string]string{
		"":                                       `"" is not a JSON pointer`,
		"spec.replicas":                          `"spec.replicas" is not a JSON pointer`,
		"/spec/replicas,":                        `"" is not a JSON pointer`,
		"/spec/a~2b":                             `"/spec/a~2b" is not a JSON pointer`,
		"/":                                      `"/" is not a JSON pointer`,
		"/metadata/name":                         "identifies the object or its owner",
		"/metadata/labels":                       "identifies the object or its owner",
		"/metadata/labels/armature.dev~1name":    "identifies the object or its owner",
		"/status/replicas":                       `"/status/replicas" is never applied`,
		"/spec/replicas/0":                       "is not a field of the object",
		"/spec/template/spec/containers/1/image": "is not a field of the object",
		"/spec/template/spec/containers/0":       "is not a field of the object",
		"/spec/template/spec/containers/web/image": "is not a field of the object",
	} {
		manifest := strings.Replace(web, "{name: web}", "{name: web"+ignoring(pointers)+"}", 1)
		for _, text := range []string{"refused Deployment " + w.Package.Namespace +
			"/web annotation armature.dev/ignore-fields: ", words} {
			w.refused(apply.Options{}, text, configMap("one", "a"), manifest)
		}
	}
}
