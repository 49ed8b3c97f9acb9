package render_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render"
)

// TestShapes: a workload of a package gets what it would get alone, whatever shares its settings
// and texts, and in whatever its names and declarations differ from those before it.
func TestShapes(t *testing.T) {
	t.Parallel()
	const agent = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: NAME
  namespace: team
spec:
  template:
    metadata:
      labels: {kagenti.io/inject: enabled}
    spec:
      containers:
      - name: agent
        image: agent
        ports:
        - containerPort: 8080
        readinessProbe:
          httpGet: {path: /ready, port: 8080}
`
	changes := []string{ // old, new
		"", "", "kind: Deployment", "kind: StatefulSet", "kind: Deployment", "kind: Job",
		"namespace: team", "namespace: other", "  namespace: team\n", "",
		"namespace: team", `namespace: "1234"`,
		"NAME", "yes", "NAME", "a-name-of-fifty-characters-which-has-to-be-shortened",
		"NAME", "armature0shape0n", "NAME", "1-NAME",
		"enabled}", "enabled, kagenti.io/spiffe: disabled}",
		"containerPort: 8080", "containerPort: 9000", "containerPort: 8080", "containerPort: 8081",
		"        ports:\n        - containerPort: 8080\n", "",
		"path: /ready", "path: /", "path: /ready", "path: /ready?full", "port: 8080}", "port: 9999}",
		"path: /ready", `path: "/armature0shape0a"`,
		"image: agent", "image: agent\n        env: [{name: PORT, value: \"7000\"}]",
		"image: agent", "image: agent\n        env: [{name: HTTP_PROXY, value: x}]",
		"    spec:\n", "    spec:\n      serviceAccountName: writer\n",
		"    spec:\n", "    spec:\n      serviceAccountName: \"a$(B)\"\n",
		"    spec:\n", "    spec:\n      volumes: [{name: shared-data, emptyDir: {}}]\n",
		"    spec:\n", "    spec:\n      volumes: [{name: svid-output, emptyDir: {}}]\n",
		"NAME\n", "NAME\n  annotations: {kagenti.io/inbound-port: \"7777\"}\n",
	}
	for name, spec := range map[string]string{
		"authbridge": "profile: authbridge", "kagenti": "profile: kagenti",
		"rossoctl": "profile: rossoctl", "published": "profile: kagenti-published",
		"envoy":  "profile: authbridge\n  authbridge: {mode: envoy-sidecar}",
		"secret": "profile: authbridge\n  authbridge: {clientAuth: client-secret}",
		"trace":  "profile: kagenti\n  trace: {enabled: true, integration: {mlflow: {enabled: true}}}",
		"names": "profile: kagenti\n  identity:\n    clientRegistration: {keycloak: " +
			"{clientNameTemplate: '{{.WorkloadKind}}/{{.WorkloadName}}/{{.ServiceAccount}}'}}",
		"cloud": "profile: kagenti\n  identity:\n    clientRegistration: {provider: aws, aws: " +
			"{roleArn: 'arn:aws:iam::123456789012:role/agent', region: eu-west-1}}",
		"placeholder": "profile: kagenti\n  identity:\n    inbound: {validation: " +
			"{audience: armature0shape0n}}",
	} {
		opt := render.Options{}
		var findings []finding.Finding
		opt.Config, findings = render.ReadConfig([]byte("apiVersion: armature.dev/v1alpha1\n"+
			"kind: RenderConfig\nspec:\n  "+spec+"\n"), "armature.yaml")
		if finding.Failed(findings) {
			t.Fatal(name, findings)
		}
		var all render.Source
		for _, twice := range []string{"first", "second"} {
			for i := 0; i < len(changes); i += 2 {
				text := strings.Replace(agent, changes[i], changes[i+1], 1)
				text = strings.ReplaceAll(text, "NAME", fmt.Sprintf("%s-%d", twice, i))
				if twice == "second" && changes[i] == "NAME" {
					text = strings.Replace(text, "namespace: team", "namespace: again", 1)
				}
				all.Files = append(all.Files, render.File{Path: fmt.Sprintf("%s/%d.yaml", twice, i),
					Data: []byte(text)})
			}
		}
		together := run(t, all, opt)
		for _, f := range all.Files {
			alone := run(t, render.Source{Files: []render.File{f}}, opt)
			if diff := cmp.Diff(alone[f.Path], together[f.Path]); diff != "" {
				t.Errorf("%s, %s: alone and in a package: %s", name, f.Path, diff)
			}
		}
	}
}

// run returns the files of a render and, behind each, what was found in it. Files with an
// error are not rendered, so that the others are seen.
func run(t *testing.T, src render.Source, opt render.Options) map[string]string {
	t.Helper()
	texts := make(map[string]string)
	findings, _, err := render.Stream(src, opt, func(file string, data []byte) error {
		texts[file] = string(data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		if f.Rule != "inject/new-account" && f.Rule != "inject/unpublished-image" { // once a package
			texts[f.File] += fmt.Sprintln(f)
		}
	}
	return texts
}
