package main

import (
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/armature-dev/armature/functions/api/keys"
)

// The names of the programs, as the report has them.
const (
	copying   = "read and write in Go"
	armature  = "armature"
	kyaml     = "kyaml injector"
	kustExec  = "kustomize, armature-fn by exec"
	kustPatch = "kustomize, patch"
	istio     = "istioctl kube-inject"
)

// hosts measures kustomize with the same function, and with a patch.
func (o *options) hosts(bin *binaries, c *corpus, files *row, n int) error {
	if bin.kustomize == "" || n > 1000 && !o.slow {
		return nil
	}
	patch, err := exec.Command(bin.kyaml, "-patch", c.sample()).Output()
	if err != nil {
		return fmt.Errorf("making the patch: %w", err)
	}
	if err := c.kustomization("exec", transformer("", bin.armatureFn), nil); err != nil {
		return err
	}
	if err := c.kustomization("patch", "patches:\n- path: patch.yaml\n  target: {labelSelector: kagenti.io/inject=enabled}\n", map[string]string{"patch.yaml": string(patch)}); err != nil {
		return err
	}
	subjects := []*subject{
		{name: kustExec, args: build1(bin, c.path("exec")), stdout: c.path("out.yaml")},
		{name: kustPatch, args: build1(bin, c.path("patch")), stdout: c.path("out.yaml")},
	}
	costs, err := measure(slower(rounds(n), n), subjects...)
	if err != nil {
		return err
	}
	for i, s := range subjects {
		files.Costs[s.name] = costs[i]
	}
	return nil
}

func build1(bin *binaries, folder string) []string {
	return []string{bin.kustomize, "build", "--enable-alpha-plugins", "--enable-exec", folder}
}

// transformer lists a program as an exec function.
func transformer(args, path string) string {
	if args != "" {
		args = ", args: [" + args + "]"
	}
	return fmt.Sprintf(`transformers:
- |-
  apiVersion: %s
  kind: RenderConfig
  metadata:
    name: bench
    annotations:
      config.kubernetes.io/function: |
        exec: {path: %q%s}
`, keys.V1alpha1, path, args)
}

// istio measures istioctl kube-inject, which takes one stream and needs its
// webhook's configuration in files to work without a cluster.
func (o *options) istio(bin *binaries, c *corpus, stream *row, n int) error {
	if bin.istioctl == "" {
		return nil
	}
	folder := filepath.Join(filepath.Dir(bin.istioctl), "istio")
	s := &subject{name: istio, stdout: c.path("out.yaml"), args: []string{bin.istioctl, "kube-inject", "--revision", "default",
		"--injectConfigFile", filepath.Join(folder, "inject-config.yaml"),
		"--meshConfigFile", filepath.Join(folder, "mesh-config.yaml"),
		"--valuesFile", filepath.Join(folder, "inject-values.yaml"),
		"-f", c.path("all.yaml")}}
	costs, err := measure(slower(rounds(n), n), s)
	if err != nil {
		return err
	}
	stream.Costs[istio] = costs[0]
	return nil
}
