// Package signtest provides signers for tests: a KMS, which is a program, and authorities that
// certify identities and times.
package signtest

import (
	"crypto/elliptic"
	"os"
	"path/filepath"

	"github.com/sigstore/sigstore/pkg/cryptoutils"

	"github.com/armature-dev/armature/e2e/programs"
)

// BuildKMS builds the program for keys name:// of a KMS into a folder, which has to be on the PATH.
func BuildKMS(folder, name string) error {
	if err := programs.Build(folder, "render/deliver/sign/signtest/kmsplugin"); err != nil {
		return err
	}
	return os.Rename(filepath.Join(folder, "kmsplugin"),
		filepath.Join(folder, "sigstore-kms-"+name))
}

// NewKey writes a key of a KMS to a file and returns the public key in PEM.
func NewKey(file string) (public []byte, err error) {
	private, public, err := cryptoutils.GeneratePEMEncodedECDSAKeyPair(elliptic.P256(), nil)
	if err != nil {
		return nil, err
	}
	return public, os.WriteFile(file, private, 0o600)
}
