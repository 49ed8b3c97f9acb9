// Package signtest has what tests sign with instead of a key at hand: a KMS, which is a
// program, and authorities that certify identities and times.
package signtest

import (
	"crypto/elliptic"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/sigstore/sigstore/pkg/cryptoutils"
)

// BuildKMS builds the program for keys of a KMS named name:// into a folder, which has to
// be on the PATH.
func BuildKMS(folder, name string) error {
	_, self, _, _ := runtime.Caller(0)
	cmd := exec.Command("go", "build", "-o", filepath.Join(folder, "sigstore-kms-"+name), "./kmsplugin")
	cmd.Dir = filepath.Dir(self)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the KMS: %w\n%s", err, out)
	}
	return nil
}

// NewKey makes the key of a KMS in a file, and gives the public half in PEM.
func NewKey(file string) (public []byte, err error) {
	private, public, err := cryptoutils.GeneratePEMEncodedECDSAKeyPair(elliptic.P256(), nil)
	if err != nil {
		return nil, err
	}
	return public, os.WriteFile(file, private, 0o600)
}
