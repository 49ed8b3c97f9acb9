package controlplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// ErrNoPrograms says how to get what a control plane runs.
var ErrNoPrograms = errors.New("no etcd and kube-apiserver to run\n  hint: `make controlplane` builds them once; or set KUBEBUILDER_ASSETS to a folder that has them")

// programs is the folder with etcd and kube-apiserver: KUBEBUILDER_ASSETS, or
// .cache/bin of the repository that the test runs in.
func programs() (string, error) {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		if !holds(dir, "etcd", "kube-apiserver") {
			return "", fmt.Errorf("KUBEBUILDER_ASSETS=%s: %w", dir, ErrNoPrograms)
		}
		return dir, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("looking for .cache/bin: %w", err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if bin := filepath.Join(dir, ".cache", "bin"); holds(bin, "etcd", "kube-apiserver") {
			return bin, nil
		}
		if holds(dir, ".git") || dir == filepath.Dir(dir) {
			return "", ErrNoPrograms
		}
	}
}

func holds(dir string, names ...string) bool {
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}
