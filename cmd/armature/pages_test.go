package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

var (
	codeBlocks = regexp.MustCompile("(?ms)^```[a-z]*\n(.*?)^```")
	inLine     = regexp.MustCompile("`(armature [^`\n]+)`")
	// ends are where the shell takes the line over.
	ends = regexp.MustCompile(`\s(\||>|#|;|&&|\\$).*|\)`)
)

// TestCommandsInPages looks up each command and flag that a page, an example, a template or a
// workflow writes.
func TestCommandsInPages(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "git", "-C", "../..", "ls-files", "*.md",
		"action.yml", "examples", "templates", ".github").Output()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, name := range strings.Fields(string(out)) {
		// of earlier times
		if name == "CHANGELOG.md" || strings.HasPrefix(name, "docs/contributing/") {
			continue
		}
		text, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil && !errors.Is(err, syscall.EISDIR) { // a link to a folder
			t.Fatal(err)
		}
		blocks := [][]string{{"", string(text)}}
		if strings.HasSuffix(name, ".md") {
			blocks = append(codeBlocks.FindAllStringSubmatch(string(text), -1),
				inLine.FindAllStringSubmatch(string(text), -1)...)
		}
		for _, block := range blocks {
			for line := range strings.Lines(strings.ReplaceAll(block[1], "\\\n", " ")) {
				before, rest, ok := strings.Cut(strings.TrimSpace(line), "armature ")
				if !ok || before != "" && before != "$ " && !strings.HasSuffix(before, "| ") {
					continue
				}
				found++
				words := strings.Fields(ends.ReplaceAllString(rest, ""))
				c, args, err := root().Find(words)
				if err != nil || c == root() || c.Name() == "armature" {
					t.Errorf("%s: armature %s: no such command: %v", name, rest, err)
					continue
				}
				for _, arg := range args {
					arg, _, _ = strings.Cut(arg, "=")
					if arg == "--" {
						break
					}
					switch flags := c.Flags(); {
					case arg == "--help", arg == "-h":
					case strings.HasPrefix(arg, "--") && flags.Lookup(arg[2:]) == nil &&
						c.InheritedFlags().Lookup(arg[2:]) == nil,
						len(arg) == 2 && arg[0] == '-' && flags.ShorthandLookup(arg[1:]) == nil:
						t.Errorf("%s: armature %s: no flag %s", name, rest, arg)
					}
				}
			}
		}
	}
	if found < 100 {
		t.Errorf("%d commands", found)
	}
}
