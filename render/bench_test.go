package render_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

const (
	deployment = "---\napiVersion: apps/v1\nkind: Deployment\n" +
		"metadata: {name: d%[1]d, namespace: x, labels: {kagenti.io/inject: enabled}}\n" +
		"spec:\n  selector: {matchLabels: {app: d%[1]d}}\n  template:\n" +
		"    metadata: {labels: {app: d%[1]d, team: x}}\n    spec:\n      containers:\n" +
		"      - {name: c, image: a/b:v1}\n"
	model = "---\napiVersion: kagent.dev/v1alpha2\nkind: ModelConfig\n" +
		"metadata: {name: m%[1]d, namespace: x}\nspec: {provider: Ollama, model: m}\n---\n" +
		"apiVersion: kagent.dev/v1alpha2\nkind: Agent\nmetadata: {name: a%[1]d, namespace: x}\nspec:\n" +
		"  type: Declarative\n  declarative: {systemMessage: hi, modelConfig: m%[1]d}\n"
	card = "---\napiVersion: kagenti.io/v1alpha1\nkind: AgentCard\n" +
		"metadata: {name: c%[1]d, namespace: x}\nspec: "
	untargeted = "---\napiVersion: kagenti.io/v1alpha1\nkind: TokenExchange\n" +
		"metadata: {name: t%[1]d, namespace: x}\nspec: {targetRef: {kind: Deployment, name: t%[1]d}}\n"
	misread = "---\napiVersion: kagenti.io/v1alpha1\nkind: TokenExchange\n" +
		"metadata: {name: t%[1]d, namespace: x}\nspec: {targetRef: {kind: Job}, more: 1}\n"
)

// many renders n copies of a text, which has their number.
func many(tb testing.TB, text string, n int) []finding.Finding {
	var all bytes.Buffer
	for i := range n {
		fmt.Fprintf(&all, text, i)
	}
	src := render.Source{Files: []render.File{{Path: "-", Data: all.Bytes()}}}
	findings, _, err := render.Stream(src, render.Options{}, func(string, []byte) error { return nil })
	if err != nil {
		tb.Fatal(err)
	}
	return findings
}

// TestManyOfAName: the author of a package decides how many workloads have one name.
func TestManyOfAName(t *testing.T) {
	const n = 100
	same := strings.Replace(deployment, "name: d%[1]d", "name: d", 1)
	found := 0
	for _, f := range many(t, same, n) {
		if f.Rule == "inject/two-of-a-name" {
			found++
		}
	}
	if found != n {
		t.Errorf("%d findings about %d workloads", found, n)
	}
}

// TestMisreadOfAName: the faults of two custom resources of one name are not each other's echoes.
func TestMisreadOfAName(t *testing.T) {
	same := strings.Replace(misread, "name: t%[1]d", "name: t", 1) + "# %[1]d\n"
	unknown := 0
	for _, f := range many(t, same, 2) {
		if f.Field == "spec.more" {
			unknown++
		}
	}
	if unknown != 2 {
		t.Errorf("%d findings about two unknown fields", unknown)
	}
}

// BenchmarkGrowth measures how much longer four times as many objects of one namespace take: 4 is
// linear.
func BenchmarkGrowth(b *testing.B) {
	for name, text := range map[string]string{
		"workloads": deployment,
		"cards": card +
			"{selector: {matchLabels: {app: d%[1]d, team: x}}}\n" + deployment,
		"cards without workloads": card + "{selector: {matchLabels: {team: y}}}\n",
		"models":                  model,
		"missing targets":         untargeted,
		"misread":                 misread,
	} {
		b.Run(name, func(b *testing.B) {
			const n = 2000
			var few, more time.Duration
			for b.Loop() {
				start := time.Now()
				many(b, text, n)
				between := time.Now()
				many(b, text, 4*n)
				few, more = few+between.Sub(start), more+time.Since(between)
			}
			b.ReportMetric(float64(more)/float64(few), "x")
		})
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
