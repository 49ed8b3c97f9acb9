package lint_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/lint"
)

const overcommitAll = `apiVersion: overcommit.inditex.dev/v1alpha1
kind: Overcommit
metadata: {name: cluster}
spec: {overcommitLabel: example.com/class}
---
apiVersion: overcommit.inditex.dev/v1alpha1
kind: OvercommitClass
metadata: {name: all}
spec: {cpuOvercommit: 0.5, memoryOvercommit: 0.5, isDefault: true, excludedNamespaces: ""}
`

const plainAgent = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: NAME
  labels:
    kagenti.io/inject: INJECT
spec:
  selector:
    matchLabels:
      app: NAME
  template:
    metadata:
      labels:
        app: NAME
    spec:
      containers:
      - name: agent
        image: example/agent:v1
        resources:
          requests: {cpu: 300m}
          limits: {cpu: "1"}
`

// TestContestedFields: overcommit changes requests of sidecars that inject has
// set. The finding is at the first workload of those that are alike, and at the
// first of another shape where that has other fields; what an author wrote and
// one function changes is contested nowhere.
func TestContestedFields(t *testing.T) {
	agent := func(name, inject string) string {
		return strings.NewReplacer("NAME", name, "INJECT", inject).Replace(plainAgent)
	}
	nightly := agent("nightly", "enabled")
	_, template, _ := strings.Cut(nightly, "  template:\n")
	template = strings.Replace(template, "    spec:\n", "    spec:\n      restartPolicy: Never\n", 1)
	cron := strings.Replace(nightly[:strings.Index(nightly, "spec:\n")],
		"apps/v1\nkind: Deployment", "batch/v1\nkind: CronJob", 1) +
		"spec:\n  schedule: 0 3 * * *\n  jobTemplate:\n    spec:\n      template:\n        " +
		strings.ReplaceAll(strings.TrimSpace(template), "\n", "\n    ") + "\n"
	src := render.Source{Files: []render.File{
		{Path: "a.yaml", Data: []byte(agent("a", "enabled"))},
		{Path: "alike.yaml", Data: []byte(agent("alike", "enabled"))},
		{Path: "nightly.yaml", Data: []byte(cron)},
		{Path: "overcommit.yaml", Data: []byte(overcommitAll)},
		{Path: "plain.yaml", Data: []byte(agent("plain", "disabled"))},
	}}
	findings, _, err := lint.Run(src, render.Options{})
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]int)
	for _, f := range findings {
		if f.Rule == "lint/contested-field" {
			files[f.File]++
			if strings.Contains(f.Field, "[agent]") {
				t.Errorf("only overcommit changes what the author wrote: %s", f)
			}
		}
	}
	if want := map[string]int{"a.yaml": files["a.yaml"],
		"nightly.yaml": files["a.yaml"]}; files["a.yaml"] == 0 || !maps.Equal(files, want) {
		t.Errorf("contested fields by file: %v, want %v", files, want)
	}
}
