package krm_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/functions/krm"
)

// read returns the object of a text, or of a list item if the text starts with a dash.
func read(t *testing.T, text string) *krm.Object {
	t.Helper()
	o := new(krm.Object)
	isObject, err := o.Read([]byte(text), krm.Document{End: len(text)},
		strings.HasPrefix(text, "- "), krm.Origin{File: "x.yaml", Line: 1})
	if err != nil || !isObject {
		t.Fatalf("%v\n%s", err, text)
	}
	return o
}

// set sets a CPU request and an image in every container, and an annotation of its pods.
func set(t *testing.T, text string) string {
	t.Helper()
	o := read(t, text)
	pod, ok := o.PodTemplate()
	if !ok {
		t.Fatal("no pod template")
	}
	c := krm.Changes{Version: "v1"}
	for container := range pod.Spec().Get("containers").Items() {
		c.Set("overcommit", container, []string{"resources", "requests"}, "cpu", "20m")
		c.Set("overcommit", container, []string{"resources", "requests"}, "memory", "1Mi")
		c.Set("pin-images", container, nil, "image", "web@sha256:0123")
	}
	c.Set("overcommit", pod.Template, []string{"metadata", "annotations"},
		"overcommit.inditex.dev/cpu", `"0.2000"`)
	if err := c.Apply(o); err != nil {
		t.Fatal(err)
	}
	return string(o.Append(nil))
}

func revert(t *testing.T, text string) string {
	t.Helper()
	o := read(t, text)
	was, original, _, err := krm.Revert(o)
	if err != nil || !was {
		t.Fatalf("%t %v\n%s", was, err, text)
	}
	if original != nil {
		return string(original)
	}
	return string(o.Append(nil))
}

const head = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\n"

// TestChangesRevert sets fields in every layout and takes them back.
func TestChangesRevert(t *testing.T) {
	deployment := func(pod string) string {
		return head + "spec:\n  template:\n" + strings.ReplaceAll("\n"+pod, "\n", "\n    ")[1:] + "\n"
	}
	layouts := map[string]string{
		"nothing there": deployment("spec:\n  containers:\n  - name: web"),
		"all there": deployment("metadata:\n  annotations:\n" +
			"    overcommit.inditex.dev/cpu: '1'\nspec:\n  containers:\n  - name: web\n" +
			"    image: \"web:latest\" # ours\n    resources:\n      requests:\n" +
			"        cpu: 100m # guessed\n        memory: '64Mi'\n      limits: {cpu: 1}"),
		"some there": deployment("metadata:\n  labels: {app: web}\nspec:\n  containers:\n" +
			"  - name: web\n    image: web\n    resources:\n      limits:\n        cpu: 1\n" +
			"      requests:\n        # of memory\n        memory: 64Mi"),
		"flow": deployment("metadata: {labels: {app: web}}\nspec:\n  containers:\n" +
			"  - {name: web, image: web, resources: {limits: {cpu: 1}, requests: {cpu: 100m}}}"),
		"empty": deployment("metadata: {}\nspec:\n  containers:\n  - name: web\n" +
			"    resources:\n      requests: {} # none\n      limits: {cpu: 1}"),
		"null": deployment("metadata:\n  annotations:\nspec:\n  containers:\n" +
			"  - name: web\n    image:\n    resources:\n      requests: # none\n" +
			"      limits: {cpu: 1}"),
		"null values": deployment("spec:\n  containers:\n  - name: web\n    image: ~\n" +
			"    resources:\n      requests:\n        cpu: # later\n        memory: null"),
		"annotations": strings.Replace(deployment("spec:\n  containers:\n  - name: web"),
			"  name: web\n", "  name: web\n  annotations: {}\n", 1),
		"annotations two": strings.Replace(deployment("spec:\n  containers:\n  - name: web"),
			"  name: web\n", "  annotations:\n    a: b\n  name: web\n", 1),
		"pod": "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n" +
			"  - name: web\n",
		"pod annotations": "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n" +
			"  annotations: # none\nspec:\n  containers:\n  - name: web\n",
		"two containers": deployment(
			"spec:\n  containers:\n  - name: web\n  - name: it's\n    resources: {}\n  volumes: []"),
		"json": `{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"template": {"spec": {"containers": [{"name": "web", "resources": {"requests": {"cpu": "1"}}}, {"name": "b"}]}}}}` + "\n",
		"folded": deployment(
			"spec:\n  containers:\n  - name: web\n    image: \"web:\\\n      latest\""),
		"anchors": deployment("spec:\n  containers:\n  - name: web\n    resources: &r\n" +
			"      requests: {cpu: 1}\n  - name: b\n    resources: *r"),
		"item": "- apiVersion: v1\n  kind: Pod\n  metadata:\n    name: web\n  spec:\n" +
			"    containers:\n    - name: web\n      image: web\n",
	}
	for name, text := range layouts {
		for _, style := range []string{"", "crlf", "unended"} {
			t.Run(name+style, func(t *testing.T) {
				switch style {
				case "crlf":
					text = strings.ReplaceAll(text, "\n", "\r\n")
				case "unended":
					text = strings.TrimSuffix(text, "\n")
				}
				changed := set(t, text)
				o := read(t, changed)
				pod, _ := o.PodTemplate()
				for c := range pod.Spec().Get("containers").Items() {
					if have := fmt.Sprint(c.Get("image").Text(),
						c.Get("resources", "requests", "cpu").Text(),
						c.Get("resources", "requests", "memory").Text()); have !=
						"web@sha256:012320m1Mi" {
						t.Errorf("%s was set\n%s", have, changed)
					}
				}
				if v, _ := pod.Annotation("overcommit.inditex.dev/cpu"); v != "0.2000" {
					t.Errorf("annotation %q\n%s", v, changed)
				}
				if diff := cmp.Diff(text, revert(t, changed)); diff != "" {
					t.Errorf("-author +reverted\n%s\nchanged:\n%s", diff, changed)
				}
			})
		}
	}
}

// TestChangesTheirs keeps values that were edited since.
func TestChangesTheirs(t *testing.T) {
	text := head +
		"spec:\n  template:\n    spec:\n      containers:\n      - name: web\n" +
		"        image: web:v1\n        resources:\n          requests:\n            cpu: 1\n"
	changed := strings.Replace(set(t, text), "image: web@sha256:0123", "image: web:v2", 1)
	changed = strings.Replace(changed, "            memory: 1Mi\n", "            memory: 2Mi\n", 1)
	changed = strings.Replace(changed, "- name: web\n", "- name: other\n      - name: web\n", 1)
	want := strings.Replace(text, "web:v1", "web:v2", 1)
	want = strings.Replace(want, "cpu: 1\n", "cpu: 1\n            memory: 2Mi\n", 1)
	want = strings.Replace(want, "- name: web\n", "- name: other\n      - name: web\n", 1)
	if diff := cmp.Diff(want, revert(t, changed)); diff != "" {
		t.Errorf("-want +reverted\n%s", diff)
	}
}

// TestChangesNothing leaves an object alone that has the values already.
func TestChangesNothing(t *testing.T) {
	text := head +
		"spec:\n  template:\n    spec:\n      containers:\n      - name: web\n        resources:\n" +
		"          requests:\n            cpu: '20m'\n"
	o := read(t, text)
	pod, _ := o.PodTemplate()
	var c krm.Changes
	for container := range pod.Spec().Get("containers").Items() {
		c.Set("overcommit", container, []string{"resources", "requests"}, "cpu", "20m")
	}
	if err := c.Apply(o); err != nil || c.Any() || o.Edited() {
		t.Errorf("%v %t %t", err, c.Any(), o.Edited())
	}
}

// TestSettle names the author's lines after inserted lines.
func TestSettle(t *testing.T) {
	o := read(t,
		head+
			"spec:\n  template:\n    spec:\n      containers:\n      - name: web\n"+
			"        image: web\n")
	pod, _ := o.PodTemplate()
	if _, err := o.Insert(pod.Spec(), []string{"containers"},
		[]byte("- name: sidecar\n  image: s\n"), true); err != nil {
		t.Fatal(err)
	}
	var settled krm.Object
	if _, err := settled.Settle(o, nil); err != nil {
		t.Fatal(err)
	}
	pod, _ = settled.PodTemplate()
	var lines []int
	for c := range pod.Spec().Get("containers").Items() {
		lines = append(lines, c.Get("image").Line())
	}
	if diff := cmp.Diff([]int{8, 10}, lines); diff != "" {
		t.Errorf("lines: -want +have\n%s", diff)
	}
}

// TestRemoveBesideTheDash: kustomize sorts fields, so that an injected field may follow the dash of
// an item. When it is removed, the next field takes its place, if that stays.
func TestRemoveBesideTheDash(t *testing.T) {
	const before = head + "spec:\n  containers:\n"
	for text, want := range map[string]string{
		"  - env:\n    - {name: PORT, value: \"1\"}\n    image: web\n    name: web\n": "  - " +
			"image: web\n    name: web\n",
		"  -   env: []\n      image: web\n":                 "  -   image: web\n",
		"  - image: web\n    env: []\n":                     "  - image: web\n",
		"  - env: []\n    # of the image\n    image: web\n": "",
		"  - env: []\n    args: []\n    image: web\n":       "",
		"  - env: []\n": "",
	} {
		for _, apart := range []bool{false, true} {
			o := read(t, before+text)
			var err error
			for c := range o.Get("spec", "containers").Items() {
				if apart {
					if err = o.RemoveField(c.Get("env")); err == nil {
						err = o.RemoveField(c.Get("args"))
					}
				} else {
					_, err = o.Remove(c,
						func(n krm.Node) bool { return n.Key() == "env" || n.Key() == "args" })
				}
			}
			got := strings.TrimPrefix(string(o.Append(nil)), before)
			if want == "" && !errors.Is(err, krm.ErrUncertain) ||
				want != "" && (err != nil || got != want) {
				t.Errorf("%s: %q, %v, want %q", text, got, err, want)
			}
		}
	}
}
