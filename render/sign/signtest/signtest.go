// Package signtest has what tests sign with instead of a key at hand: a KMS, which is a
// program, and authorities that certify identities and times.
package signtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	half, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: half}),
		os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600)
}
