package compose

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/compose/recipe"
	"github.com/armature-dev/armature/builds/compose/tekton"
)

// Material is a ConfigMap that a run of an attested template was composed from.
type Material struct {
	// ConfigMap is its namespace and name.
	ConfigMap string `json:"configMap"`
	// Digest of its text: "sha256:" and 64 hexadecimal digits.
	Digest string `json:"digest"`
}

// Materials of a run of an attested template, in its annotation keys.AnnotationMaterials.
type Materials struct {
	Template Material `json:"template"`
	// Steps are the materials of the steps, by their names in the template.
	Steps map[string]Material `json:"steps"`
}

func material(d *recipe.Document) Material {
	return Material{ConfigMap: strings.TrimPrefix(d.From.Namespace+"/"+d.From.Name, "/"),
		Digest: digest(d.Body)}
}

func materials(in Input, steps []step) Materials {
	m := Materials{Template: material(in.Template.Doc), Steps: map[string]Material{}}
	for _, s := range steps {
		m.Steps[s.row.Name] = material(s.file.Doc)
	}
	return m
}

// RunDigest of a run's spec: "sha256:" and 64 hexadecimal digits. It is the same
// before and after Tekton has set its defaults, and whether the run is asked to stop.
func RunDigest(spec *tektonv1.PipelineRunSpec) string {
	whole := stored(spec)
	whole.SetDefaults(background())
	whole.Status = ""
	return digest(tekton.JSON(whole))
}

// PipelineDigest is RunDigest for a pipeline that a run refers to.
func PipelineDigest(spec *tektonv1.PipelineSpec) string {
	whole := stored(spec)
	whole.SetDefaults(background())
	return digest(tekton.JSON(whole))
}

// stored returns a spec as the API server returns it.
func stored[T any](spec *T) *T {
	var whole T
	if err := json.Unmarshal([]byte(tekton.JSON(spec)), &whole); err != nil {
		panic(fmt.Sprintf("compose: reading a %T: %v", spec, err))
	}
	return &whole
}

func digest(text string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(text))) }
