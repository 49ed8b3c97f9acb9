package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
)

// hostile clears the screen, sets the title, and overwrites the line that it is on.
const hostile = "\x1b[2J\x1b]0;x\x07fail\rpass"

func plain(t *testing.T, text string) {
	t.Helper()
	if strings.ContainsFunc(text, func(r rune) bool {
		return unicode.IsControl(r) && r != '\n' && r != '\t'
	}) {
		t.Errorf("a control character is in %q", text)
	}
	if !strings.Contains(text, `\x1b[2J\x1b]0;x\afail\rpass`) {
		t.Errorf("the words are lost: %q", text)
	}
}

func TestBuildDescribeIsPlain(t *testing.T) {
	for name, edit := range map[string]func(*api.AgentBuild){
		"message": func(b *api.AgentBuild) { b.Status.Message = hostile },
		"log": func(b *api.AgentBuild) {
			b.Status.FailureDetails = &api.FailureDetails{LogTail: []string{hostile}}
		},
		"revision": func(b *api.AgentBuild) { b.Spec.Source.SourceRevision = hostile },
		"reason": func(b *api.AgentBuild) {
			b.Status.Tasks = []api.TaskStatus{{Name: "only", Reason: hostile}}
		},
		"attestation": func(b *api.AgentBuild) {
			b.Status.BuiltImage, b.Status.Attestation =
				"x", &api.Attestation{Image: "x", ProvenanceDigest: hostile}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: "team1", Name: "weather"}}
			edit(b)
			var out bytes.Buffer
			if err := describe(&out, b, b.Status.Tasks); err != nil {
				t.Fatal(err)
			}
			plain(t, out.String())
		})
	}
}

// install and plan hand the operator's hosts and networks on.
func TestPlainHTTPHosts(t *testing.T) {
	a := offline()
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values,
		[]byte("{plainHTTPHosts: ['git.local:3000', other], gitAllowNetwork: [169.254.20.0/24]}"),
		0o600); err != nil {
		t.Fatal(err)
	}
	text, _ := a.run(t, 0, "install", "--values", values)
	if !strings.Contains(text, "- --plain-http-hosts=git.local:3000,other\n") ||
		!strings.Contains(text, "- --git-allow-network=169.254.20.0/24\n") {
		t.Error("the controller does not get the flags")
	}
	file := filepath.Join(t.TempDir(), "build.yaml")
	const build = `apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: weather}
spec:
  source: {sourceRepository: "http://git.local:3000/x", sourceCredentials: {name: login}}
  buildOutput: {imageRegistry: registry.local, image: weather, imageTag: v1}
`
	if err := os.WriteFile(file, []byte(build), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs := a.run(t, 1, "build", "plan", file); !strings.Contains(errs,
		"a login is not sent to git.local:3000 over plain http\n  hint: use https or ssh") {
		t.Error(errs)
	}
	a.run(t, 0, "build", "plan", file, "--values", values)
}
