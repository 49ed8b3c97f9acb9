package compose_test

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/armature-dev/armature/builds/compose"
)

// good is a build with nothing wrong; each case changes one thing.
const good = `apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata:
  name: weather
spec:
  mode: own
  source:
    sourceRepository: github.com/org/weather
  buildOutput:
    imageRegistry: registry.local:5000
    image: weather
    imageTag: v1
`

const goodTemplate = `steps:
  - name: first
    configMap: first-step
  - name: second
    configMap: second-step
`

const goodFirst = `results:
  - name: version
  - name: list
    type: array
steps:
  - name: say
    image: busybox:1.37.0
    script: |
      echo -n 1 > $(results.version.path)
      echo -n '[]' > $(results.list.path)
`

const goodSecond = `params:
  - name: image
steps:
  - name: say
    image: busybox:1.37.0
    command: [echo, $(params.image)]
`

// broken are faults that users make. The messages they see are in
// testdata/broken/messages.txtar, under the same names. Those marked (*) are not found by
// Tekton's own Validate.
var broken = []struct {
	name                           string
	build, template, first, second string
}{
	{name: "build: not YAML", build: "kind: AgentBuild\n\tspec: {}\n"},
	{name: "build: a text", build: "# a note\nbuild the weather agent\n"},
	{name: "build: a list",
		build: good + "---\n- " + strings.ReplaceAll(strings.TrimSpace(good), "\n", "\n  ") + "\n"},
	{name: "build: no AgentBuild", build: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"},
	{name: "build: wrong group",
		build: strings.Replace(good, "agent.kagenti.dev", "agent.example.com", 1)},
	{name: "build: unknown field", build: good + "  sourceBranch: main\n"},
	{name: "build: doubled key", build: good + "  mode: dev\n"},
	{name: "build: wrong type", build: good + "  cancel: maybe\n"},
	{name: "build: null in a list", build: good + "  secrets: [null]\n"},
	{name: "build: no source",
		build: "apiVersion: agent.kagenti.dev/v1alpha1\nkind: AgentBuild\n" +
			"metadata: {name: weather}\nspec: {mode: own}\n"},
	{name: "build: no name", build: strings.Replace(good, "name: weather", "labels: {}", 1)},
	{name: "build: password in the URL",
		build: strings.Replace(good, "github.com/org", "https://me:s3cret@github.com/org", 1)},
	{name: "build: password in a URL without a scheme",
		build: strings.Replace(good, "github.com/org", "me:s3cret@github.com/org", 1)},
	{name: "build: password in a parameter",
		build: good +
			"  pipeline: {parameters: [{name: SOURCE_REPO_URL, value: " +
			"'https://me:s3cret@github.com/org/x'}]}\n"},
	{name: "build: name in capitals",
		build: strings.Replace(good, "name: weather", "name: Weather", 1)},
	{name: "build: unknown metadata",
		build: strings.Replace(good, "name: weather", "name: weather\n  nmespace: team1", 1)},
	{name: "build: generateName",
		build: strings.Replace(good, "name: weather", "generateName: weather-", 1)},
	{name: "build: revision that YAML takes for a number",
		build: strings.Replace(good, "  buildOutput:", "    sourceRevision: 1.10\n  buildOutput:",
			1)},
	{name: "build: duration in words", build: good + "  retries: {limit: 1, backoff: 1 day}\n"},
	{name: "build: credentials without a name", build: good + "    imageRepoCredentials: {}\n"},
	{name: "build: label that no object may have", build: good + "  labels: {team: a b}\n"},
	{name: "build: image parameter in capitals",
		build: good + "  pipeline: {parameters: [{name: image, value: registry.local/Weather}]}\n"},
	{name: "build: shared workspace bound and kept",
		build: good +
			"  workspace: {keep: true}\n  pipeline: {workspaces: [{name: shared-workspace, " +
			"emptyDir: true}]}\n",
		first: goodFirst + "workspaces: [{name: source}]\n"},
	{name: "build: workspace of no size", build: good + "  workspace: {size: -1Gi}\n"},
	{name: "build: item of a List",
		build: "apiVersion: v1\nkind: List\nitems:\n- " +
			strings.ReplaceAll(strings.TrimSpace(good+"  sourceBranch: main"), "\n", "\n  ") +
			"\n"},
	{name: "build: behind the separator",
		build: "--- {apiVersion: agent.kagenti.dev/v1alpha1, kind: AgentBuild, metadata: {name: " +
			"weather}, spec: {}}\n"},
	{name: "build: behind the end of a document", build: good + "...\nkind: [\n"},
	{name: "build: folder outside",
		build: strings.Replace(good, "  buildOutput:",
			"    sourceSubfolder: a/../../etc\n  buildOutput:", 1)},
	{name: "build: bad mode", build: strings.Replace(good, "mode: own", "mode: Own_Mode", 1)},
	{name: "build: no such mode", build: strings.Replace(good, "mode: own", "mode: staging", 1)},
	{name: "build: revision that is an option",
		build: strings.Replace(good, "  buildOutput:",
			"    sourceRevision: --upload-pack=id\n  buildOutput:", 1)},
	{name: "build: revision parameter that is an option",
		build: good + "  pipeline: {parameters: [{name: revision, value: --upload-pack=id}]}\n"},
	{name: "build: file URL",
		build: strings.Replace(good, "github.com/org/weather", "file:///etc", 1)},
	{name: "build: file URL in a parameter",
		build: good +
			"  pipeline: {parameters: [{name: SOURCE_REPO_URL, value: 'file:///etc'}]}\n"},
	{name: "build: long value",
		build: good + "  pipeline: {parameters: [{name: image, value: " +
			strings.Repeat("x", 32*1024+1) + "}]}\n"},
	{name: "build: bad policy", build: good + "  onChange: Restart\n"},
	{name: "build: negative timeout", build: good + "  timeout: -5m\n"},
	{name: "build: too many retries", build: good + "  retries: {limit: 99}\n"},
	{name: "build: two forms of a value",
		build: good + "  pipeline: {parameters: [{name: image, value: a, array: [b]}]}\n"},
	{name: "build: workspace bound twice",
		build: good +
			"  pipeline: {workspaces: [{name: cache, emptyDir: true, secret: {name: x}}]}\n"},
	{name: "build: no such step",
		build: good + "  pipeline: {steps: [{name: third, enabled: false}]}\n"},
	{name: "build: unknown parameter",
		build: good + "  pipeline: {parameters: [{name: imag, value: x}]}\n"},
	{name: "build: unknown step parameter",
		build: good +
			"  pipeline: {steps: [{name: second, parameters: [{name: imag, value: x}]}]}\n"},
	{name: "build: array for a string",
		build: good + "  pipeline: {parameters: [{name: image, array: [x]}]}\n"},
	{name: "build: aliases that differ",
		build: good +
			"  pipeline: {parameters: [{name: repo-url, value: a}, {name: SOURCE_REPO_URL, " +
			"value: b}]}\n"},
	{name: "build: buildArgs that no step takes",
		build: good + "  buildArgs: [{name: VERSION, value: '1'}]\n"},
	{name: "build: workspace that no step has",
		build: good + "  pipeline: {workspaces: [{name: cache, emptyDir: true}]}\n"},
	{name: "build: bad pipeline-timeout",
		build: good + "  pipeline: {parameters: [{name: pipeline-timeout, value: soon}]}\n"},
	{name: "build: no output", build: strings.Split(good, "  buildOutput:")[0]},
	{name: "build: step ConfigMap is missing",
		build: good + "  pipeline: {steps: [{name: only, configMap: nowhere}]}\n"},
	{name: "build: all steps disabled",
		build: good +
			"  pipeline: {steps: [{name: first, enabled: false}, {name: second, enabled: false}]}\n"},
	{name: "build: reserved annotation", build: good + "  annotations: {armature.dev/rerun: x}\n"},
	{name: "build: registry with a scheme",
		build: strings.Replace(good, "registry.local:5000", "https://registry.local", 1)},
	{name: "build: image in capitals",
		build: strings.Replace(good, "image: weather", "image: Weather", 1)},
	{name: "build: two things at once",
		build: good +
			"  buildArgs: [{name: VERSION, value: '1'}]\n  pipeline: {parameters: [{name: imag, " +
			"value: x}]}\n"},

	{name: "template: not YAML", template: "steps: [\n"},
	{name: "template: a list", template: "- name: first\n"},
	{name: "template: unknown field",
		template: strings.Replace(goodTemplate, "configMap: second-step",
			"configMap: second-step\n    enable: false", 1)},
	{name: "template: wrong type", template: "steps: {first: first-step}\n"},
	{name: "template: less than no retries",
		template: strings.Replace(goodTemplate, "configMap: second-step",
			"configMap: second-step\n    retries: -1", 1)},
	{name: "template: workspace that the step lacks",
		template: strings.Replace(goodTemplate, "configMap: second-step",
			"configMap: second-step\n    workspaces: {cache: shared-workspace}", 1)},
	{name: "template: no configMap", template: "steps: [{name: first}]\n"},
	{name: "template: doubled step",
		template: goodTemplate + "  - name: first\n    configMap: second-step\n"},
	{name: "template: bad step name",
		template: "steps: [{name: First_Step, configMap: first-step}]\n"},
	{name: "template: long value (*)",
		template: goodTemplate + "    defaultParameters: [{name: note, value: " +
			strings.Repeat("x", 32*1024+1) + "}]\n",
		second: "params: [{name: image}, {name: note}]\n" +
			goodSecond[strings.Index(goodSecond, "steps:"):]},
	{name: "template: long item of a list (*)",
		template: goodTemplate + "    defaultParameters: [{name: notes, value: [a, " +
			strings.Repeat("x", 32*1024+1) + "]}]\n",
		second: "params: [{name: image}, {name: notes, type: array}]\n" +
			goodSecond[strings.Index(goodSecond, "steps:"):]},
	{name: "template: unknown operator",
		template: strings.Replace(goodTemplate, "configMap: second-step",
			"configMap: second-step\n    whenExpressions: [{input: a, operator: equals, "+
				"values: [a]}]", 1)},
	{name: "template: when without values",
		template: strings.Replace(goodTemplate, "configMap: second-step",
			"configMap: second-step\n    whenExpressions: [{input: a, operator: in, values: []}]",
			1)},
	{name: "template: runAfter nothing",
		template: strings.Replace(goodTemplate, "configMap: second-step",
			"configMap: second-step\n    runAfter: [zeroth]", 1)},
	{name: "template: a cycle",
		template: strings.Replace(goodTemplate, "configMap: first-step",
			"configMap: first-step\n    runAfter: [second]", 1)},
	{name: "template: required and absent",
		template: strings.Replace(goodTemplate, "configMap: second-step",
			"configMap: second-step\n    requiredParameters: [token]", 1)},
	{name: "template: retries with onError",
		template: strings.Replace(goodTemplate, "configMap: second-step",
			"configMap: second-step\n    retries: 2\n    onError: continue", 1)},
	{name: "template: finally that waits",
		template: strings.Replace(goodTemplate, "configMap: second-step",
			"configMap: second-step\n    finally: true\n    runAfter: [first]", 1)},
	{name: "template: result of a disabled step (*)",
		template: strings.Replace(goodTemplate, "configMap: first-step",
			"configMap: first-step\n    enabled: false", 1) +
			"    defaultParameters: [{name: image, value: $(tasks.first.results.version)}]\n",
		build: strings.Split(good, "  buildOutput:")[0]},
	{name: "template: result that is not declared (*)",
		template: goodTemplate +
			"    whenExpressions: [{input: $(tasks.first.results.versoin), operator: in, values: " +
			"[\"1\"]}]\n"},
	{name: "template: task timeout above the pipeline's (*)",
		template: "globalParameters: [{name: pipeline-timeout, value: 10m}]\n" + goodTemplate +
			"    timeout: 1h\n"},
	{name: "template: unknown pipeline parameter (*)",
		template: goodTemplate +
			"    whenExpressions: [{input: $(params.branch), operator: in, values: [main]}]\n"},

	{name: "step: not YAML", second: "steps:\n- name: say\n   image: x\n"},
	{name: "step: a whole Task",
		second: "apiVersion: tekton.dev/v1\nkind: Task\nspec:\n  steps: [{name: say, image: " +
			"busybox}]\n"},
	{name: "step: unknown field",
		second: strings.Replace(goodSecond, "image: busybox:1.37.0",
			"image: busybox:1.37.0\n    comand: [x]", 1)},
	{name: "step: no steps", second: "params: [{name: image}]\n"},
	{name: "step: no image", second: "steps: [{name: say, command: [echo]}]\n"},
	{name: "step: doubled step name",
		second: "steps: [{name: say, image: a, command: [a]}, {name: say, image: b, " +
			"command: [b]}]\n"},
	{name: "step: undeclared parameter in a script",
		second: "steps: [{name: say, image: a, script: echo $(params.nobody)}]\n"},
	{name: "step: undeclared parameter in a volume (*)",
		second: goodSecond +
			"volumes: [{name: key, secret: {secretName: $(params.key-secret)}}]\n"},
	{name: "step: undeclared workspace (*)",
		second: "steps: [{name: say, image: a, workingDir: $(workspaces.sources.path), " +
			"command: [ls]}]\n"},
	{name: "step: undeclared result",
		second: "steps: [{name: say, image: a, script: echo > $(results.sum.path)}]\n"},
	{name: "step: parameter without value or default (*)",
		second: strings.Replace(goodSecond, "- name: image\n", "- name: image\n  - name: token\n",
			1)},
	{name: "step: unbound workspace (*)",
		second: goodSecond + "workspaces: [{name: gradle-cache}]\n"},
	{name: "step: credentials demanded and absent (*)",
		second: goodSecond + "workspaces: [{name: registry-credentials}]\n"},
	{name: "step: array default of a string",
		second: strings.Replace(goodSecond, "- name: image\n",
			"- {name: image, type: string, default: [a]}\n", 1)},
	{name: "step: array inside a script",
		second: "params: [{name: build-args, type: array, default: []}]\n" +
			"steps: [{name: say, image: a, script: 'echo $(params.build-args[*])'}]\n"},
	{name: "step: object without a key",
		template: goodTemplate + "    defaultParameters: [{name: who, value: {team: a}}]\n",
		second: strings.Replace(goodSecond, "- name: image\n",
			"- name: image\n  - {name: who, type: object, properties: {team: {type: string}, "+
				"mail: {type: string}}}\n", 1)},
	{name: "step: too large (*)",
		second: "steps: [{name: say, image: a, script: \"" + strings.Repeat("x", 720*1024) +
			"\"}]\n"},
	{name: "step: too many values (*)",
		second: "steps: [" + strings.Repeat("{image: a},", 2000) + "]\n"},
	{name: "steps: too large (*)",
		first: goodFirst + "description: " + strings.Repeat("x", 360*1024) + "\n",
		second: "steps: [{name: say, image: a, script: \"" + strings.Repeat("x", 360*1024) +
			"\"}]\n"},
}

// Every fault is reported with place, problem and remedy, and nothing is composed.
func TestBroken(t *testing.T) {
	const file = "testdata/broken/messages.txtar"
	want := map[string]string{}
	archive, err := txtar.ParseFile(file)
	if err != nil && !*update {
		t.Fatal(err)
	}
	if err == nil {
		for _, f := range archive.Files {
			want[f.Name] = string(f.Data)
		}
	}
	fresh := &txtar.Archive{Comment: []byte("What users see for the faults of TestBroken.\n")}
	for _, test := range broken {
		t.Run(test.name, func(t *testing.T) {
			or := func(text, otherwise string) string {
				if text == "" {
					return otherwise
				}
				return text
			}
			folder := fstest.MapFS{
				"template.yaml": configMap("pipeline-template-own", "template.yaml",
					or(test.template, goodTemplate)),
				"first.yaml": configMap("first-step", "task-spec.yaml",
					or(test.first, goodFirst)),
				"second.yaml": configMap("second-step", "task-spec.yaml",
					or(test.second, goodSecond)),
			}
			out, err := plan(t, []byte(or(test.build, good)), folder, compose.Settings{})
			if err == nil || out != nil {
				t.Fatal("nothing is found wrong")
			}
			got := err.Error() + "\n"
			if !strings.Contains(got, "hint: ") {
				t.Errorf("no remedy in %q", got)
			}
			if strings.Contains(got, "s3cret") {
				t.Errorf("a secret is in %q", got)
			}
			fresh.Files = append(fresh.Files, txtar.File{Name: test.name, Data: []byte(got)})
			if diff := cmp.Diff(want[test.name], got); diff != "" && !*update {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		})
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(fresh), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := plan(t, []byte(good), fstest.MapFS{
		"template.yaml": configMap("pipeline-template-own", "template.yaml", goodTemplate),
		"first.yaml":    configMap("first-step", "task-spec.yaml", goodFirst),
		"second.yaml":   configMap("second-step", "task-spec.yaml", goodSecond),
	}, compose.Settings{}); err != nil {
		t.Errorf("the build that all cases begin with is broken itself: %v", err)
	}
}

// configMap holds text under key.
func configMap(name, key, text string) *fstest.MapFile {
	data := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + "}\ndata:\n  " + key + ": |\n"
	for _, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		data += "    " + line + "\n"
	}
	return &fstest.MapFile{Data: []byte(data)}
}
