package lint_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/lint"
	"github.com/armature-dev/armature/render/source"
)

const lonelyPod = "apiVersion: v1\nkind: Pod\nmetadata: {name: NAME}\n" +
	"spec: {serviceAccountName: nobody, containers: [{name: app, image: 'app@sha256:1'}]}\n"

// lintedFolder returns what lint finds in files of a folder of its own, by rule.
func lintedFolder(t *testing.T, files map[string]string) map[string][]finding.Finding {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		write(t, filepath.Join(root, "app", name), text)
	}
	src, _, err := source.Tree(filepath.Join(root, "app"), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	findings, _, err := lint.Run(src, render.Options{})
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string][]finding.Finding)
	for _, f := range findings {
		found[strings.TrimPrefix(f.Rule,
			"lint/")] = append(found[strings.TrimPrefix(f.Rule, "lint/")], f)
	}
	return found
}

// TestBuildIsBounded: kustomizations that name the one below many times, and more
// objects than kustomize builds in good time, are findings.
func TestBuildIsBounded(t *testing.T) {
	layers := map[string]string{"0/kustomization.yaml": "resources: [web.yaml]\n",
		"0/web.yaml": strings.ReplaceAll(lonelyPod, "NAME", "web")}
	for i := 1; i < 30; i++ {
		layers[fmt.Sprintf("%d/a/kustomization.yaml",
			i)] = fmt.Sprintf("namePrefix: a-\nresources: [../../%d]\n", i-1)
		layers[fmt.Sprintf("%d/b/kustomization.yaml",
			i)] = fmt.Sprintf("namePrefix: b-\nresources: [../../%d]\n", i-1)
		layers[fmt.Sprintf("%d/kustomization.yaml", i)] = "resources: [a, b]\n"
	}
	var many strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&many, "%s---\n", strings.ReplaceAll(lonelyPod, "NAME", fmt.Sprint("web-", i)))
	}
	for name, files := range map[string]map[string]string{
		"layers":  layers,
		"objects": {"kustomization.yaml": "resources: [web.yaml]\n", "web.yaml": many.String()},
	} {
		found := lintedFolder(t, files)
		if f := found["kustomize-build"]; len(f) != 1 ||
			!strings.Contains(f[0].Message, "more than") {
			t.Errorf("%s: %v", name, f)
		}
		if f := found["dangling-reference"]; len(f) != 0 {
			t.Errorf("%s: judged although it was not built: %v", name, f[0])
		}
	}
}

// TestBaseOutsideOfTheFolder: a kustomization may build upon a folder beside the one
// that is linted. What is found there is nothing of this folder's.
func TestBaseOutsideOfTheFolder(t *testing.T) {
	found := lintedFolder(t, map[string]string{
		"kustomization.yaml":         "namePrefix: my-\nresources: [../base, web.yaml]\n",
		"web.yaml":                   strings.ReplaceAll(lonelyPod, "NAME", "web"),
		"../base/kustomization.yaml": "resources: [account.yaml]\n",
		"../base/account.yaml": "apiVersion: v1\nkind: ServiceAccount\n" +
			"metadata: {name: nobody}\n---\n" +
			strings.ReplaceAll(strings.ReplaceAll(lonelyPod, "NAME", "other"), "nobody", "missing"),
	})
	if len(found["kustomize-build"])+len(found["dangling-reference"]) > 0 {
		t.Error(found)
	}
}

// TestVariantsAndNeighbours: a root may refer to what another one builds, unless the
// two build the same files, one in the place of the other.
func TestVariantsAndNeighbours(t *testing.T) {
	account := "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: nobody}\n"
	web := strings.ReplaceAll(lonelyPod, "NAME", "web")
	if found := lintedFolder(t, map[string]string{
		"a/kustomization.yaml": "resources: [web.yaml]\n", "a/web.yaml": web,
		"b/kustomization.yaml": "resources: [account.yaml]\n", "b/account.yaml": account,
	}); len(found["dangling-reference"]) > 0 {
		t.Error("neighbours: ", found)
	}
	found := lintedFolder(t, map[string]string{
		"base/kustomization.yaml": "resources: [web.yaml]\n", "base/web.yaml": web,
		"a/kustomization.yaml": "resources: [../base]\n",
		"b/kustomization.yaml": "resources: [../base, account.yaml]\n", "b/account.yaml": account,
	})
	if f := found["dangling-reference"]; len(f) != 1 || f[0].File != "base/web.yaml" ||
		!strings.Contains(f[0].Hint, "a/kustomization.yaml builds it") {
		t.Error("variants: ", found)
	}
}

// TestExcludedKustomization: exclude keeps lint from building a kustomization.
func TestExcludedKustomization(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "old", "kustomization.yaml"), "resources: [missing.yaml]\n")
	config, findings := render.ReadConfig(
		[]byte(
			"apiVersion: armature.dev/v1alpha1\nkind: RenderConfig\nspec: {exclude: ['old/**']}\n"),
		"armature.yaml")
	src, _, err := source.Tree(root, "", nil)
	if err != nil || len(findings) > 0 {
		t.Fatal(findings, err)
	}
	if findings, _, err = lint.Run(src, render.Options{Config: config}); err != nil || len(findings) > 0 {
		t.Error(findings, err)
	}
}

// TestPatchIsAFile: the path of a patch may lead to a pipe, from which a read would never return.
func TestPatchIsAFile(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "kustomization.yaml"),
		"resources: [web.yaml]\npatches: [{path: patch.txt}]\n")
	write(t, filepath.Join(root, "web.yaml"), strings.ReplaceAll(lonelyPod, "NAME", "web"))
	if err := syscall.Mkfifo(filepath.Join(root, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("pipe", filepath.Join(root, "patch.txt")); err != nil {
		t.Fatal(err)
	}
	src, _, err := source.Tree(root, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, _, err := lint.Run(src, render.Options{})
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("no answer after 20 s")
	}
}

// TestFieldsInOtherCase: the API server does not take initcontainers for initContainers, whose
// items are still checked.
func TestFieldsInOtherCase(t *testing.T) {
	lintedFolder(t, map[string]string{"ns.yaml": "apiVersion: v1\nkind: Namespace\nmetadata:\n" +
		"  name: a\n  labels: {pod-security.kubernetes.io/enforce: baseline}\n",
		"pod.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: a}\nspec:\n" +
			"  initContainers: [{name: i, image: i}]\n  initcontainers: []\n" +
			"  containers: [{name: c, image: c}]\n"})
}
