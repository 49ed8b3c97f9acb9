package manifest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/manifest"
	"github.com/armature-dev/armature/builds/failure/findings"
)

// Whatever a user writes, reading it ends in a value or in problems with a
// place, never in a panic.
func FuzzBuilds(f *testing.F) {
	files, err := filepath.Glob("../../../examples/builds/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		text := string(data)
		for _, fault := range []string{"", "  sourceBranch: main\n", "  mode: dev\n",
			"  cancel: maybe\n", "  secrets: [null]\n", "\tspec: {}\n", "---\n- a list\n"} {
			f.Add(text + fault)
		}
		f.Add("---\n- " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ") + "\n")
		f.Add(strings.Replace(text, "https://", "https://me:s3cret@", 1))
	}
	f.Fuzz(func(t *testing.T, text string) {
		builds, err := manifest.Builds("build.yaml", []byte(text), api.DefaultGroup)
		if err == nil && len(builds) == 0 {
			t.Error("neither builds nor a problem")
		}
		for _, f := range findings.Of(err) {
			if f.File != "build.yaml" || f.Rule == "" {
				t.Errorf("a finding without a place or a rule: %v", f)
			}
		}
	})
}
