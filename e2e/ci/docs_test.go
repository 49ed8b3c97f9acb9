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
	// mostOperateWords are those of docs/operate.md with its tables.
	mostOperateWords = 2500
)

// TestDocs counts the words of pages for users and refuses names of tests in them.
func TestDocs(t *testing.T) {
	if words := len(strings.Fields(read(t, filepath.Join(root, "README.md")))); words > mostReadmeWords {
		t.Errorf("README.md has %d words, at most %d: it has one reader and one job", words,
			mostReadmeWords)
	}
	if words := len(strings.Fields(read(t, filepath.Join(root, "docs", "operate.md")))); words >
		mostOperateWords {
		t.Errorf("docs/operate.md has %d words, at most %d: who is woken by an alert reads it",
			words, mostOperateWords)
	}
	test, total := regexp.MustCompile(`Test[A-Z]\w*`), 0
	generated := regexp.MustCompile(`(?s)<!-- [^>]*written [^>]*UPDATE=1 -->.*?<!-- end -->`)
	for _, name := range strings.Fields(git(t, root, "ls-files", "--cached", "--others",
		"--exclude-standard", "docs/*.md")) {
		if strings.HasPrefix(name, "docs/contributing/") {
			continue
		}
		text := read(t, filepath.Join(root, name))
		if found := test.FindString(text); found != "" {
			t.Errorf("%s names %s: tests are for docs/contributing", name, found)
		}
		if !strings.HasPrefix(name, "docs/reference/") {
			total += len(strings.Fields(generated.ReplaceAllString(text, "")))
		}
	}
	if total > mostWords || total < mostWords/2 {
		t.Errorf("pages for users have %d words, at most %d: move internals to "+
			"docs/contributing, and generate references", total, mostWords)
	}
}

// TestAgentBuildReference compares docs/reference/agentbuild.md with the definition of the kind.
func TestAgentBuildReference(t *testing.T) {
	want, err := page.Fields([]byte(read(t,
		filepath.Join(root, "templates", "crds", "agent.kagenti.dev_agentbuilds.yaml"))),
		"Every field of `spec`. [Builds](../builds.md) explains when to use them. A test "+
			"writes this page.")
	if err != nil {
		t.Fatal(err)
	}
	page.Generated(t, filepath.Join(root, "docs", "reference", "agentbuild.md"), want)
}

var yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(apiVersion: .*?)^```")

// TestMyAgent lints the agents of docs/my-agent.md, with the least configuration.
func TestMyAgent(t *testing.T) {
	dir := t.TempDir()
	for i, block := range yamlBlock.FindAllStringSubmatch(read(t,
		filepath.Join(root, "docs", "my-agent.md")), -1) {
		write(t, filepath.Join(dir, "apps", fmt.Sprintf("%d.yaml", i)), block[1])
	}
	program := filepath.Join(bin, "armature")
	if out, err := shell(t, dir, nil, program, "lint", "apps"); err != nil ||
		!strings.Contains(out, "0 errors, 0 warnings") {
		t.Errorf("lint finds what the page has to change: %v\n%s", err, out)
	}
	if out, err := shell(t, dir, nil, program, "render", "apps", "-d", "rendered"); err != nil ||
		!strings.Contains(out, "3 workloads injected") {
		t.Errorf("not all agents are injected: %v\n%s", err, out)
	}
}

// TestExamples renders or plans each manifest that a page shows as yaml, beside the workload that
// it names. Annotations and a RenderConfig are those of a workload that opted in.
func TestExamples(t *testing.T) {
	targets := regexp.MustCompile(`targetRef: \{.*kind: (\w+), name: ([\w-]+)\}`)
	blocks := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```")
	shown := make(map[string]int) // by what a block begins with
	for _, name := range strings.Fields(git(t, root, "ls-files", "--cached", "--others",
		"--exclude-standard", "docs/*.md")) {
		for _, block := range blocks.FindAllStringSubmatch(read(t, filepath.Join(root, name)), -1) {
			text, annotations, file, kind, workload, build :=
				block[1], "", "example.yaml", "Deployment", "agent", false
			begin, _, _ := strings.Cut(text, "\n")
			switch m := targets.FindStringSubmatch(text); {
			case begin == "metadata:":
				annotations = strings.TrimPrefix(text, "metadata:\n")
				text = ""
			case !strings.HasPrefix(begin, "apiVersion: "): // a part of a manifest
				continue
			case strings.HasPrefix(text, "apiVersion: armature.dev/v1alpha1\nkind: RenderConfig\n"):
				file, begin = "armature.yaml", "RenderConfig"
			case strings.Contains(text, "\nkind: AgentBuild\n"):
				build, begin = true, "AgentBuild"
			case m != nil:
				kind, workload, begin = m[1], m[2], "targetRef"
			}
			shown[begin]++
			dir := t.TempDir()
			write(t, filepath.Join(dir, "apps", file), text)
			write(t, filepath.Join(dir, "apps", "agent.yaml"),
				"apiVersion: apps/v1\nkind: "+kind+"\nmetadata:\n  name: "+workload+
					"\n  labels:\n    kagenti.io/inject: enabled\n"+
					strings.TrimPrefix(annotations, "  labels:\n    kagenti.io/inject: enabled\n")+
					"spec: {selector: {matchLabels: {app: agent}}, template: {metadata: {labels: "+
					"{app: agent}}, spec: {containers: [{name: agent, image: "+
					"\"example/agent:v1\"}]}}}\n")
			if out, err := shell(t, dir, nil, filepath.Join(bin, "armature"), "lint",
				"apps"); err != nil {
				t.Errorf("%s shows what lint refuses: %v\n%s\n%s", name, err, out, block[1])
			}
			if !build {
				continue
			}
			if out, err := shell(t, dir, nil, filepath.Join(bin, "armature"), "build", "plan",
				"apps/example.yaml"); err != nil {
				t.Errorf("%s shows a build that has no plan: %v\n%s\n%s", name, err, out, block[1])
			}
		}
	}
	if shown["RenderConfig"] < 3 || shown["metadata:"] < 5 || shown["AgentBuild"] < 2 ||
		shown["targetRef"] < 2 {
		t.Errorf("pages show %v", shown)
	}
}
