package render_test

import (
	"testing"

	"github.com/armature-dev/armature/functions/krm"
)

// TestGeneratedManifests is acceptance 3 over files of many tastes.
func TestGeneratedManifests(t *testing.T) {
	files := 400
	if testing.Short() {
		files = 100
	}
	documents, workloads, rewritten := 0, 0, 0
	for seed := range uint64(files) {
		file, optedIn := manifest(seed)
		if _, err := decode3([]byte(file)); err != nil {
			t.Fatalf("seed %d: the generator made no YAML: %v\n%s", seed, err, file)
		}
		result, problem := checkRender(t, []byte(file), nil)
		if problem != "" {
			t.Errorf("seed %d: %s\ninput:\n%s", seed, problem, file)
		}
		if krm.Failed(result.Findings) {
			t.Errorf("seed %d: %v\n%s", seed, result.Findings, file)
			continue
		}
		if result.Stats.Workloads != optedIn {
			t.Errorf("seed %d: %d workloads opted in, %d were injected\n%s", seed, optedIn, result.Stats.Workloads, file)
		}
		documents += result.Stats.Documents
		workloads += result.Stats.Workloads
		rewritten += result.Stats.Rewritten
	}
	t.Logf("%d documents in %d files; %d workloads injected, of which %d (%.1f %%) fell back to kyaml",
		documents, files, workloads, rewritten, 100*float64(rewritten)/float64(workloads))
}
