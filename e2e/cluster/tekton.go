//go:build linux

package cluster

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/armature-dev/armature/functions/multi"
)

// tektonParts are the manifests of Tekton Pipelines in the order in which they are applied. The
// webhooks come last: objects that are applied after them wait until they answer. Tekton's
// resolvers are omitted; they need a module that cannot be downloaded.
var tektonParts = []string{
	"100-namespace/*.yaml", "200-*.yaml", "201-*.yaml", "300-crds/*.yaml", "config-*.yaml",
	"clusterrole-*.yaml", "controller.yaml", "webhook.yaml", "500-webhooks.yaml",
}

// copyTekton copies the manifests from the module in the folder of e2e that TEKTON names to
// .cache/tekton-config, numbered in order.
func copyTekton(cache string) error {
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/tektoncd/pipeline")
	list.Dir = filepath.Join(cache, "..", "e2e", cmp.Or(os.Getenv("TEKTON"), "tekton"))
	module, err := list.Output()
	if err != nil {
		return fmt.Errorf("looking for Tekton's module: %w", err)
	}
	to := filepath.Join(cache, "tekton-config")
	if err := multi.Errors(os.RemoveAll(to), os.Mkdir(to, 0o755)); err != nil {
		return err
	}
	count := 0
	for _, part := range tektonParts {
		files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(module)), "config", part))
		if err != nil {
			return err
		}
		if len(files) == 0 {
			return fmt.Errorf("Tekton's module has no config/%s", part)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			count++
			name := fmt.Sprintf("%02d-%s", count, filepath.Base(file))
			if err := os.WriteFile(filepath.Join(to, name), text, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

var (
	koImage = regexp.MustCompile(`ko://github\.com/tektoncd/pipeline/cmd/([a-z]+)`)
	// The images of Tekton's releases start their program through tini; the cluster's images have
	// only the program.
	tini       = regexp.MustCompile(`(?m)^ *- (/sbin/tini|--)\n`)
	shellImage = regexp.MustCompile(`cgr\.dev/chainguard/busybox@sha256:[0-9a-f]+`)
)

// withImages replaces the images that a manifest of Tekton names by the cluster's.
func withImages(manifest string, images map[string]string) string {
	manifest = tini.ReplaceAllString(manifest, "")
	manifest = shellImage.ReplaceAllLiteralString(manifest, images["busybox"])
	return koImage.ReplaceAllStringFunc(manifest, func(match string) string {
		return images["tekton-"+koImage.FindStringSubmatch(match)[1]]
	})
}
