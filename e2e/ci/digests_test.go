package ci

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	usesLine   = regexp.MustCompile(`(?m)^[\s-]*uses:[ \t]*(\S+)(.*)$`)
	usesDigest = regexp.MustCompile(`^[\w./-]+@[0-9a-f]{40}$`)
	fromLine   = regexp.MustCompile(`(?mi)^FROM[ \t]+(?:--\S+[ \t]+)*(\S+)`)
	imageLine  = regexp.MustCompile(`(?m)^[ \t-]*image:(?:\s+name:)?[ \t]*"?([^\s"]+)"?$`)
	byDigest   = regexp.MustCompile(`@sha256:[0-9a-f]{64}$`)
)

// undigested are the released files that name an image by its tag, each with the reason.
var undigested = map[string]string{
	"templates/ci/gitlab.yml": "GitLab reads it from the tag, and no registry answered when it " +
		"was written",
}

// TestDigests: workflows and pages name actions by digest, with the version beside it;
// images have a base by digest, or none; jobs that users copy name images by digest. The
// manifests and the chart of a release are tested in e2e/release.
func TestDigests(t *testing.T) {
	t.Parallel()
	files := strings.Fields(git(t, root, "ls-files", "*.yml", "*.yaml", "*.md", "*Dockerfile*",
		"*Containerfile*"))
	actions := 0
	for _, file := range files {
		text := read(t, filepath.Join(root, file))
		for _, line := range usesLine.FindAllStringSubmatch(text, -1) {
			action, comment := line[1], line[2]
			if strings.HasPrefix(action, "./") ||
				strings.HasPrefix(action, "armature-dev/armature@v") {
				continue // a release cannot name its own commit
			}
			actions++
			if !usesDigest.MatchString(action) || !strings.HasPrefix(comment, " # v") {
				t.Errorf("%s: uses: %s%s: name a full commit, and the version in a comment, as "+
					"in OWNER/NAME@COMMIT # v1.2.3", file, action, comment)
			}
		}
		// The stories' images are built from images that the stories make.
		if name := path.Base(file); !strings.HasPrefix(file, "e2e/stories/testdata/") &&
			!strings.HasSuffix(name, ".yaml") &&
			(strings.Contains(name, "Dockerfile") || strings.Contains(name, "Containerfile")) {
			for _, from := range fromLine.FindAllStringSubmatch(text, -1) {
				if from[1] != "scratch" && !byDigest.MatchString(from[1]) {
					t.Errorf("%s: the base %s has no digest", file, from[1])
				}
			}
		}
	}
	if actions == 0 {
		t.Error("no file names an action")
	}

	tags := map[string]int{}
	for _, file := range strings.Fields(git(t, root, "ls-files", "templates/ci", "action.yml")) {
		for _, image := range imageLine.FindAllStringSubmatch(read(t, filepath.Join(root, file)), -1) {
			if byDigest.MatchString(image[1]) {
				continue
			}
			if tags[file]++; undigested[file] == "" {
				t.Errorf("%s: the image %s has no digest", file, image[1])
			}
		}
	}
	for file := range undigested {
		if tags[file] == 0 {
			t.Errorf("%s has only digests: take it out of undigested", file)
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
