package resources

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/text"
)

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

// Only what a person or program set beside the last apply is drift.
func TestDrift(t *testing.T) {
	u := object(t, `
metadata:
  managedFields:
  - {manager: armature, operation: Apply, fieldsV1: {"f:spec": {"f:paused": {}}}}
  - {manager: kubectl-edit, operation: Update, time: "2026-01-13T17:00:00Z", fieldsV1: {"f:spec": {"f:template": {"f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {"f:image": {}}}}}}, "f:metadata": {"f:labels": {"f:x": {}}}}}
  - {manager: kubectl, operation: Update, subresource: scale, fieldsV1: {"f:spec": {"f:replicas": {}}}}
  - {manager: kube-controller-manager, operation: Update, fieldsV1: {"f:spec": {"f:x": {}}}}
  - {manager: broken, operation: Update, fieldsV1: {"f:spec": 7}}
  - {manager: gone, operation: Update, fieldsV1: {"f:spec": {"f:list": {"k:{\"name\":\"z\"}": {"f:v": {}}}, "f:set": {"v:\"finalizer\"": {}}}}}
spec: {paused: true, replicas: 3, template: {spec: {containers: [{name: b, image: other}, {name: a, image: "new\u202e"}]}}}
`)
	var got []string
	for _, d := range DriftOf(u) {
		got = append(got, d.Manager+" "+d.Field+" = "+d.Value)
	}
	want := []string{`kubectl-edit spec.template.spec.containers[name="a"].image = new\u202e`,
		`gone spec.list[name="z"].v = null`, `gone spec.set[="finalizer"] = finalizer`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	u.SetManagedFields(u.GetManagedFields()[1:])
	if d := DriftOf(u); d != nil {
		t.Errorf("an object that was not applied drifts: %v", d)
	}
}

// Where pods may connect to, by the policies that select them.
func TestEgress(t *testing.T) {
	workload := object(t, `{spec: {template: {metadata: {labels: {app: a}}}}}`)
	for name, c := range map[string]struct {
		policies string
		want     []string
	}{
		"none": {`[]`, nil},
		"of others": {`[{spec: {podSelector: {matchLabels: {app: b}}, policyTypes: [Egress]}}]`,
			nil},
		"of ingress": {`[{spec: {podSelector: {}, policyTypes: [Ingress]}}]`, nil},
		"nowhere":    {`[{spec: {podSelector: {}, policyTypes: [Egress]}}]`, []string{"nowhere"}},
		"both": {
			`[{spec: {podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: 443}]}]}}, {spec: {podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}, {namespaceSelector: {}, podSelector: {matchLabels: {k8s-app: dns}}}]}]}}]`,
			[]string{"10.0.0.0/8 except 10.1.0.0/16", "anywhere, port 443",
				"pods k8s-app=dns in namespaces all"}},
	} {
		var policies []networkingv1.NetworkPolicy
		if err := yaml.UnmarshalStrict([]byte(c.policies), &policies); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, Egress(workload, policies)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// A schema that never ends, or that is none, yields what can be shown of it, the same each time.
func TestParams(t *testing.T) {
	deep := `{"type":"object","properties":{"a":` +
		strings.Repeat(`{"type":"object","properties":{"a":`, 50) + `{}` +
		strings.Repeat(`}}`, 50) + `}}`
	wide := `{"properties":{`
	for i := range 100 {
		wide += `"p` + strings.Repeat("x", i) +
			`":{"type":["string","null"],"minimum":1,"maximum":9},`
	}
	wide = strings.TrimSuffix(wide, ",") + `}}`
	for name, c := range map[string]struct {
		text        string
		shown, left int
	}{
		"deep": {deep, 1, 0}, "wide": {wide, 60, 40},
		"no object": {`{"properties":7,"required":{"a":1}}`, 0, 0},
		"odd": {
			`{"properties":{"a":7,"b":null,"c":{"enum":7,"items":7,"type":{},"anyOf":[1]}}}`, 3, 0},
		"null": {`null`, 0, 0},
	} {
		var schema map[string]any
		if err := json.Unmarshal([]byte(c.text), &schema); err != nil {
			t.Fatal(err)
		}
		got, left := Params(schema)
		if len(got) != c.shown || left != c.left {
			t.Errorf("%s: %d parameters and %d more", name, len(got), left)
		}
		for range 10 {
			again, _ := Params(schema)
			if diff := cmp.Diff(got, again); diff != "" {
				t.Fatalf("%s: another time it is %s", name, diff)
			}
		}
	}
}

// What rendering added is shown whole, from a workload or a CronJob, and a record that is not one
// is nothing.
func TestAddedBy(t *testing.T) {
	const record = `{"initContainers":["helper","gone"],"volumes":["v"],"mounts":["agent"],"paths":{"agent":["/opt"]},"env":{"agent":["A"]},"podAnnotations":["x/y"],"fields":[{"at":"serviceAccountName","value":"b","was":"a"}]}`
	const template = `{metadata: {annotations: {x/y: "1"}}, spec: {initContainers: [{name: helper, image: h:1}], volumes: [{name: v, emptyDir: {}}, 7], containers: [{name: agent, env: [{name: A, value: "1"}], volumeMounts: [{name: v, mountPath: /opt}]}]}}`
	want := []Added{
		{"annotation of pods", "x/y", "", "inject", `"1"`}, {"init container", "helper", "",
			"inject", "image: h:1\nname: helper"}, {"init container", "gone", "", "inject", ""},
		{"mount of container agent", "/opt", "", "inject", "mountPath: /opt\nname: v"},
		{"mount of the trace's configuration", "agent", "", "inject", ""},
		{"serviceAccountName", "b", "a", "inject", ""},
		{"variable of container agent", "A", "", "inject", "name: A\nvalue: \"1\""},
		{"volume", "v", "", "inject", "emptyDir: {}\nname: v"},
	}
	for _, spec := range []string{`{template: ` + template + `}`,
		`{jobTemplate: {spec: {template: ` + template + `}}}`} {
		u := object(t, `{metadata: {name: a}, spec: `+spec+`}`)
		u.SetAnnotations(map[string]string{keys.Injected: record})
		if diff := cmp.Diff(want, AddedBy(u)); diff != "" || !Rendered(u) {
			t.Error(diff)
		}
	}
	for _, record := range []string{"", "7", `{"env":7}`,
		`{"initContainers":["` + strings.Repeat(`x","`, 1000) + `"]}`} {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": 7}}
		u.SetAnnotations(map[string]string{keys.Injected: record, keys.Changed: "7"})
		if got := AddedBy(u); len(got) > maxAdded {
			t.Errorf("%.20s: %d parts", record, len(got))
		}
	}
}

// What a record or the fields of a manager may hold decides neither the memory nor the time that
// showing it takes.
func TestLargeRecords(t *testing.T) {
	const size = 234 << 10 // of an object's annotations
	fill := func(begin, unit, end string, size int) string {
		return begin + strings.Repeat(unit, size/len(unit)) + end
	}
	large := strings.Repeat("x", 200<<10)
	deployment := func() *unstructured.Unstructured {
		container := map[string]any{"name": "a", "args": []any{large},
			"env": []any{map[string]any{"name": "A", "value": large}}}
		return &unstructured.Unstructured{
			Object: map[string]any{
				"spec": map[string]any{
					"template": map[string]any{
						"spec": map[string]any{"initContainers": []any{container},
							"containers": []any{container}}}}}}
	}
	measure := func(what string, look func() int) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		n := look()
		runtime.ReadMemStats(&after)
		mib := (after.TotalAlloc - before.TotalAlloc) >> 20
		t.Logf("%s: %d MiB, %d parts", what, mib, n)
		if mib > 64 || n == 0 || n > maxAdded {
			t.Errorf("%s: %d MiB were allocated for %d parts", what, mib, n)
		}
	}
	for _, size := range []int{size, maxRecord - 100} {
		for what, record := range map[string]string{
			"one container many times": fill(`{"initContainers":["a"`, `,"a"`, `]}`, size),
			"one variable many times":  fill(`{"env":{"a":["A"`, `,"A"`, `]}}`, size),
			"empty fields":             fill(`{"fields":[{}`, `,{}`, `]}`, size),
		} {
			u := deployment()
			u.SetAnnotations(map[string]string{keys.Injected: record})
			measure(what, func() int { return len(AddedBy(u)) })
		}
		for what, record := range map[string]string{
			"many changes": fill(`{"changes":[{"set":[{}]}`, `,{"set":[{}]}`, `]}`, size),
			"a long path": fill(`{"changes":[{"at":["`+strings.Repeat("x", size/2)+`"],"set":[{}`,
				`,{}`, `]}]}`, size/2-100),
		} {
			u := deployment()
			u.SetAnnotations(map[string]string{keys.Changed: record})
			measure(what, func() int { return len(AddedBy(u)) })
		}
	}
	u := deployment()
	var set strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&set, `,"f:%x":{}`, i)
	}
	fields := new(metav1.FieldsV1)
	fields.SetRawString(`{"f:spec":{` + set.String()[1:] + `}}`)
	u.SetManagedFields([]metav1.ManagedFieldsEntry{
		{Manager: "armature", Operation: "Apply", FieldsV1: fields},
		{Manager: "somebody", Operation: "Update", FieldsV1: fields},
	})
	measure("fields of a manager", func() int { return len(DriftOf(u)) })
}

// Commands to copy quote what others wrote, and links lead to forges alone.
func TestCall(t *testing.T) {
	for in, want := range map[string]string{"http://a.b:80/c": "http://a.b:80/c", "a b": "'a b'",
		"'; rm -rf ~; '": `''\''; rm -rf ~; '\'''`, "$(x)": "'$(x)'", "a\nb": "'a\nb'"} {
		if got := text.Quote(in); got != want {
			t.Errorf("%q is quoted as %s, want %s", in, got, want)
		}
	}
	for _, c := range [][5]string{
		{"https://github.com/a/b.git", "commit", "0123", "", "https://github.com/a/b/commit/0123"},
		{"github.com/a/b", "blob", "main", "x/y z.yaml",
			"https://github.com/a/b/blob/main/x/y%20z.yaml"},
		{"https://gitlab.com/a/b", "tree", "main", "x/", "https://gitlab.com/a/b/-/tree/main/x"},
		{"https://codeberg.org/a/b", "blob", "main", "x",
			"https://codeberg.org/a/b/src/branch/main/x"},
		{"javascript:alert(1)", "commit", "1", "", ""}, {"https://user:secret@github.com/a/b",
			"commit", "1", "", ""}, {"https://github.com/a/b", "commit", "", "", ""},
	} {
		if got := ForgeLink(c[0], c[1], c[2], c[3]); got != c[4] {
			t.Errorf("%v leads to %q", c[:4], got)
		}
	}
}

// A failed build leads to the line of its Dockerfile at the commit that was built, and to nothing
// else.
func TestSourceLine(t *testing.T) {
	const commit = "77de0c1fa9b8e7d6c5b4a3928170615243342516"
	for _, c := range [][4]string{
		{"step build: Dockerfile:7: RUN make: no rule", "github.com/a/b.git",
			"https://github.com/a/b/blob/" + commit + "/svc/Dockerfile#L7", "Dockerfile:7"},
		{"build/prod.Dockerfile:12: COPY x y: not found", "https://gitlab.com/a/b",
			"https://gitlab.com/a/b/-/blob/" + commit + "/svc/build/prod.Dockerfile#L12",
			"build/prod.Dockerfile:12"},
		{"Containerfile:1: FROM x: not found", "https://codeberg.org/a/b",
			"https://codeberg.org/a/b/src/commit/" + commit + "/svc/Containerfile#L1",
			"Containerfile:1"},
		{"../../Dockerfile:7: x", "github.com/a/b", "", ""},
		{"registry.example:5000: connection refused", "github.com/a/b", "", ""},
		{"Dockerfile:7: x", "javascript:alert(1)", "", ""},
		{"Dockerfile: x", "github.com/a/b", "", ""},
	} {
		if link, place := SourceLine(c[0], c[1], commit, "svc"); link != c[2] || place != c[3] {
			t.Errorf("%q leads to %q at %q", c[0], place, link)
		}
	}
	if link, _ := SourceLine("Dockerfile:7: x", "github.com/a/b", "", ""); link != "" {
		t.Errorf("without a commit, it leads to %s", link)
	}
}
