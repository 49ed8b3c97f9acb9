package ci

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	pageLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	noAnchor = regexp.MustCompile("[^a-z0-9 _-]")
	fenced   = regexp.MustCompile("(?ms)^```.*?^```")
)

// TestPapers: README leads to each paper of the project; links lead to files, and to
// headings in them; maintainers are named as the history names them.
func TestPapers(t *testing.T) {
	t.Parallel()
	readme := read(t, filepath.Join(root, "README.md"))
	for _, paper := range []string{
		"MAINTAINERS.md", "GOVERNANCE.md", "CODE_OF_CONDUCT.md", "ROADMAP.md", "VERSIONING.md",
		"SECURITY.md", "docs/contributing/self-assessment.md", "docs/contributing/day-0.md",
	} {
		if !strings.Contains(readme, "("+paper+")") {
			t.Errorf("README.md does not link %s", paper)
		}
	}
	for _, page := range strings.Fields(git(t, root, "ls-files", "--cached", "--others",
		"--exclude-standard", "*.md")) {
		if strings.Contains(page, "testdata") {
			continue
		}
		for _, link := range pageLink.FindAllStringSubmatch(fenced.ReplaceAllString(read(t,
			filepath.Join(root, page)), ""), -1) {
			target, anchor, _ := strings.Cut(link[1], "#")
			if strings.Contains(target, ":") {
				continue
			}
			file := filepath.Join(root, page)
			if target != "" {
				file = filepath.Join(filepath.Dir(file), filepath.FromSlash(target))
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links %s: %v", page, link[1], err)
			} else if anchor != "" && filepath.Ext(file) == ".md" &&
				!slices.Contains(anchors(read(t, file)), anchor) {
				t.Errorf("%s links %s: the page has no such heading", page, link[1])
			}
		}
	}

	if git(t, root, "rev-parse", "--is-shallow-repository") == "true" {
		return
	}
	authors := strings.Split(git(t, root, "log", "--format=%an"), "\n")
	_, table, _ := strings.Cut(read(t, filepath.Join(root, "MAINTAINERS.md")), "|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	for _, row := range strings.Split(table, "\n") {
		if name := strings.TrimSpace(strings.Split(row+"||", "|")[1]); !slices.Contains(authors, name) {
			t.Errorf("MAINTAINERS.md names %q, which no commit has as its author", name)
		}
	}
}

// anchors are the names by which a forge links the headings of a page.
func anchors(page string) []string {
	var all []string
	for _, h := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		text := regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(h[1], "$1")
		all = append(all,
			strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(strings.TrimSpace(text)),
				""), " ", "-"))
	}
	return all
}
