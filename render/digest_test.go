package render_test

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	workloads "github.com/armature-dev/armature/e2e/bench/workload"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/source"
)

var corpusSize = flag.Int("corpus", 200, "how many generated workloads TestDigest renders")

// TestDigest renders the examples and a generated corpus, once with a worker
// and once with several, and demands the same bytes and findings. Run with -v,
// it prints a digest of them, by which two versions of the code are compared:
//
//	go test ./render -run TestDigest -v -corpus 10000
func TestDigest(t *testing.T) {
	for name, packages := range map[string][]render.Source{"examples": examples(t),
		"corpus": {generatedPackage(t, *corpusSize)}} {
		one, several := digest(t, packages, 1), digest(t, packages, 4)
		if one != several {
			t.Errorf("%s: one worker renders %s, four render %s", name, one, several)
		}
		t.Logf("%s: %s", name, one)
	}
}

// examples are the packages in examples: its folders, and its single files.
func examples(t *testing.T) (packages []render.Source) {
	t.Helper()
	root := filepath.Join("..", "examples")
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		folder := filepath.Join(root, e.Name())
		if inner, _ := filepath.Glob(filepath.Join(folder, "*", render.ConfigFile)); len(inner) == 1 {
			folder = filepath.Dir(inner[0])
		}
		src, findings, err := source.Tree(folder, "", nil)
		if err != nil || finding.Failed(findings) {
			t.Fatal(e.Name(), findings, err)
		}
		packages = append(packages, src)
	}
	if len(packages) < 10 {
		t.Fatalf("%d examples", len(packages))
	}
	return packages
}

// generatedPackage is a corpus where some workloads have custom resources.
func generatedPackage(t *testing.T, n int) (src render.Source) {
	t.Helper()
	var names []string
	for i := range n {
		var text bytes.Buffer
		if err := workloads.Write(&text, i); err != nil {
			t.Fatal(err)
		}
		if i%50 == 0 {
			var o krm.Object
			if isObject, err := o.Read(text.Bytes(), krm.Document{End: text.Len()}, false,
				krm.Origin{}); err != nil || !isObject {
				t.Fatal("no workload", err)
			}
			names = append(names, o.Name)
			head := "---\napiVersion: kagenti.io/v1alpha1\nkind: %s\nmetadata:\n  name: %s\n" +
				"  namespace: %s\nspec:\n"
			target := fmt.Sprintf("  targetRef:\n    apiVersion: %s\n    kind: %s\n    name: %s\n",
				o.APIVersion, o.Kind, o.Name)
			fmt.Fprintf(&text,
				head+target+"  inbound:\n    validation:\n      requiredScopes: [read]\n",
				"TokenExchange", o.Name, o.Namespace)
			fmt.Fprintf(&text, head+target+"  sampling:\n    type: always_off\n", "AgentTrace",
				o.Name, o.Namespace)
		}
		src.Files = append(src.Files, render.File{Path: workloads.File(i), Data: text.Bytes()})
	}
	if len(names) == 0 {
		t.Fatal("no custom resources")
	}
	return src
}

// digest is the hash of what packages become, and of their findings but for the
// words.
func digest(t *testing.T, packages []render.Source, workers int) string {
	t.Helper()
	text, found := sha256.New(), sha256.New()
	for _, src := range packages {
		var config []byte
		for _, f := range src.Files {
			if f.Path == render.ConfigFile {
				data, err := src.Read(f.Path, nil)
				if err != nil {
					t.Fatal(err)
				}
				config = bytes.Clone(data)
			}
		}
		opt := render.Options{Version: "v0.0.0", Workers: workers}
		if config != nil {
			var findings []finding.Finding
			if opt.Config, findings = render.ReadConfig(config,
				render.ConfigFile); finding.Failed(findings) {
				t.Fatal(findings)
			}
		}
		files := make(chan [2]string, len(src.Files)*2)
		findings, stats, err := render.Stream(src, opt, func(file string, data []byte) error {
			files <- [2]string{file, string(data)}
			return nil
		})
		if err != nil || stats.Files == 0 {
			t.Fatal(stats, err)
		}
		if finding.Failed(findings) {
			t.Error(findings)
		}
		close(files)
		rendered := make(map[string]string)
		for f := range files {
			rendered[f[0]] = f[1]
		}
		for _, f := range src.Files {
			fmt.Fprintf(text, "%s %d\n%s", f.Path, len(rendered[f.Path]), rendered[f.Path])
		}
		for _, f := range findings {
			fmt.Fprintf(found, "%s %s %s:%d %s %s\n", f.Severity, f.Rule, f.File, f.Line, f.Field,
				f.Object)
		}
		fmt.Fprintf(found, "%+v\n", stats)
	}
	return strings.Join([]string{fmt.Sprintf("%x", text.Sum(nil)[:12]),
		fmt.Sprintf("%x", found.Sum(nil)[:12])}, " ")
}
