package ci

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// wholly names the tests that play all blocks of sh of a page, one after another, and compare what
// the page shows of their output.
var wholly = map[string]string{
	"README.md":                        "e2e/ci/tutorials_test.go",
	"docs/getting-started.md":          "e2e/ci/tutorials_test.go",
	"docs/tutorials/argocd.md":         "e2e/ci/tutorials_test.go",
	"docs/tutorials/build.md":          "e2e/stories/getting_started_test.go",
	"docs/tutorials/flux.md":           "e2e/ci/tutorials_test.go",
	"docs/tutorials/github-actions.md": "e2e/ci/tutorials_test.go",
	"docs/tutorials/run.md":            "e2e/stories/getting_started_test.go",
}

// unplayed are lines of blocks that are neither commands nor manifests, with the reason.
var unplayed = map[string]string{
	"push ──▶ webhook or poll":         "a drawing",
	"AgentBuild.spec.trigger":          "a drawing",
	"/ok-to-test 0123456789abcdef0123": "a comment on a pull request",
}

var (
	fence   = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")
	command = regexp.MustCompile(
		`^(([A-Z]+=\S* )*(armature(-controller)?|brew|cosign|curl|flux|git|go|helm|kpt|kubectl|kustomize|ln|make|mkdir|sed|echo) .*|for .* do|done|[a-z]+=\S+.*|#.*)$`)
	// single is a page that one command of a test plays, in a story or in Go.
	single = regexp.MustCompile(
		"(?m)^!? ?page (\\S+) '(.*)'$|page\\.Shown\\(t, \"(\\S+)\", \"(.*)\", ")
)

// TestOutputs: each output on a page for users is below the command that prints it, and a test
// plays the command and compares. Blocks without a language only have commands, which are looked
// up.
func TestOutputs(t *testing.T) {
	played := make(map[string]bool) // page and first line of a block
	for _, name := range strings.Fields(git(t, root, "ls-files", "--cached", "--others",
		"--exclude-standard", "*_test.go", "cmd/armature/testdata/stories")) {
		for _, m := range single.FindAllStringSubmatch(read(t, filepath.Join(root, name)), -1) {
			played[m[1]+m[3]+": "+strings.ReplaceAll(m[2], "''", "'")+m[4]] = true
		}
	}
	outputs, used := 0, make(map[string]bool)
	pages := append(strings.Fields(git(t, root, "ls-files", "--cached", "--others",
		"--exclude-standard", "docs/*.md", "functions/*/*.md")), "README.md")
	for _, name := range pages {
		if strings.HasPrefix(name, "docs/contributing/") {
			continue
		}
		text := read(t, filepath.Join(root, name))
		if by := wholly[name]; by != "" {
			if source := read(t,
				filepath.Join(root, by)); !strings.Contains(source,
				`"`+strings.TrimPrefix(strings.TrimPrefix(name, "docs/"), "tutorials/")) &&
				!strings.Contains(source, strings.TrimPrefix(name, "docs/")+`"`) {
				t.Errorf("%s does not play %s", by, name)
			}
		}
		printed := "" // the first line of the block of sh that the next output is of
		for _, m := range fence.FindAllStringSubmatch(text, -1) {
			first, _, _ := strings.Cut(m[2], "\n")
			switch m[1] {
			case "sh":
				printed = first
				if wholly[name] == "" && !played[name+": "+first] {
					t.Errorf("%s: nothing plays the block of sh %q: play it in a story (page %s "+
						"'%s'), or leave out sh and the output", name, first, name, first)
				}
			case "text", "diff":
				outputs++
				if printed == "" {
					t.Errorf("%s shows an output of no command: %q", name, first)
				}
			case "":
				commands(t, name, m[2], used)
			case "mermaid":
				if name != "docs/builds.md" {
					t.Errorf("%s has a drawing that no test compares, as builds/client does "+
						"that of docs/builds.md", name)
				}
			case "yaml", "python", "dockerfile":
			default:
				t.Errorf("%s has a block of %s: write sh before what a test plays, text or diff "+
					"before its output", name, m[1])
			}
		}
		indented(t, name, fence.ReplaceAllString(text, ""), used)
	}
	for start, reason := range unplayed {
		if !used[start] {
			t.Errorf("no page has %q any more: %s", start, reason)
		}
	}
	if outputs < 25 {
		t.Errorf("pages show %d outputs", outputs)
	}
}

// commands reports what is not a command in a block without a language.
func commands(t *testing.T, page, block string, used map[string]bool) {
	t.Helper()
lines:
	for line := range strings.Lines(strings.ReplaceAll(block, "\\\n", " ")) {
		line = strings.TrimSpace(line)
		for start := range unplayed {
			if strings.HasPrefix(line, start) {
				used[start] = true
				continue lines
			}
		}
		if line != "" && !command.MatchString(line) {
			t.Errorf("%s shows %q, which is no command: mark an output as text, below the block "+
				"of sh that prints it", page, line)
		}
	}
}

// indented reports outputs in blocks that are only indented. Manifests begin with a field.
func indented(t *testing.T, page, text string, used map[string]bool) {
	t.Helper()
	for block := range strings.SplitSeq(text, "\n\n") {
		if strings.HasPrefix(block, "    ") &&
			!regexp.MustCompile(`^    [a-zA-Z]+:( |$|\n)`).MatchString(block) {
			commands(t, page, block, used)
		}
	}
}
