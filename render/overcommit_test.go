package render_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render"
)

// halves is a class that changes every workload with limits.
const halves = `apiVersion: overcommit.inditex.dev/v1alpha1
kind: Overcommit
metadata: {name: cluster}
spec: {overcommitLabel: class}
---
apiVersion: overcommit.inditex.dev/v1alpha1
kind: OvercommitClass
metadata: {name: half}
spec: {cpuOvercommit: 0.5, memoryOvercommit: 0.5, isDefault: true}
`

// TestOvercommitRoundTrip holds overcommit to the contract of injection over files of many styles:
// a second render changes nothing, and uninject restores the author's bytes.
func TestOvercommitRoundTrip(t *testing.T) {
	t.Parallel()
	seeds, changed := uint64(200), 0
	if testing.Short() {
		seeds = 60
	}
	for seed := range seeds {
		file, _ := manifest(seed)
		src := render.Source{Files: []render.File{{Path: "class.yaml", Data: []byte(halves)},
			{Path: "x.yaml", Data: []byte(file)}}}
		opt := render.Options{Config: config(t, small)}
		first, err := render.Run(src, opt)
		if err != nil || finding.Failed(first.Findings) {
			t.Fatalf("seed %d: %v %v\n%s", seed, err, first.Findings, file)
		}
		again := render.Source{Files: first.Files}
		second, err := render.Run(again, opt)
		if err != nil || finding.Failed(second.Findings) {
			t.Fatalf("seed %d: the second render: %v %v\n%s", seed, err, second.Findings,
				first.Files[1].Data)
		}
		for i, f := range second.Files {
			if !bytes.Equal(f.Data, first.Files[i].Data) {
				t.Errorf("seed %d: the second render changes %s:\n%s\nto\n%s", seed, f.Path,
					first.Files[i].Data, f.Data)
			}
		}
		opt.Workers = 1
		findings, _, err := render.Uninject(again, opt, func(name string, data []byte) error {
			if want := map[string]string{"x.yaml": file,
				"class.yaml": halves}[name]; string(data) != want {
				t.Errorf("seed %d: uninject gives\n%q\nof\n%q\nrendered:\n%s", seed, data, want,
					first.Files[1].Data)
			}
			return nil
		})
		if err != nil || finding.Failed(findings) {
			t.Fatalf("seed %d: uninject: %v %v", seed, err, findings)
		}
		changed += strings.Count(string(first.Files[1].Data), "armature.dev/changed")
	}
	if changed < int(seeds)/4 {
		t.Errorf("only %d workloads were changed", changed)
	}
	t.Logf("%d workloads were changed", changed)
}

// BenchmarkOvercommit is the engine without files where a class changes every
// workload, for one of many; BenchmarkMemory is the same without a class.
func BenchmarkOvercommit(b *testing.B) {
	const n = 1000
	files, size := corpus(b, n)
	files = append(files, render.File{Path: "class.yaml", Data: []byte(halves)})
	b.SetBytes(int64(size / n))
	b.ReportAllocs()
	for range b.N/n + 1 {
		stream(b, render.Source{Files: files})
	}
}
