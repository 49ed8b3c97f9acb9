package render_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	workloads "github.com/armature-dev/armature/e2e/bench/workload"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
)

func corpus(b *testing.B, n int) (files []render.File, size int) {
	b.Helper()
	for i := range n {
		var text bytes.Buffer
		if err := workloads.Write(&text, i); err != nil {
			b.Fatal(err)
		}
		files = append(files, render.File{Path: workloads.File(i), Data: text.Bytes()})
		size += text.Len()
	}
	return files, size
}

// stream renders with one worker and throws the result away.
func stream(b *testing.B, src render.Source) {
	findings, stats, err := render.Stream(src, render.Options{Workers: 1}, func(string, []byte) error { return nil })
	if err != nil || krm.Failed(findings) || stats.Workloads == 0 {
		b.Fatal(findings, stats, err)
	}
}

// BenchmarkMemory is the engine without files, for one workload of many.
func BenchmarkMemory(b *testing.B) {
	const n = 1000
	files, size := corpus(b, n)
	b.SetBytes(int64(size / n))
	b.ReportAllocs()
	for range b.N/n + 1 {
		stream(b, render.Source{Files: files})
	}
}

// BenchmarkStream is the same with all workloads in one stream.
func BenchmarkStream(b *testing.B) {
	const n = 1000
	files, size := corpus(b, n)
	var all bytes.Buffer
	for _, f := range files {
		all.WriteString("---\n")
		all.Write(f.Data)
	}
	b.SetBytes(int64(size / n))
	b.ReportAllocs()
	for range b.N/n + 1 {
		stream(b, render.Source{Files: []render.File{{Path: "-", Data: all.Bytes()}}})
	}
}

// BenchmarkFolder is everything that the command does, for one file of many.
func BenchmarkFolder(b *testing.B) {
	const n = 1000
	files, size := corpus(b, n)
	in := b.TempDir()
	for _, f := range files {
		name := filepath.Join(in, filepath.FromSlash(f.Path))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(name, f.Data, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	out := b.TempDir()
	b.SetBytes(int64(size / n))
	b.ReportAllocs()
	for i := range b.N/n + 1 {
		src, _, err := render.Tree(in, "")
		if err != nil {
			b.Fatal(err)
		}
		folder := filepath.Join(out, fmt.Sprint(i))
		to, err := render.NewFolder(folder, false)
		if err != nil {
			b.Fatal(err)
		}
		memory := render.NewMemory(filepath.Join(b.TempDir(), "memory"), folder, in, src, nil, nil)
		if _, _, err := render.Stream(src, render.Options{Memory: memory, Keep: to.Keep}, to.Write); err != nil {
			b.Fatal(err)
		}
		if _, _, err := to.Commit(); err != nil {
			b.Fatal(err)
		}
		if err := memory.Save(src, to); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkResourceList is what armature-fn does for a host, with a thousand workloads.
func BenchmarkResourceList(b *testing.B) {
	files, _ := corpus(b, 1000)
	list := []byte("apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n")
	for _, f := range files {
		_, text, _ := bytes.Cut(f.Data, []byte("\n"))
		lead := "- "
		for line := range bytes.Lines(text) {
			list = append(append(list, lead...), line...)
			lead = "  "
		}
	}
	b.SetBytes(int64(len(list)))
	b.ReportAllocs()
	for b.Loop() {
		in, err := render.ReadList(list)
		if err != nil {
			b.Fatal(err)
		}
		if _, findings, stats, err := in.Render(render.Options{}); err != nil || krm.Failed(findings) || stats.Workloads != 1000 {
			b.Fatal(findings, stats, err)
		}
	}
}
