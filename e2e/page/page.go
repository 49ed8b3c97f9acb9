// Package page makes a script of the commands in a page of the documentation, so that
// a test plays the page word for word.
package page

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// AsWritten as a replacement is the reader's block, word for word.
const AsWritten = "# as written"

// Script gives the blocks of a page that are marked as sh, in their order, as one
// script for bash -euo pipefail. Each announces itself on standard output with its
// line. A block below a line <!-- replaced in tests: NAME --> is the reader's:
// replacements has what the test does in its place. A name that only the page or only
// the test knows is an error.
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
				if replacement != AsWritten {
					block = replacement
				}
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
			if name, ok = strings.CutSuffix(strings.TrimPrefix(bare, comment), " -->"); !ok || name == "" {
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
		return "", fmt.Errorf("the page has no blocks to replace: %q", slices.Sorted(maps.Keys(left)))
	}
	return script.String(), nil
}
