// Package programs finds the programs of other projects that tests run with Armature. It looks
// where make puts them, in .cache/bin of this repository, and where Debian's packages have them,
// but never on the PATH, so that a test means the same on every machine.
package programs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// Variable is the environment variable that says what a missing program means: with the value
// "required", which make test-peers sets, it is an error. With "none", which make test and make
// test-servers set, tests that need a program are skipped even if it exists. Otherwise they are
// skipped if it is missing.
const Variable = "ARMATURE_TEST_PEERS"

// Only is named by a package most of whose tests need a program, as `var _ = programs.Only`, so
// that make test does not link it.
const Only = true

// ErrMissing is the error for a program that has not been built or installed.
var ErrMissing = errors.New("missing program")

// peer is a program that tests may ask for.
type peer struct {
	name string
	file string // a pattern: absolute, or below .cache/bin
	how  string // the command that installs it
}

func peers() []peer {
	return []peer{
		{"kustomize", "kustomize", "make peers"},
		{"helm3", "helm3", "make peers"},
		{"helm4", "helm4", "make peers"},
		{"function of kustomize", "functions/example", "make peers"},
		{"function of kpt", "functions/gen-pkg-context", "make peers"},
		{"clouds", "clouds", "make peers"},
		{"source-controller", "flux/source-controller", "make peers"},
		{"kustomize-controller", "flux/kustomize-controller", "make peers"},
		{"chains", "chains/controller", "make chains"},
		{"kueue", "kueue", "make peers"},
		{"prometheus", "prometheus/prometheus", "make peers"},
		{"promtool", "prometheus/promtool", "make peers"},
		{"forge", "forge", "make peers"},
		{"buildkitd", "buildkit/buildkitd", "make peers"},
		{"argocd", "argocd", "make peers"},
		{"cosign", "cosign/cosign", "make peers"},
		{"cosign3", "cosign3/cosign", "make peers"},
		{"fulcio", "fulcio/fulcio", "make peers"},
		{"oidc", "oidc", "make peers"},
		{"kubectl", "kubectl-alone/kubectl", "make peers"},
		{"runc", "/usr/*bin/runc", "make deps"},
		{"busybox", "/bin/busybox", "make deps"},
		{"chromium", "/usr/bin/chromium", "make deps"},
		{"postgresql", "/usr/lib/postgresql/*/bin/initdb", "make deps"},
	}
}

// Peer returns the file of a program for a test that needs it.
func Peer(t testing.TB, name string) string {
	t.Helper()
	file, err := Find(name)
	Need(t, err)
	return file
}

// Need handles an error of Find: it skips the test, with a line on standard error, or fails it if
// peers are required, and fails every benchmark.
func Need(t testing.TB, err error) {
	t.Helper()
	_, measures := t.(*testing.B)
	switch {
	case errors.Is(err, ErrMissing) && !Required() && !measures:
		// This is printed even if tests are not verbose.
		fmt.Fprintf(os.Stderr, "SKIPPED %s: %v\n", t.Name(), err)
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
}

// Required reports whether a missing program is an error.
func Required() bool { return os.Getenv(Variable) == "required" }

// Find returns the file of a program, the newest if there are several. The error is ErrMissing if
// it has not been built or installed.
func Find(name string) (string, error) {
	all := peers()
	i := slices.IndexFunc(all, func(p peer) bool { return p.name == name })
	if i < 0 {
		return "", fmt.Errorf("no program %q is known: add it to e2e/programs and to make peers", name)
	}
	if os.Getenv(Variable) == "none" {
		return "", fmt.Errorf("%w: it needs %s: make test-peers", ErrMissing, name)
	}
	pattern := all[i].file
	if !filepath.IsAbs(pattern) {
		root, err := Repository()
		if err != nil {
			return "", err
		}
		pattern = filepath.Join(root, ".cache", "bin", pattern)
	}
	found, err := filepath.Glob(pattern)
	if err != nil {
		return "", fmt.Errorf("looking for %s: %w", name, err)
	}
	if len(found) == 0 {
		return "", fmt.Errorf("%w: no %s to run\n  hint: `%s` brings it", ErrMissing, name, all[i].how)
	}
	// Longer names are newer versions: /9.6/, /15/.
	slices.SortStableFunc(found, func(a, b string) int { return len(a) - len(b) })
	return found[len(found)-1], nil
}

// Build builds a command of this repository, such as cmd/armature, in a folder. The go command
// caches the programs that it links for go run, so all tests share them.
func Build(folder, command string, flags ...string) error {
	root, err := Repository()
	if err != nil {
		return err
	}
	cmd := exec.Command("go",
		slices.Concat([]string{"run", "-exec", "cp"}, flags, []string{"./" + command, folder})...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", command, err, out)
	}
	return nil
}

// Cache returns a folder below .cache of the repository, for files that tests leave for people.
func Cache(folder string) (string, error) {
	root, err := Repository()
	return filepath.Join(root, ".cache", folder), err
}

// Repository returns the root of the repository that a test runs in: the nearest folder above with
// a .git.
func Repository() (string, error) {
	folder, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("looking for the repository: %w", err)
	}
	for at := folder; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, ".git")); err == nil {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf(
				"%s is in no Git repository, whose .cache/bin has the programs of tests", folder)
		}
	}
}
