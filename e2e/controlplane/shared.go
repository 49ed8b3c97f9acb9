package controlplane

import (
	"fmt"
	"os"
	"testing"
)

// Shared is the control plane that a package's tests share.
type Shared struct {
	plane   *ControlPlane
	missing error // why it does not run
}

// Main runs a package's tests with a control plane that furnish prepares before the first, and
// returns the exit status. If the programs to run are missing, the tests that call Get are skipped,
// or fail if they are required.
func (s *Shared) Main(m *testing.M, furnish func(*ControlPlane) error) int {
	s.plane, s.missing = Run()
	if skipped(s.missing) {
		return m.Run()
	}
	if s.missing != nil {
		fmt.Fprintln(os.Stderr, s.missing)
		return 1
	}
	defer func() {
		if err := s.plane.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	if err := furnish(s.plane); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// Get returns the control plane, or skips the test if it does not run.
func (s *Shared) Get(t testing.TB) *ControlPlane {
	t.Helper()
	if s.missing != nil {
		skip(t, s.missing)
	}
	return s.plane
}

// skip skips a test, and prints that even if tests are not verbose. A benchmark fails instead,
// because its figures are wanted.
func skip(t testing.TB, why error) {
	t.Helper()
	if _, measures := t.(*testing.B); measures {
		t.Fatal(why)
	}
	fmt.Fprintf(os.Stderr, "SKIPPED %s: %v\n", t.Name(), why)
	t.Skip(why)
}
