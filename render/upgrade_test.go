package render_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/source"
	"github.com/armature-dev/armature/render/verify"
)

// What an earlier release (6931e67) rendered, with the configuration of that time, is taken over:
// verify reports that it is to be rendered again, a render of it equals a render of its source, and
// uninject restores the source.
func TestUpgrade(t *testing.T) {
	config, findings, err := source.FindConfig("testdata/upgrade/apps/armature.yaml", "", "")
	if err != nil || len(findings) > 0 {
		t.Fatal(err, findings)
	}
	options := render.Options{Config: config}
	tree := func(folder string) render.Source {
		src, findings, err := source.Tree(filepath.Join("testdata/upgrade", folder), "", nil)
		if err != nil || finding.Failed(findings) {
			t.Fatal(err, findings)
		}
		return src
	}
	rendered := func(folder string) map[string]string {
		result, err := render.Run(tree(folder), options)
		if err != nil || finding.Failed(result.Findings) || result.Stats.Workloads != 2 {
			t.Fatal(err, result.Stats, result.Findings)
		}
		files := map[string]string{}
		for _, f := range result.Files {
			files[f.Path] = string(f.Data)
		}
		return files
	}
	fresh := rendered("apps")
	if diff := cmp.Diff(fresh, rendered("rendered")); diff != "" {
		t.Errorf("what was rendered before renders to something else than its source (-source "+
			"+rendered):\n%s", diff)
	}

	authored := map[string]string{}
	if _, _, err := render.Uninject(tree("rendered"), options,
		func(file string, data []byte) error {
			authored[file] = string(bytes.Clone(data))
			return nil
		}); err != nil {
		t.Fatal(err)
	}
	authors := map[string]string{}
	if err := fs.WalkDir(os.DirFS("testdata/upgrade/apps"), ".",
		func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || name == render.ConfigFile {
				return err
			}
			text, err := os.ReadFile(filepath.Join("testdata/upgrade/apps", name))
			authors[name] = string(text)
			return err
		}); err != nil {
		t.Fatal(err)
	}
	delete(authored, render.ConfigFile)
	if diff := cmp.Diff(authors, authored); diff != "" {
		t.Errorf("uninject gives something else than the source (-source +uninjected):\n%s", diff)
	}

	found, _, err := verify.Run(tree("rendered"), options)
	if err != nil || len(found) != 6 || !finding.Failed(found) ||
		!strings.Contains(found[2].Hint, "render again") {
		t.Errorf("verify of what an earlier release rendered: %v, %v", err, found)
	}
}
