// Package page turns the commands of a page of the documentation into a script, so that a test runs
// the page word for word.
package page

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// AsWritten as a replacement is the reader's block, word for word. At the end of another
// replacement, the block follows it.
const AsWritten = "# as written"

// Script returns the blocks of a page that are marked as sh, in their order, as one script for bash
// -euo pipefail. Each first prints its line number to standard output. A block below a line <!--
// replaced in tests: NAME --> is only for readers: replacements has the test's version. A name that
// only the page or only the test has is an error.
func Script(text string, replacements map[string]string) (string, error) {
	const comment = "<!-- replaced in tests: "
	var script strings.Builder
	script.WriteString("set -euo pipefail\n")
	left := maps.Clone(replacements)
	var name, block string // of the block that begins, or that goes on
	begin, blocks := 0, 0
	for i, line := range strings.SplitAfter(text, "\n") {
		bare := strings.TrimSpace(line)
		switch {
		case begin > 0 && bare == "```":
			if name != "" {
				replacement, ok := left[name]
				if !ok {
					return "", fmt.Errorf("line %d: the test has no replacement %q", begin, name)
				}
				before, asWritten := strings.CutSuffix(replacement, AsWritten)
				if !asWritten {
					block = ""
				}
				block = before + block
				delete(left, name)
			}
			fmt.Fprintf(&script, "printf '\\n== line %d\\n'\n%s\n", begin, block)
			name, block, begin = "", "", 0
			blocks++
		case begin > 0:
			block += line
		case bare == "```sh":
			begin = i + 1
		case strings.HasPrefix(bare, comment):
			var ok bool
			if name, ok = strings.CutSuffix(strings.TrimPrefix(bare, comment), " -->"); !ok ||
				name == "" {
				return "", fmt.Errorf("line %d: write it as %sNAME -->", i+1, comment)
			}
		case name != "" && bare != "":
			return "", fmt.Errorf("line %d: no block follows the replacement %q", i+1, name)
		}
	}
	switch {
	case begin > 0:
		return "", fmt.Errorf("line %d: the block does not end", begin)
	case blocks == 0:
		return "", fmt.Errorf("the page has no block of sh")
	case len(left) > 0:
		return "", fmt.Errorf("the page has no blocks to replace: %q",
			slices.Sorted(maps.Keys(left)))
	}
	return script.String(), nil
}

// Block returns the block of sh whose first line is the command, and the page from there to the
// next block of sh, which contains the output that the page shows.
func Block(text, command string) (script, shown string, err error) {
	before, after, found := strings.Cut(text, "```sh\n"+command+"\n")
	if !found {
		return "", "", fmt.Errorf("the page has no block of sh that begins with %q", command)
	}
	shown, _, _ = strings.Cut(text[len(before):], "\n```sh\n")
	script, _, _ = strings.Cut(command+"\n"+after, "```\n")
	return script, shown, nil
}

// Shown fails the test if a page shows output that the command did not print. The page is a path
// below the root of the repository, and the command is the first line of its block.
func Shown(t *testing.T, page, command, output string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", page))
	if err != nil {
		t.Fatal(err)
	}
	_, shown, err := Block(string(text), command)
	if err != nil {
		t.Fatalf("%s: %v", page, err)
	}
	missing, err := Missing(shown, "== line 1\n"+output)
	if err != nil || len(missing) > 0 {
		t.Errorf("%s, %s: %v, not printed: %q\n%s", page, command, err, missing, output)
	}
}

// Missing compares the output of a page's script with the output that the page shows: the blocks
// marked as text or diff, each for the last block of sh before it. Their lines have to be in the
// output in this order; a … in a line stands for any text, and a line of it alone for any lines.
// Missing returns the lines that are not there, each with its place on the page. A page without
// such a block is an error.
func Missing(text, output string) (missing []string, err error) {
	printed := make(map[int][]string) // by the line of the block of sh
	at := 0
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, " \r\n")
		if n, err := fmt.Sscanf(line, "== line %d", &at); n == 1 && err == nil {
			continue
		}
		printed[at] = append(printed[at], line)
	}
	of, shown, compared := 0, false, 0
	for i, line := range strings.Split(text, "\n") {
		bare := strings.TrimSpace(line)
		switch {
		case bare == "```sh":
			of, shown = i+1, false
		case bare == "```text" || bare == "```diff":
			shown = true
		case bare == "```":
			shown = false
		case shown && bare != "" && bare != "…":
			compared++
			parts := strings.Split(strings.TrimRight(line, " "), "…")
			for j := range parts {
				parts[j] = regexp.QuoteMeta(parts[j])
			}
			pattern := regexp.MustCompile("^" + strings.Join(parts, ".*") + "$")
			found := slices.IndexFunc(printed[of], pattern.MatchString)
			if found < 0 {
				missing = append(missing, fmt.Sprintf("line %d: %s", i+1, line))
				continue
			}
			printed[of] = printed[of][found+1:]
		}
	}
	if compared == 0 {
		return nil, fmt.Errorf("the page shows nothing that a command prints")
	}
	return missing, nil
}
