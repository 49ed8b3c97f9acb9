package compare_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	workloads "github.com/armature-dev/armature/e2e/bench/workload"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/compare"
)

func rendered(t testing.TB, src render.Source, opt render.Options) compare.Package {
	t.Helper()
	p, findings, err := compare.Render(src, opt)
	if err != nil || finding.Failed(findings) {
		t.Fatal(err, findings)
	}
	return p
}

// side renders the files of an archive below a folder.
func side(t *testing.T, a *txtar.Archive, folder string) compare.Package {
	t.Helper()
	var src render.Source
	var opt render.Options
	for _, f := range a.Files {
		name, in := strings.CutPrefix(f.Name, folder+"/")
		switch {
		case in && name == render.ConfigFile:
			var findings []finding.Finding
			if opt.Config, findings = render.ReadConfig(f.Data, name); len(findings) > 0 {
				t.Fatal(findings)
			}
		case in:
			src.Files = append(src.Files, render.File{Path: name, Data: f.Data})
		}
	}
	return rendered(t, src, opt)
}

// TestPackages compares the packages before and after of each archive.
func TestPackages(t *testing.T) {
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(archives) < 8 {
		t.Fatal(len(archives), err)
	}
	for _, name := range archives {
		t.Run(filepath.Base(name), func(t *testing.T) {
			a, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			report := compare.Packages(side(t, a, "before"), side(t, a, "after"))
			var got bytes.Buffer
			if err := report.Write(&got, "text"); err != nil {
				t.Fatal(err)
			}
			want := a.Files[len(a.Files)-1]
			if diff := cmp.Diff(string(want.Data), got.String()); want.Name != "want" || diff != "" {
				t.Error(diff)
			}
			if report.Empty() != (len(want.Data) == 0) {
				t.Error("Empty says", report.Empty())
			}
			for _, format := range []string{"json", "markdown"} {
				if err := report.Write(&got, format); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestMarkdown: what an author writes cannot leave its cell of the table.
func TestMarkdown(t *testing.T) {
	pod := func(image string) compare.Package {
		text := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\n"+
			"spec: {containers: [{name: web, image: %q}]}\n", image)
		return rendered(t,
			render.Source{Files: []render.File{{Path: "a.yaml", Data: []byte(text)}}}, render.Options{})
	}
	report := compare.Packages(pod("a:1"), pod("a|b`<script>\n| x"))
	var b bytes.Buffer
	if err := report.Write(&b, "markdown"); err != nil {
		t.Fatal(err)
	}
	want := "### What this changes\n\nworkloads: 1 to be replaced; with other identities: 0, " +
		"permissions: 0; images: 1; other objects: 0\n\n" +
		"| workload | pods | identity, permissions, images |\n|---|---|---|\n" +
		"| `Pod web` | **to be replaced**: spec.containers[web].image (a Pod cannot be updated: " +
		"delete it first) | image `~ web: a:1 => a\\|b'<script> \\| x` |\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
}

// BenchmarkPackages renders two packages of 1,000 workloads, where one in a
// hundred differs, and compares them.
func BenchmarkPackages(b *testing.B) {
	var before, after []render.File
	for i := range 1000 {
		var text bytes.Buffer
		if err := workloads.Write(&text, i); err != nil {
			b.Fatal(err)
		}
		before = append(before, render.File{Path: workloads.File(i), Data: text.Bytes()})
		changed := text.Bytes()
		if i%100 == 0 {
			changed = bytes.Replace(changed, []byte("image: "), []byte("image: other/"), 1)
		}
		after = append(after, render.File{Path: workloads.File(i), Data: changed})
	}
	b.ReportAllocs()
	for b.Loop() {
		report := compare.Packages(rendered(b, render.Source{Files: before}, render.Options{}),
			rendered(b, render.Source{Files: after}, render.Options{}))
		if len(report.Workloads) < 10 {
			b.Fatal(report.Summary())
		}
	}
}
