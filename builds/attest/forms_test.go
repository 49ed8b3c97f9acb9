package attest_test

import (
	"strings"
	"testing"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
)

// Labels and annotations of a build reach the pods of an attested mode where its template opens
// them by name, and nowhere else.
func TestOpenLabels(t *testing.T) {
	label := func(b *api.AgentBuild) {
		b.Spec.Labels = map[string]string{"sidecar.example/inject": "true"}
	}
	annotation := func(b *api.AgentBuild) {
		b.Spec.Annotations = map[string]string{"sidecar.example/image": "evil"}
	}
	for _, c := range []struct {
		open, want string
		edit       func(*api.AgentBuild)
	}{
		{"", "spec.labels[sidecar.example/inject]: mode prod locks", label},
		{"", "spec.annotations[sidecar.example/image]: mode prod locks", annotation},
		{"  labels: [sidecar.example/inject]\n", "", label},
		{"  annotations: [sidecar.example/image]\n", "", annotation},
		{"  annotations: [sidecar.example/inject]\n",
			"spec.labels[sidecar.example/inject]: mode prod locks", label},
		{"  labels: [sidecar.example/*]\n", "spec.labels[sidecar.example/inject]: mode prod locks",
			label},
		{"  annotations: [chains.tekton.dev/signed]\n",
			"open.annotations[0]: chains.tekton.dev/signed steers Tekton", annotation},
	} {
		_, err := composed(t, func(template string) string {
			return strings.Replace(template, "open:\n", "open:\n"+c.open, 1)
		}, compose.Settings{}, c.edit)
		if c.want == "" && err != nil ||
			c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("open %q: %v, want %q", c.open, err, c.want)
		}
	}
}

// A repository without a canonical form is not built in any mode that attests, wherever it is
// named.
func TestRepositoryForm(t *testing.T) {
	for _, repository := range []string{
		"https://github.com/acme/weather@refs/../../evil/weather",
		"https://github.com/acme/../evil/weather", "https://github.com/acme/%2e%2e/evil",
		"github.com/acme//weather", "https://github.com/acme%2fweather",
		"git@github.com:acme/../evil/weather", "ssh://git@github.com/acme/./weather",
		"https://github.com/acme/weather?x", "https://me@github.com/acme/weather",
	} {
		for at, edit := range map[string]func(*api.AgentBuild){
			"spec": func(b *api.AgentBuild) { b.Spec.Source.SourceRepository = repository },
			"parameter": func(b *api.AgentBuild) {
				b.Spec.Source.SourceRepository, b.Spec.Pipeline =
					repository,
					&api.PipelineSpec{
						Parameters: []api.Parameter{{Name: "SOURCE_REPO_URL", Value: &repository}}}
			},
		} {
			if _, err := composed(t, nil, compose.Settings{}, edit); err == nil ||
				!strings.Contains(err.Error(), "spec.source.sourceRepository: has ") &&
					!strings.Contains(err.Error(), "spec.source.sourceRepository: names ") {
				t.Errorf("%s by %s: %v", repository, at, err)
			}
		}
	}
}

// The name of an image has one reading, too.
func TestImageForm(t *testing.T) {
	for _, image := range []string{"team1/../team2/weather", "../weather", "team1/./weather",
		"team1//weather", "team1/weather/..", "team1/-weather"} {
		_, err := composed(t, nil, compose.Settings{},
			func(b *api.AgentBuild) { b.Spec.BuildOutput.Image = image })
		if err == nil || !strings.Contains(err.Error(), "spec.buildOutput: ") {
			t.Errorf("%s: %v", image, err)
		}
	}
}
