package migrate_test

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/foreign"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/host"
	"github.com/armature-dev/armature/render/migrate"
)

var update = flag.Bool("update", false, "write what was migrated into testdata/*.txtar")

// TestMigrate runs testdata/*.txtar: files, want/FILE where one changes,
// the report, and findings. In every case each field of the input is in the
// report, what was moved to a field of a template or a Service is there, and
// what comes out is migrated already.
func TestMigrate(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var src render.Source
			var harness []byte // of kagent 1.0, to migrate to that
			kept := archive.Files[:0:0]
			for _, f := range archive.Files {
				if f.Name == "harness" {
					harness, kept = f.Data, append(kept, f)
					continue
				}
				if f.Name == "report" || f.Name == "findings" ||
					strings.HasPrefix(f.Name, "want/") {
					continue
				}
				kept = append(kept, f)
				src.Files = append(src.Files, render.File{Path: f.Name, Data: f.Data})
			}
			out, reports, findings := migrated(t, src, harness)
			for _, f := range src.Files {
				if data, ok := out[f.Path]; !ok && !finding.Failed(findings) {
					kept = append(kept,
						txtar.File{Name: "want/" + f.Path, Data: []byte("(gone)\n")})
				} else if ok && !bytes.Equal(data, f.Data) {
					kept = append(kept, txtar.File{Name: "want/" + f.Path, Data: data})
				}
			}
			var report, problems bytes.Buffer
			if err := migrate.Write(&report, "text", reports); err != nil {
				t.Fatal(err)
			}
			if report.Len() > 0 {
				kept = append(kept, txtar.File{Name: "report", Data: report.Bytes()})
			}
			if err := host.WriteFindings(&problems, "text", findings); err != nil {
				t.Fatal(err)
			}
			if problems.Len() > 0 {
				kept = append(kept, txtar.File{Name: "findings", Data: problems.Bytes()})
			}
			if !finding.Failed(findings) {
				everyField(t, src, out, reports)
				again(t, src, out, harness)
				for file, data := range out {
					if strings.HasSuffix(file, ".yaml") {
						roundTrip(t, data)
					}
				}
			}
			got := txtar.Format(&txtar.Archive{Comment: archive.Comment, Files: kept})
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			} else if want := txtar.Format(archive); !bytes.Equal(want, got) {
				t.Errorf("run with -update to accept; got:\n%s", got)
			}
		})
	}
}

// kagenti is the configuration of the profile that has what the first webhook injected.
var kagenti = &api.RenderConfig{Spec: api.RenderConfigSpec{Profile: new(sidecars.Kagenti),
	Trace: &api.TraceSpec{}}}

func migrated(t *testing.T, src render.Source,
	harness []byte) (map[string][]byte, []migrate.Report, []finding.Finding) {
	t.Helper()
	out := make(map[string][]byte)
	sink := func(file string, data []byte) error {
		if data != nil {
			out[file] = bytes.Clone(data)
		}
		return nil
	}
	reports, findings, err := migrate.Run(src, render.Options{Config: kagenti}, sink)
	if harness != nil {
		reports, findings, err = migrate.ToSuccessor(src, render.Options{Config: kagenti}, harness, sink)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out, reports, findings
}

// again migrates what came out, in which nothing is left to do.
func again(t *testing.T, src render.Source, out map[string][]byte, harness []byte) {
	var second render.Source
	for _, f := range src.Files {
		if data, ok := out[f.Path]; ok {
			second.Files = append(second.Files, render.File{Path: f.Path, Data: data})
		}
	}
	if _, reports, findings := migrated(t, second, harness); len(reports) > 0 ||
		finding.Failed(findings) {
		t.Errorf("migrated a second time: %v %v", reports, findings)
	}
}

// everyField finds every leaf of every object that a report is about.
func everyField(t *testing.T, src render.Source, out map[string][]byte, reports []migrate.Report) {
	inputs, outputs := objectsOf(t, src.Files), objectsOf(t, nil)
	for file, data := range out {
		for ref, value := range objectsOf(t, []render.File{{Path: file, Data: data}}) {
			outputs[ref] = value
		}
	}
	for _, r := range reports {
		reported := make(map[string]foreign.Field)
		for _, f := range r.Fields {
			reported[f.Path] = f
		}
		eachLeaf(inputs[r.Object], "", func(path string, value any) {
			f, ok := reported[path]
			if !ok {
				t.Errorf("%s: %s is in no report", r.Object, path)
			}
			delete(reported, path)
			kind, to, deep := strings.Cut(f.To, " ")
			if f.Fate != foreign.Moved || !deep ||
				!strings.HasPrefix(to, "spec.template.") && !strings.HasPrefix(to, "spec.ports[") ||
				strings.ContainsAny(to, " ,") {
				return
			}
			for _, ref := range r.Becomes {
				if found := ""; ref.Kind == kind {
					eachLeaf(outputs[ref], "", func(path string, value any) {
						if path == to {
							found = fmt.Sprint(value)
						}
					})
					if found != fmt.Sprint(value) {
						t.Errorf("%s: %s was moved to %s, where there is %q and not %q", r.Object,
							path, f.To, found, fmt.Sprint(value))
					}
				}
			}
		})
		for path, f := range reported {
			if f.Fate != foreign.Added {
				t.Errorf("%s: the report has %s, which the input has not", r.Object, path)
			}
		}
	}
}

func objectsOf(t *testing.T, files []render.File) map[finding.Ref]any {
	all := make(map[finding.Ref]any)
	for _, f := range files {
		for d := range krm.Documents(f.Data) {
			var value map[string]any
			if err := yaml.Unmarshal(f.Data[d.Start:d.End], &value); err != nil {
				t.Fatal(err)
			}
			items, list := value["items"].([]any)
			if !list {
				items = []any{value}
			}
			for _, item := range items {
				o, _ := item.(map[string]any)
				m, _ := o["metadata"].(map[string]any)
				text := func(v any) string { s, _ := v.(string); return s }
				all[finding.Ref{APIVersion: text(o["apiVersion"]), Kind: text(o["kind"]),
					Namespace: text(m["namespace"]), Name: text(m["name"])}] = o
			}
		}
	}
	return all
}

func eachLeaf(value any, path string, visit func(path string, value any)) {
	switch v := value.(type) {
	case map[string]any:
		for key, item := range v {
			next := path + "." + key
			if strings.ContainsAny(key, "./") {
				next = path + "[" + key + "]"
			}
			eachLeaf(item, strings.TrimPrefix(next, "."), visit)
		}
		if len(v) > 0 {
			return
		}
	case []any:
		for i, item := range v {
			eachLeaf(item, fmt.Sprintf("%s[%d]", path, i), visit)
		}
		if len(v) > 0 {
			return
		}
	}
	if path != "" {
		visit(path, value)
	}
}

// TestPublished migrates the manifests in the folder that ARMATURE_MIGRATE_PACKAGES
// names, renders the result, and takes the render back: what is migrated renders,
// and what cannot be is an error before anything is written.
func TestPublished(t *testing.T) {
	folder := os.Getenv("ARMATURE_MIGRATE_PACKAGES")
	if folder == "" {
		t.Skip("ARMATURE_MIGRATE_PACKAGES names no folder of published manifests")
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatal("no manifests in "+folder, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			src := render.Source{Files: []render.File{{Path: "a.yaml", Data: data}}}
			out, reports, findings := migrated(t, src, nil)
			for _, f := range findings {
				t.Log(f)
			}
			if finding.Failed(findings) {
				if len(out) > 0 {
					t.Error("written in spite of errors")
				}
				return
			}
			t.Logf("%d objects migrated", len(reports))
			roundTrip(t, out["a.yaml"])
		})
	}
}

// roundTrip renders manifests and takes the render back.
func roundTrip(t *testing.T, data []byte) (rendered []byte) {
	t.Helper()
	r, err := render.Run(render.Source{Files: []render.File{{Path: "a.yaml", Data: data}}},
		render.Options{Config: kagenti})
	if err != nil || finding.Failed(r.Findings) {
		t.Fatalf("what was migrated does not render: %v %v\n%s", err, r.Findings, data)
	}
	var undone []byte
	findings, _, err := render.Uninject(render.Source{Files: r.Files}, render.Options{Workers: 1},
		func(_ string, data []byte) error {
			undone = bytes.Clone(data)
			return nil
		})
	if err != nil || finding.Failed(findings) || !bytes.Equal(undone, data) {
		t.Fatalf("uninject does not give back what was migrated: %v %v\n%s", err, findings, undone)
	}
	return r.Files[0].Data
}

// Errors have a cause, and an unknown format is one.
func TestWrongInput(t *testing.T) {
	_, _, err := migrate.ToSuccessor(render.Source{}, render.Options{}, []byte("a: b\n"), nil)
	if err == nil || !strings.Contains(err.Error(), "apiVersion or kind is missing") ||
		strings.Contains(err.Error(), "nil") {
		t.Errorf("a Harness that is no object: %v", err)
	}
	if err := migrate.Write(io.Discard, "xml", nil); err == nil ||
		!strings.Contains(err.Error(), "choose from text, json, markdown") {
		t.Errorf("an unknown format: %v", err)
	}
}
