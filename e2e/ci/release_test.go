package ci

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/armature-dev/armature/e2e/programs"
)

// The manual that a release ships has a page for each command, which says what --help says.
func TestManual(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program := filepath.Join(dir, "armature")
	if err := programs.Build(dir, "cmd/armature", "-tags", "man"); err != nil {
		t.Fatal(err)
	}
	if out, err := shell(t, dir, map[string]string{"SOURCE_DATE_EPOCH": "1700000000"}, program,
		"man", "man"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	pages, err := filepath.Glob(filepath.Join(dir, "man", "*.1"))
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, page := range pages {
		checkPage(t, page)
	}
}

// checkPage compares a page of the manual with what --help of its command says, word
// by word, and lets groff format it, where there is one.
func checkPage(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(file)
	if !bytes.HasPrefix(text, []byte(".nh\n.TH ")) || !bytes.Contains(text, []byte(`"Nov 2023"`)) {
		t.Errorf("%s begins with\n%.200s", name, text)
	}
	for _, section := range []string{"NAME", "SYNOPSIS", "DESCRIPTION"} {
		if !bytes.Contains(text, []byte("\n.SH "+section+"\n")) {
			t.Errorf("%s has no section %s", name, section)
		}
	}
	command := strings.Split(strings.TrimSuffix(name, ".1"), "-")[1:]
	// names with a hyphen
	if whole := strings.Join(command, "-"); whole == "test-function" || whole == "pin-builds" {
		command = []string{whole}
	}
	help, err := exec.CommandContext(t.Context(), filepath.Join(bin, "armature"),
		append(command, "--help")...).Output()
	if err != nil {
		t.Fatalf("%s: --help: %v", name, err)
	}
	page := words(
		roff.ReplaceAllString(strings.NewReplacer(`\-`, "-", `\&`, "", `\(aq`, "'", `\\`,
			`\`).Replace(string(text)), ""))
	for _, section := range helpSections(string(help)) {
		for word := range words(section) {
			if !page[word] && strings.Trim(word, "#") != "" {
				t.Errorf("%s lacks the word %q of --help", name, word)
			}
		}
	}
	if groff, err := exec.LookPath("groff"); err == nil {
		out, err := exec.CommandContext(t.Context(), groff, "-k", "-man", "-ww", "-Tutf8", "-z",
			file).CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("groff on %s: %v\n%s", name, err, out)
		}
	}
}

// roff is what steers a formatter inside of a line.
var roff = regexp.MustCompile(`\\f[A-Z]|\\f\[[A-Z]*\]`)

// helpSections are the description and the examples of a command's --help.
func helpSections(help string) []string {
	description, rest, _ := strings.Cut(help, "\nUsage:\n")
	sections := []string{description}
	if _, examples, ok := strings.Cut(rest, "\nExamples:\n"); ok {
		examples, _, _ = strings.Cut(examples, "\n\n")
		sections = append(sections, examples)
	}
	return sections
}

func words(text string) map[string]bool {
	all := map[string]bool{}
	for _, word := range strings.Fields(text) {
		all[word] = true
	}
	return all
}
