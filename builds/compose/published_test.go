package compose_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/armature-dev/armature/builds/compose"
)

// Builds for the operator's earlier versions compose with the names of steps, step
// ConfigMaps and parameters that were published, and are built by the step that they name.
func TestPublishedNames(t *testing.T) {
	const parameters = `
    parameters:
    - {name: SOURCE_REPO_URL, value: github.com/kagenti/agent-examples.git}
    - {name: SOURCE_REVISION, value: main}
    - {name: BUILD_CONTEXT, value: a2a/weather_service}
    - {name: SOURCE_REPO_SECRET, value: github-token-secret}
    - {name: github-token-secret, value: github-token-secret}
    - {name: registry-secret, value: ghcr-token}
    - {name: pipeline-timeout, value: 20m}
`
	login := "    imageRepoCredentials: {name: ghcr-token}\n"
	for _, step := range []struct{ mode, name, configMap string }{
		{"dev", "kaniko-build", "kaniko-docker-build-step"},
		{"dev-local", "kaniko-build", "kaniko-docker-build-step-local"},
		{"dev-external", "kaniko-build", "kaniko-docker-build-step-external"},
		{"dev", "kaniko-docker-build", "kaniko-docker-build-step"},
		{"dev", "buildah-build", "buildah-build-step"},
		{"buildpack-dev", "buildpack-step", "buildpack-step"},
		{"preprod", "kaniko-build", "kaniko-docker-build-step"},
		{"custom", "kaniko-build", "kaniko-docker-build-step"},
	} {
		steps := fmt.Sprintf(
			"    steps:\n    - {name: github-clone, configMap: github-clone-step, enabled: true}\n"+
				"    - {name: folder-verification, configMap: check-subfolder-step, "+
				"enabled: true}\n"+
				"    - {name: %s, configMap: %s, enabled: true}\n", step.name, step.configMap)
		out, err := plan(t, append(withSpec("  mode: "+step.mode+"\n  pipeline:"+parameters+steps),
			login...), nil, compose.Settings{})
		if err != nil {
			t.Errorf("%s in %s: %v", step.configMap, step.mode, err)
			continue
		}
		var names []string
		for _, task := range out.Pipeline.Spec.Tasks {
			names = append(names, task.Name)
		}
		if got, want :=
			strings.Join(names, " "), "github-clone folder-verification "+step.name; got != want {
			t.Errorf("%s in %s: the tasks are %q, want %q", step.configMap, step.mode, got, want)
		}
	}
	// Those that name no steps are built by the default.
	for mode, want := range map[string]string{"dev": "buildkit-build",
		"dev-local": "buildkit-build", "dev-external": "buildkit-build",
		"preprod": "buildkit-build", "buildpack-dev": "buildpack-build"} {
		out, err := plan(t, append(withSpec("  mode: "+mode+"\n  pipeline:"+parameters), login...),
			nil, compose.Settings{})
		if err != nil {
			t.Errorf("%s: %v", mode, err)
		} else if !strings.Contains(text(t, out.Pipeline), "name: "+want+"\n") {
			t.Errorf("%s has no task %s", mode, want)
		}
	}
}
