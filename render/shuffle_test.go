package render_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
)

// TestOrderOfFiles renders a package of all kinds with its files in many orders
// and under other names: the objects are always the same.
func TestOrderOfFiles(t *testing.T) {
	t.Parallel()
	var documents []string
	opt := render.Options{ObjectsOnly: true}
	for _, name := range []string{"agent", "async-actor", "kagent", "overcommit", "custom-resources"} {
		data, err := os.ReadFile(filepath.Join("testdata", name+".txtar"))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range txtar.Parse(data).Files {
			switch {
			case f.Name == "armature.yaml" && name == "async-actor":
				text := strings.Replace(string(f.Data),
					"    runtimeScriptFile: src/asya_runtime.py\n", "", 1)
				var findings []finding.Finding
				if opt.Config, findings = render.ReadConfig([]byte(text),
					f.Name); finding.Failed(findings) {
					t.Fatal(findings)
				}
			case f.Name == "armature.yaml" || strings.HasPrefix(f.Name, "want/") ||
				!strings.HasSuffix(f.Name, ".yaml"):
			default:
				documents = append(documents, strings.Split(string(f.Data), "\n---\n")...)
			}
		}
	}
	objects := func(order []int) []string {
		var src render.Source
		for i, at := range order {
			src.Files = append(src.Files,
				render.File{Path: string(rune('a'+i/26)) + string(rune('a'+i%26)) + ".yaml",
					Data: []byte(strings.TrimSuffix(documents[at], "\n") + "\n")})
		}
		result, err := render.Run(src, opt)
		if err != nil || finding.Failed(result.Findings) {
			t.Fatal(err, result.Findings)
		}
		var all []string
		for _, f := range result.Files {
			for d := range krm.Documents(f.Data) {
				all = append(all, string(f.Data[d.Start:d.End]))
			}
		}
		slices.Sort(all)
		return all
	}
	order := make([]int, len(documents))
	for i := range order {
		order[i] = i
	}
	want := objects(order)
	if len(want) < 30 {
		t.Fatalf("only %d objects of %d documents", len(want), len(documents))
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 10 {
		random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		if diff := cmp.Diff(want, objects(order)); diff != "" {
			t.Fatalf("files in the order %v: -want +have\n%s", order, diff)
		}
	}
}
