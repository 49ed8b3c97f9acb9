package lint_test

import (
	"fmt"
	"testing"

	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/lint"
)

// TestKustomizationsOnTopOfEachOther: each layer names the one below twice. All
// of them are looked at once, down to the depth that is followed.
func TestKustomizationsOnTopOfEachOther(t *testing.T) {
	for _, test := range []struct{ depth, findings int }{{20, 0}, {60, 1}} {
		files := []render.File{{Path: "0/web.yaml", Data: []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - {name: app, image: 'app@sha256:1', envFrom: [{configMapRef: {name: settings}}]}\n")}}
		add := func(i int, text string) {
			files = append(files, render.File{Path: fmt.Sprintf("%d/kustomization.yaml", i), Data: []byte(text)})
		}
		add(0, "resources: [web.yaml]\n")
		for i := 1; i < test.depth; i++ {
			add(i, fmt.Sprintf("resources: [../%d, ../%d/../%d]\n", i-1, i, i-1))
		}
		add(test.depth, fmt.Sprintf("resources: [../%d]\nconfigMapGenerator: [{name: settings}]\n", test.depth-1))
		findings, _, err := lint.Run(render.Source{Files: files}, render.Options{})
		if err != nil {
			t.Fatal(err)
		}
		missing := 0
		for _, f := range findings {
			if f.Rule == "lint/missing-configmap" {
				missing++
			}
		}
		if missing != test.findings {
			t.Errorf("%d layers: %d findings, want %d: %v", test.depth, missing, test.findings, findings)
		}
	}
}

// TestBrokenKustomization: what cannot be read as a kustomization brings nothing.
func TestBrokenKustomization(t *testing.T) {
	src := render.Source{Files: []render.File{
		{Path: "kustomization.yaml", Data: []byte("resources: {web.yaml: 1}\nconfigMapGenerator: [{name: settings}]\n")},
		{Path: "web.yaml", Data: []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - {name: app, image: 'app@sha256:1', envFrom: [{configMapRef: {name: settings}}]}\n")},
	}}
	findings, _, err := lint.Run(src, render.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		if f.Rule == "lint/missing-configmap" {
			return
		}
	}
	t.Errorf("no finding on the missing ConfigMap: %v", findings)
}
