package source_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/source"
)

// folderOf renders a folder into another as the command does.
func folderOf(t *testing.T, from, to, remember string) (written int) {
	t.Helper()
	return folderBy(t, "build", "", from, to, remember)
}

// folderBy is folderOf by a build that records a version of its own.
func folderBy(t *testing.T, build, version, from, to, remember string) (written int) {
	t.Helper()
	src, _, err := source.Tree(from, to, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, _, err := source.FindConfig("", from)
	if err != nil {
		t.Fatal(err)
	}
	folder, err := source.NewFolder(to, false)
	if err != nil {
		t.Fatal(err)
	}
	opt := render.Options{Config: config, Version: version}
	var memory *source.Memory
	if remember != "" {
		memory = source.OpenMemory(remember, to)
		opt.Memory, _ = memory.Match(build, from, src, config, nil)
		opt.Keep = folder.Keep
	}
	findings, _, err := render.Stream(src, opt, folder.Write)
	if err != nil || krm.Failed(findings) {
		t.Fatal(err, findings, folder.Abort())
	}
	written, _, err = folder.Commit()
	if err != nil {
		t.Fatal(err)
	}
	if memory != nil {
		if err := memory.Save(src, folder); err != nil {
			t.Fatal(err)
		}
	}
	return written
}

func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(root, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == ".armature-files" {
			return err
		}
		data, err := os.ReadFile(name)
		relative, _ := filepath.Rel(root, name)
		all[relative] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

const remembered = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: %s
  labels: {kagenti.io/inject: enabled}
spec:
  template:
    spec:
      containers:
      - name: app
        image: example/%s:v1
`

const exchange = `apiVersion: kagenti.io/v1alpha1
kind: TokenExchange
metadata:
  name: auth
spec:
  targetRef: {kind: Deployment, name: two}
  inbound: {port: %d}
`

// TestMemoryOfAnotherBuild: what one build left is not up to date for another,
// whose defaults may differ.
func TestMemoryOfAnotherBuild(t *testing.T) {
	from, to, memory := t.TempDir(), filepath.Join(t.TempDir(), "out"), filepath.Join(t.TempDir(), "memory")
	if err := os.WriteFile(filepath.Join(from, "one.yaml"), fmt.Appendf(nil, remembered, "one", "one"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, build := range []string{"one", "two", "two", "one"} {
		time.Sleep(60 * time.Millisecond) // longer than what counts as just now
		folderBy(t, build, "v-"+build, from, to, memory)
		if text := tree(t, to)["one.yaml"]; !strings.Contains(text, "v-"+build) {
			t.Errorf("build %s leaves what another one rendered:\n%s", build, text)
		}
	}
}

// TestMemory changes a package step by step, and holds each render that
// remembers to one that knows nothing.
func TestMemory(t *testing.T) {
	from, to, memory := t.TempDir(), filepath.Join(t.TempDir(), "out"), filepath.Join(t.TempDir(), "memory")
	put := func(file, text string) {
		if err := os.WriteFile(filepath.Join(from, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"one", "two", "three"} {
		put(name+".yaml", fmt.Sprintf(remembered, name, name))
	}
	put("notes.txt", "no manifest\n")
	steps := []struct {
		name   string
		change func()
		// written is how many files the render has to write, -1 for any number.
		written int
	}{
		{"first", func() {}, 4},
		{"nothing", func() {}, 0},
		{"another image", func() { put("one.yaml", fmt.Sprintf(remembered, "one", "changed")) }, 1},
		{"text that is not a manifest", func() { put("notes.txt", "still none\n") }, 1},
		{"a custom resource for another file", func() { put("auth.yaml", fmt.Sprintf(exchange, 18080)) }, 2},
		{"the custom resource changes", func() { put("auth.yaml", fmt.Sprintf(exchange, 18081)) }, 2},
		{"nothing again", func() {}, 0},
		{"the custom resource goes", func() { os.Remove(filepath.Join(from, "auth.yaml")) }, 1},
		{"a namespace says no", func() {
			put("one.yaml", strings.Replace(fmt.Sprintf(remembered, "one", "one"), "  name: one\n", "  name: one\n  namespace: quiet\n", 1))
			put("ns.yaml", "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: quiet\n  labels: {kagenti.io/injection: disabled}\n")
		}, 2},
		{"the namespace changes its mind", func() {
			put("ns.yaml", "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: quiet\n  labels: {kagenti.io/injection: enabled}\n")
		}, 2},
		{"a workload goes", func() { os.Remove(filepath.Join(from, "three.yaml")) }, 0},
		{"a workload moves to another file", func() {
			os.Rename(filepath.Join(from, "two.yaml"), filepath.Join(from, "zwei.yaml"))
		}, 1},
		{"somebody wrote into the output", func() {
			if err := os.WriteFile(filepath.Join(to, "zwei.yaml"), []byte("tampered: true\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}, 1},
		{"an object that others may name", func() {
			put("zz.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: new\n")
		}, 1},
		{"a custom resource for a workload that was not read then", func() {
			put("zz-auth.yaml", fmt.Sprintf(exchange, 18082))
		}, 2},
		{"somebody removed an output", func() { os.Remove(filepath.Join(to, "one.yaml")) }, 1},
		{"the configuration", func() {
			put("armature.yaml", "apiVersion: armature.dev/v1alpha1\nkind: RenderConfig\nmetadata:\n  name: c\nspec:\n  sidecars: classic\n")
		}, -1},
		{"a state that cannot be read", func() {
			if err := os.WriteFile(memory, []byte("armature 1\t1\t\nx\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			put("zwei.yaml", fmt.Sprintf(remembered, "two", "again"))
		}, 1},
	}
	for _, step := range steps {
		time.Sleep(60 * time.Millisecond) // longer than what counts as just now
		step.change()
		time.Sleep(60 * time.Millisecond)
		written := folderOf(t, from, to, memory)
		if step.written >= 0 && written != step.written {
			t.Errorf("%s: %d files written, want %d", step.name, written, step.written)
		}
		fresh := filepath.Join(t.TempDir(), "fresh")
		folderOf(t, from, fresh, "")
		got, want := tree(t, to), tree(t, fresh)
		for file := range want {
			if got[file] != want[file] {
				t.Errorf("%s: %s is not as a fresh render makes it", step.name, file)
			}
		}
		for file := range got {
			if _, ok := want[file]; !ok {
				t.Errorf("%s: %s should be gone", step.name, file)
			}
		}
	}
}

// TestMemoryOfTexts: what is made of a text in another file follows the text.
func TestMemoryOfTexts(t *testing.T) {
	from, to, memory := t.TempDir(), filepath.Join(t.TempDir(), "out"), filepath.Join(t.TempDir(), "memory")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(from, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("agent.yaml", `apiVersion: kagent.dev/v1alpha2
kind: ModelConfig
metadata: {name: m}
spec: {model: m}
---
apiVersion: kagent.dev/v1alpha2
kind: Agent
metadata: {name: a}
spec:
  declarative:
    modelConfig: m
    systemMessage: '{{include "texts/rule"}}'
    promptTemplate: {dataSources: [{name: texts}]}
`)
	for _, rule := range []string{"Be brief", "Be exact"} {
		write("texts.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: texts}\ndata: {rule: "+rule+"}\n")
		time.Sleep(60 * time.Millisecond) // longer than what counts as just now
		folderOf(t, from, to, memory)
		if text := tree(t, to)["agent.yaml"]; !strings.Contains(text, rule) {
			t.Errorf("does not say %q:\n%s", rule, text)
		}
	}
}
