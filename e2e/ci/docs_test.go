package ci

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/armature-dev/armature/e2e/page"
)

// Words that pages for users may have together, and README.md alone. What is generated, and what
// is for contributors and auditors, does not count.
const (
	mostWords       = 32000
	mostReadmeWords = 800
)

// TestDocs counts the words of pages for users and refuses names of tests in them.
func TestDocs(t *testing.T) {
	if words := len(strings.Fields(read(t, filepath.Join(root, "README.md")))); words > mostReadmeWords {
		t.Errorf("README.md has %d words, at most %d: it has one reader and one job", words, mostReadmeWords)
	}
	test, total := regexp.MustCompile(`Test[A-Z]\w*`), 0
	for _, name := range strings.Fields(git(t, root, "ls-files", "--cached", "--others", "--exclude-standard", "docs/*.md")) {
		if strings.HasPrefix(name, "docs/contributing/") {
			continue
		}
		text := read(t, filepath.Join(root, name))
		if found := test.FindString(text); found != "" {
			t.Errorf("%s names %s: tests are for docs/contributing", name, found)
		}
		if !strings.HasPrefix(name, "docs/reference/") {
			total += len(strings.Fields(text))
		}
	}
	if total > mostWords || total < mostWords/2 {
		t.Errorf("pages for users have %d words, at most %d: move internals to docs/contributing, and generate references", total, mostWords)
	}
}

// TestAgentBuildReference compares docs/reference/agentbuild.md with the definition of the kind.
func TestAgentBuildReference(t *testing.T) {
	want, err := page.Fields([]byte(read(t, filepath.Join(root, "templates", "crds", "agent.kagenti.dev_agentbuilds.yaml"))),
		"Every field of `spec`. [Builds](../builds.md) explains when to use them. A test writes this page.")
	if err != nil {
		t.Fatal(err)
	}
	page.Generated(t, filepath.Join(root, "docs", "reference", "agentbuild.md"), want)
}

var yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(apiVersion: .*?)^```")

// TestMyAgent lints the agents of docs/my-agent.md, with the least configuration.
func TestMyAgent(t *testing.T) {
	dir := t.TempDir()
	for i, block := range yamlBlock.FindAllStringSubmatch(read(t, filepath.Join(root, "docs", "my-agent.md")), -1) {
		write(t, filepath.Join(dir, "apps", fmt.Sprintf("%d.yaml", i)), block[1])
	}
	program := filepath.Join(bin, "armature")
	if out, err := shell(t, dir, nil, program, "lint", "apps"); err != nil || !strings.Contains(out, "0 errors, 0 warnings") {
		t.Errorf("lint finds what the page has to change: %v\n%s", err, out)
	}
	if out, err := shell(t, dir, nil, program, "render", "apps", "-d", "rendered"); err != nil || !strings.Contains(out, "3 workloads injected") {
		t.Errorf("not all agents are injected: %v\n%s", err, out)
	}
}

// TestConfigurations renders an agent with each RenderConfig that a page shows.
func TestConfigurations(t *testing.T) {
	configurations := 0
	for _, name := range strings.Fields(git(t, root, "ls-files", "--cached", "--others", "--exclude-standard", "docs/*.md")) {
		for _, block := range yamlBlock.FindAllStringSubmatch(read(t, filepath.Join(root, name)), -1) {
			if !strings.HasPrefix(block[1], "apiVersion: armature.dev/v1alpha1\nkind: RenderConfig\n") {
				continue
			}
			configurations++
			dir := t.TempDir()
			write(t, filepath.Join(dir, "apps", "armature.yaml"), block[1])
			write(t, filepath.Join(dir, "apps", "agent.yaml"), "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: agent, labels: {kagenti.io/inject: enabled}}\n"+
				"spec: {selector: {matchLabels: {app: agent}}, template: {metadata: {labels: {app: agent}}, spec: {containers: [{name: agent, image: \"example/agent:v1\"}]}}}\n")
			if out, err := shell(t, dir, nil, filepath.Join(bin, "armature"), "render", "apps", "-d", "rendered"); err != nil {
				t.Errorf("%s shows a configuration that does not render: %v\n%s\n%s", name, err, out, block[1])
			}
		}
	}
	if configurations < 3 {
		t.Errorf("pages show %d configurations", configurations)
	}
}
