package sign_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sigstore/sigstore/pkg/cryptoutils"

	"github.com/armature-dev/armature/render/deliver/sign"
	"github.com/armature-dev/armature/render/deliver/sign/signtest"
)

// TestCertificateFile: a file without exactly one certificate is refused with the reason.
func TestCertificateFile(t *testing.T) {
	folder := t.TempDir()
	key := filepath.Join(folder, "key")
	if _, err := signtest.NewKey(key); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "cert.pem")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if certs, err := cryptoutils.UnmarshalCertificatesFromPEM(nil); err != nil || len(certs) != 0 {
		t.Fatalf("%d certificates, error %v", len(certs), err)
	}
	_, err := sign.Signer{Key: key, Certificate: file}.Open(t.Context())
	if err == nil || !strings.HasSuffix(err.Error(), "no single certificate in PEM: it has 0") {
		t.Errorf("error %v", err)
	}
}
