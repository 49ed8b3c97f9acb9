// Package base makes layers of images that hold a program and no system.
package base

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/pem"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// File is a file of an archive, or a folder if its name ends with a slash.
type File struct {
	Name string
	Mode int64
	Data []byte
}

// Pack packs files into a gzipped tar archive, in the order of their names, with one time and
// without an owner.
func Pack(files []File, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	w := tar.NewWriter(zipped)
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
	for _, f := range files {
		header := &tar.Header{Name: f.Name, Typeflag: tar.TypeReg, Mode: f.Mode,
			Size: int64(len(f.Data)), ModTime: at}
		if strings.HasSuffix(f.Name, "/") {
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("packing %s: %w", f.Name, err)
		}
		if _, err := w.Write(f.Data); err != nil {
			return nil, fmt.Errorf("packing %s: %w", f.Name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	err := zipped.Close()
	return out.Bytes(), err
}

// Layer returns a layer of an image with files.
func Layer(files []File, at time.Time, options ...tarball.LayerOption) (v1.Layer, error) {
	packed, err := Pack(files, at)
	if err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(packed)), nil
	}, options...)
}

// Certificates is the name of the file with certificates in Base.
const Certificates = "etc/ssl/certs/ca-certificates.crt"

// User is the user without rights in Base.
const User = "65532"

// Base returns the files that a program needs besides itself: certificates to verify servers, and a
// user without rights.
func Base() []File {
	return []File{
		{"etc/", 0o755, nil}, {"etc/ssl/", 0o755, nil}, {"etc/ssl/certs/", 0o755, nil},
		{"tmp/", 0o1777, nil}, {Certificates, 0o644, authorities()},
		{"etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/sbin/nologin\n" +
			"nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n")},
		{"etc/group", 0o644, []byte("root:x:0:\nnonroot:x:65532:\n")},
	}
}

// authorities returns the public authorities of a module of Go's, in PEM. It omits those that are
// trusted under a condition, which a file cannot state.
func authorities() []byte {
	var all bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			// Writing to memory never fails.
			_ = pem.Encode(&all, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	return all.Bytes()
}
