package controlplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// ErrNoPrograms says how to get the programs of a control plane.
var ErrNoPrograms = errors.New("no etcd and kube-apiserver to run\n" +
	"  hint: `make controlplane` builds them once; or set KUBEBUILDER_ASSETS to a folder " +
	"that has them")

// Variable is the environment variable that says which tests run: with the value "none", as make
// test sets it, those that need an API server are skipped; with "required", as make test-servers
// sets it, missing programs are an error. Otherwise tests are skipped if the programs are missing.
const Variable = "ARMATURE_TEST_SERVERS"

// errTier is the reason of tests that are skipped because another target runs them.
var errTier = errors.New("it needs an API server: make test-servers")

// skipped reports whether tests are skipped for an error.
func skipped(err error) bool {
	return errors.Is(err, errTier) ||
		errors.Is(err, ErrNoPrograms) && os.Getenv(Variable) != "required"
}

// programs returns the folder with etcd and kube-apiserver: KUBEBUILDER_ASSETS, or .cache/bin of
// the repository that the test runs in.
func programs() (string, error) {
	if os.Getenv(Variable) == "none" {
		return "", errTier
	}
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
