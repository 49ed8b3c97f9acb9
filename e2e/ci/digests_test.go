package ci

import (
	"os"
	"os/exec"
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
	"templates/ci/gitlab.yml": "GitLab reads it from the tag, and no registry answered when it was written",
}

// TestDigests: workflows and pages name actions by digest, with the version beside it;
// images have a base by digest; and what a release installs names images by digest.
func TestDigests(t *testing.T) {
	t.Parallel()
	files := strings.Fields(git(t, root, "ls-files", "*.yml", "*.yaml", "*.md", "*Dockerfile*", "*Containerfile*"))
	actions := 0
	for _, file := range files {
		text := read(t, filepath.Join(root, file))
		for _, line := range usesLine.FindAllStringSubmatch(text, -1) {
			action, comment := line[1], line[2]
			if strings.HasPrefix(action, "./") || strings.HasPrefix(action, "armature-dev/armature@v") {
				continue // a release cannot name its own commit
			}
			actions++
			if !usesDigest.MatchString(action) || !strings.HasPrefix(comment, " # v") {
				t.Errorf("%s: uses: %s%s: name a full commit, and the version in a comment, as in OWNER/NAME@COMMIT # v1.2.3", file, action, comment)
			}
		}
		// The stories' images are built from images that the stories make.
		if name := path.Base(file); !strings.HasPrefix(file, "e2e/stories/testdata/") && !strings.HasSuffix(name, ".yaml") &&
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

	release := read(t, filepath.Join(root, ".github/workflows/release.yml"))
	_, base, _ := strings.Cut(read(t, filepath.Join(root, ".ko.yaml")), "\ndefaultBaseImage: ")
	base, _, _ = strings.Cut(base, "\n")
	verified, built := strings.Index(release, "KO_DEFAULTBASEIMAGE=${base%:*}@$digest"), strings.Index(release, "ko build")
	if !byDigest.MatchString(base) && (verified < 0 || verified > built) {
		t.Errorf(".ko.yaml: the base %q has no digest, and the release does not verify one before it builds", base)
	}

	if out, err := digests(t, t.TempDir(), "ghcr.io/x/armature-fn@sha256:"+strings.Repeat("b", 64)+"\n"); err == nil || !strings.Contains(out, "ko build --image-refs") {
		t.Errorf("without the controller's digest: %v\n%s", err, out)
	}
	image := "ghcr.io/armature-dev/armature-controller@sha256:" + strings.Repeat("a", 64)
	var dir string
	for _, refs := range []string{image, strings.Replace(image, "@", ":v0.9.1@", 1)} {
		dir = t.TempDir()
		for _, part := range []string{"install", "chart", "ci"} {
			if err := os.CopyFS(filepath.Join(dir, "templates", part), os.DirFS(filepath.Join(root, "templates", part))); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := digests(t, dir, "ghcr.io/armature-dev/armature-fn@sha256:"+strings.Repeat("b", 64)+"\n"+refs+"\n"); err != nil {
			t.Fatalf("by-digest.sh: %v\n%s", err, out)
		}
		if !strings.Contains(read(t, filepath.Join(dir, "templates/chart/values.yaml")), "\nimage: \""+image+"\"\n") {
			t.Errorf("of %s the chart's values do not name the controller by digest", refs)
		}
	}
	written, packaged := strings.Index(release, ".github/by-digest.sh"), strings.Index(release, "helm package")
	if written < built || written > packaged || strings.Index(release, "kubectl kustomize") < written {
		t.Error("the release does not write the controller's digest between ko build, and helm package and kubectl kustomize")
	}
	images := 0
	for _, part := range []string{"install", "ci"} {
		err := filepath.WalkDir(filepath.Join(dir, "templates", part), func(file string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			name, _ := filepath.Rel(dir, file)
			found, tags := imageLine.FindAllStringSubmatch(read(t, file), -1), 0
			for _, image := range found {
				images++
				if byDigest.MatchString(image[1]) {
					continue
				}
				if tags++; undigested[name] == "" {
					t.Errorf("%s: the image %s has no digest", name, image[1])
				}
			}
			if undigested[name] != "" && tags == 0 {
				t.Errorf("%s has only digests: take it out of undigested", name)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if images < 4 {
		t.Errorf("only %d images were found", images)
	}
}

// digests runs .github/by-digest.sh in a copy of the templates.
func digests(t *testing.T, dir, refs string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, ".github", "by-digest.sh"))
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(refs)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
