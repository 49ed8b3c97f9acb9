// Package digest says how archives are identified.
package digest

import (
	"fmt"

	"github.com/opencontainers/go-digest"
)

// Canonical is the algorithm of new digests.
var Canonical = digest.SHA256

// AlgorithmForName returns the algorithm of a name that this program has.
func AlgorithmForName(name string) (digest.Algorithm, error) {
	a := digest.Algorithm(name)
	if !a.Available() {
		return "", fmt.Errorf("the digest algorithm %q is unknown: use sha256, sha384 or sha512", name)
	}
	return a, nil
}
