package controlplane

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// InstallCRDs installs the CustomResourceDefinitions in files and folders, without sub-folders and
// other kinds, and returns when they are served. It omits conversion webhooks, because none runs
// here.
func (c *ControlPlane) InstallCRDs(paths ...string) error {
	options := envtest.CRDInstallOptions{Paths: paths, ErrorIfPathMissing: true, MaxTime: patience}
	if err := envtest.ReadCRDFiles(&options); err != nil {
		return fmt.Errorf("reading CRDs: %w", err)
	}
	if len(options.CRDs) == 0 {
		return fmt.Errorf("reading CRDs: none in %s", strings.Join(paths, ", "))
	}
	for _, crd := range options.CRDs {
		crd.Spec.Conversion = nil
	}
	options.Paths = nil
	if _, err := envtest.InstallCRDs(c.Admin.Config, options); err != nil {
		return fmt.Errorf("installing CRDs: %w", err)
	}
	return nil
}

// ModuleDir returns the folder in which the go command keeps a module that go.mod requires, for
// files that are not Go code:
//
//	tekton, err := controlplane.ModuleDir("github.com/tektoncd/pipeline")
//	…
//	err = api.InstallCRDs(filepath.Join(tekton, "config", "300-crds"))
func ModuleDir(module string) (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	if err != nil {
		return "", fmt.Errorf("looking for module %s: %w", module, err)
	}
	dir := strings.TrimSpace(string(out))
	if dir == "" {
		return "", fmt.Errorf(
			"looking for module %s: it has not been downloaded\n  hint: run `go mod download %s`",
			module, module)
	}
	return dir, nil
}
