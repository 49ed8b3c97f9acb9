package stories

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// fileOf an image, as text.
func (s *story) fileOf(t *testing.T, image, name string) string {
	t.Helper()
	login := authn.FromConfig(authn.AuthConfig{})
	if strings.HasPrefix(image, s.info.HostPrivateRegistry+"/") {
		login = &authn.Basic{Username: s.info.RegistryUser, Password: s.info.RegistryPassword}
	}
	img, err := remote.Image(reference(t, image), remote.WithAuth(login))
	must(t, err)
	files := mutate.Extract(img)
	defer files.Close()
	for entries := tar.NewReader(files); ; {
		entry, err := entries.Next()
		if errors.Is(err, io.EOF) {
			t.Fatal(fmt.Errorf("%s has no file %s", image, name))
		}
		must(t, err)
		if strings.TrimPrefix(entry.Name, "/") == name {
			text, err := io.ReadAll(io.LimitReader(entries, 64<<20))
			must(t, err)
			return string(text)
		}
	}
}
