package ci

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGovulncheck: where the database cannot be reached, CI fails, and a developer's
// machine says so and goes on; what is found fails everywhere.
func TestGovulncheck(t *testing.T) {
	t.Parallel()
	const unreachable = `govulncheck: fetching vulnerabilities: Get "https://vuln.go.dev/index/modules.json.gz": dial tcp: lookup vuln.go.dev: no such host`
	for name, test := range map[string]struct {
		ci, prints string
		status     string // of govulncheck
		says       string
		fails      bool
	}{
		"in CI":                    {"true", unreachable, "1", "CI has to look", true},
		"on a machine":             {"", unreachable, "1", "WERE NOT LOOKED FOR", false},
		"on a machine with CI off": {"false", unreachable, "1", "WERE NOT LOOKED FOR", false},
		"a vulnerability in CI": {"true", "Vulnerability #1: GO-2025-0001", "3", "GO-2025-0001",
			true},
		"a vulnerability elsewhere": {"", "Vulnerability #1: GO-2025-0001", "3", "GO-2025-0001",
			true},
		"another failure": {"", "go: no such module", "1", "no such module", true},
		"nothing in CI": {"true", "No vulnerabilities found.", "0",
			"No vulnerabilities found.", false},
	} {
		stub := filepath.Join(t.TempDir(), "go")
		if err := os.WriteFile(stub,
			[]byte("#!/bin/sh\ncat <<'END'\n"+test.prints+"\nEND\nexit "+test.status+"\n"),
			0o755); err != nil {
			t.Fatal(err)
		}
		out, err := shell(t, root, map[string]string{"GO": stub, "CI": test.ci}, "e2e/govulncheck.sh")
		if (err != nil) != test.fails || !strings.Contains(out, test.says) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
