package controller_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// Published manifests apply unchanged, and get the defaults.
func TestPublishedManifests(t *testing.T) {
	w := newWorld(t)
	manifests := map[string]string{
		"getting started": `
metadata: {name: my-agent-build}
spec:
  source:
    sourceRepository: "github.com/myorg/my-agent.git"
    sourceRevision: "main"
  buildOutput:
    image: "my-agent"
    imageTag: "v1.0.0"
    imageRegistry: "registry.cr-system.svc.cluster.local:5000"
`,
		"every published field": `
metadata: {name: everything}
spec:
  mode: dev-external
  cleanupAfterBuild: false
  labels: {kagenti.io/type: agent}
  annotations: {kagenti.io/description: demo}
  source:
    sourceRepository: github.com/kagenti/agent-examples.git
    sourceRevision: main
    sourceSubfolder: a2a/weather_service
    repoUser: kagenti
    sourceCredentials: {name: github-token-secret}
  pipeline:
    namespace: kagenti-system
    parameters:
      - {name: SOURCE_REPO_SECRET, value: github-token-secret, required: true, description: the token}
    steps:
      - name: github-clone
        configMap: github-clone-step
        enabled: true
      - name: kaniko-build
        configMap: kaniko-docker-build-step-external
        enabled: true
        requiredParameters: [image]
        parameters:
          - {name: DOCKERFILE, value: Dockerfile}
        whenExpressions:
          - {input: "yes", operator: in, values: ["yes"]}
  buildArgs:
    - {name: VERSION, value: "1"}
  buildOutput:
    image: "<will be replaced with imageSource.image above>"
    imageTag: v0.0.1
    imageRegistry: ghcr.io/kagenti
    imageRepoCredentials: {name: ghcr-secret}
`,
	}
	for name, text := range manifests {
		u := w.unstructured(text)
		if err := w.Client.Create(t.Context(), u, client.FieldValidation("Strict")); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, field := range []string{"mode", "cleanupAfterBuild", "onChange", "onTemplateChange"} {
			if _, ok, _ := unstructured.NestedFieldNoCopy(u.Object, "spec", field); !ok {
				t.Errorf("%s: no default for %s", name, field)
			}
		}
	}
}

func (w *world) unstructured(text string) *unstructured.Unstructured {
	w.Helper()
	u := &unstructured.Unstructured{}
	w.must(yaml.UnmarshalStrict([]byte(text), &u.Object))
	u.SetAPIVersion("agent.kagenti.dev/v1alpha1")
	u.SetKind("AgentBuild")
	u.SetNamespace(w.namespace)
	return u
}

// The API server refuses what the schema and the CEL rules forbid, in words that
// say how to fix it.
func TestSchemaRefuses(t *testing.T) {
	w := newWorld(t)
	long := strings.Repeat("x", 32*1024+1)
	tests := map[string]string{
		"source: {sourceRepository: " +
			"'https://me:secret@host/x'}": "put it in a Secret and name that in sourceCredentials",
		"source: {sourceSubfolder: " +
			"/etc}": "must be a path inside the repository",
		"source: {sourceSubfolder: " +
			"a/../b}": "must be a path inside the repository",
		"source: {sourceRepository: " +
			"'host/a b'}": "must not hold spaces",
		"source: {sourceRepository: " +
			"'file:///etc'}": "must be a Git URL over https or ssh",
		"source: {sourceRepository: " +
			"'git://host/x'}": "must be a Git URL over https or ssh",
		"source: {sourceRepository: " +
			"'--upload-pack=id'}": "must be a Git URL over https or ssh",
		"source: {sourceRevision: " +
			"'--upload-pack=id'}": "must not begin with '-'",
		"source: {}\npipeline: {parameters: [{name: a, value: " + long +
			"}]}": "than 32768",
		"source: {}\npipeline: {parameters: [{name: a, array: [" + long +
			"]}]}": "than 32768",
		"source: {}\nbuildArgs: [{name: a, value: " + long +
			"}]": "than 32768",
		"source: {}\n" +
			"network: host": "supported values",
		"source: {}\nsecrets: [{id: " +
			"../x, name: a}]": "must be letters, digits",
		"source: {}\nsecrets: [{id: " +
			"'a,src=/etc/passwd', name: a}]": "must be letters, digits",
		"source: {}\ncache: " +
			"{mode: all}": "supported values",
		"source: {}\ncache: {registry: " +
			"'r/a,mode=min'}": "must be a repository with its registry",
		"source: {}\n" +
			"builder: docker": "supported values",
		"source: {}\nplatforms: " +
			"[linux/sparc]": "spec.platforms[0]: unsupported value",
		"source: {}\nplatforms: [linux/amd64, " +
			"linux/amd64]": "spec.platforms[1]: duplicate value",
		"source: {}\n" +
			"platforms: []": "spec.platforms: invalid value: 0",
		"source: {}\nbuilder: kaniko\n" +
			"platforms: [linux/amd64]": "spec.platforms: invalid value: needs builder: buildkit",
		"source: {}\n" +
			"platformNodes: Any": "spec.platformnodes: invalid value: has no effect " +
			"without platforms",
		"source: {}\nplatforms: [linux/amd64]\n" +
			"platformNodes: x": "supported values",
		"source: {}\nmode: Dev": "use lower-case letters, digits and '-'",
		"source: {}\n" +
			"timeout: 0s": "must be a positive duration such as 45m",
		"source: {}\nretries: " +
			"{limit: 11}": "less than or equal to 10",
		"source: {}\nretries: " +
			"{backoff: -1s}": "must be a duration such as 30s",
		"source: {}\nretention: " +
			"{ttlAfterFailed: -1h}": "must be a duration such as 72h",
		"source: {}\n" +
			"priority: 1001": "less than or equal to 1000",
		"source: {}\n" +
			"priority: -1001": "greater than or equal to -1000",
		"source: {}\n" +
			"onChange: Restart": "supported values",
		"source: {}\npipeline: {steps: [{name: " +
			"Bad_Name}]}": "must be a DNS label such as unit-tests",
		"source: {}\npipeline: {parameters: [{name: a, value: x, " +
			"array: [z]}]}": "keep the one of the parameter's type",
		"source: {}\npipeline: {workspaces: " +
			"[{name: a}]}": "must name exactly one of",
		"source: {}\npipeline: {steps: [{name: a, whenExpressions: [{input: x, operator: eq, " +
			"values: [a]}]}]}": "supported values",
		"source: {}\nbuildOutput: {image: a, " +
			"imageTag: b}": "imageRegistry: Required value",
		"mode: dev": "source: Required value",
	}
	for spec, want := range tests {
		text := "metadata: {name: broken}\nspec:\n"
		for _, line := range strings.Split(spec, "\n") {
			text += "  " + line + "\n"
		}
		err := w.Client.Create(t.Context(), w.unstructured(text), client.DryRunAll)
		// Kubernetes 1.29 writes "object" as the value that a rule refuses.
		if err == nil ||
			!strings.Contains(strings.ToLower(strings.Replace(err.Error(), `"object": `, "", 1)),
				strings.ToLower(want)) {
			t.Errorf("%.200s\n  got %v, want %q", spec, err, want)
		}
	}
}
