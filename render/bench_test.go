package render_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	workloads "github.com/armature-dev/armature/e2e/bench/workload"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/host"
	"github.com/armature-dev/armature/render/source"
)

func corpus(b *testing.B, n int) (files []render.File, size int) {
	b.Helper()
	err := workloads.Each(n, func(file string, data []byte) {
		files = append(files, render.File{Path: file, Data: data})
		size += len(data)
	})
	if err != nil {
		b.Fatal(err)
	}
	return files, size
}

// stream renders with one worker and throws the result away.
func stream(b *testing.B, src render.Source) {
	findings, stats, err := render.Stream(src, render.Options{Workers: 1},
		func(string, []byte) error { return nil })
	if err != nil || finding.Failed(findings) || stats.Workloads == 0 {
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

// BenchmarkStream is the same with all workloads in one stream, held back until
// its end as the command does it.
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
		var spool source.Spool
		src := render.Source{Files: []render.File{{Path: "-", Data: all.Bytes()}}}
		findings, stats, err := render.Stream(src, render.Options{Workers: 1, Pieces: true}, spool.Write)
		if err != nil || finding.Failed(findings) || stats.Workloads != n {
			b.Fatal(findings, stats, err)
		}
		if _, err := spool.WriteTo(io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFolder is everything that the command does, for one file of many.
func BenchmarkFolder(b *testing.B) {
	const n = 1000
	in, size := folder(b, n)
	out := b.TempDir()
	b.SetBytes(int64(size / n))
	b.ReportAllocs()
	for i := range b.N/n + 1 {
		toFolder(b, in, filepath.Join(out, fmt.Sprint(i)))
	}
}

// folder holds n workloads.
func folder(b *testing.B, n int) (in string, size int) {
	b.Helper()
	files, size := corpus(b, n)
	in = b.TempDir()
	for _, f := range files {
		name := filepath.Join(in, filepath.FromSlash(f.Path))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(name, f.Data, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	return in, size
}

func toFolder(b *testing.B, in, out string) {
	b.Helper()
	src, _, err := source.Tree(in, "", nil)
	if err != nil {
		b.Fatal(err)
	}
	to, err := source.NewFolder(out, false)
	if err != nil {
		b.Fatal(err)
	}
	if _, _, err := render.Stream(src, render.Options{}, to.Write); err != nil {
		b.Fatal(err)
	}
	if _, _, err := to.Commit(); err != nil {
		b.Fatal(err)
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
		in, err := host.ReadList(list)
		if err != nil {
			b.Fatal(err)
		}
		if _, findings, stats, err := in.Render(render.Options{}); err != nil ||
			finding.Failed(findings) || stats.Workloads != 1000 {
			b.Fatal(findings, stats, err)
		}
	}
}
