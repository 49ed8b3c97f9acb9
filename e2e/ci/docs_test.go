package ci

import (
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
