package oci_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/armature-dev/armature/render/deliver/oci"
)

// refused pulls an image. The error has to say why, and nothing may be written.
func refused(t *testing.T, ref, why string) {
	t.Helper()
	parent := t.TempDir()
	_, err := oci.Pull(t.Context(), oci.Scheme+ref, filepath.Join(parent, "to"), oci.Options{})
	if err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("got %v, want %q", err, why)
	}
	left, err := os.ReadDir(parent)
	if err != nil || len(left) > 0 {
		t.Errorf("something was written: %v %v", left, err)
	}
}

// image is an artifact with any layers, and media types as given.
func image(t *testing.T, config types.MediaType, layers ...v1.Layer) v1.Image {
	t.Helper()
	made := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), config)
	made, err := mutate.AppendLayers(made, layers...)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func store(t *testing.T, ref string, made v1.Image) {
	t.Helper()
	to, err := name.ParseReference(ref)
	if err == nil {
		err = remote.Write(to, made)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func zip(t *testing.T, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// header is that of a tar entry, as bytes.
func header(t *testing.T, h tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(&h); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func archive(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		h.Mode = 0o644
		if h.Typeflag == tar.TypeReg {
			h.Size = 2
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write([]byte("x\n")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return zip(t, b.Bytes())
}

func TestArchivesRefused(t *testing.T) {
	host := serve(t, nil)
	reg := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }
	good := archive(t, reg("good.yaml"), reg("evil.yaml"))
	for _, c := range []struct {
		name, why string
		content   []byte
	}{
		{"traversal", "leads out of it", archive(t, reg("good.yaml"), reg("../evil.yaml"))},
		{"traversal-inside", "leads out of it", archive(t, reg("good/../../evil.yaml"))},
		{"dots-that-stay-inside", "leads out of it", archive(t, reg("a/../evil.yaml"))},
		{"absolute", "leads out of it", archive(t, reg("/etc/evil.yaml"))},
		{"backslash", "characters that a path may not have", archive(t, reg(`..\evil.yaml`))},
		{"drive", "is not a plain name", archive(t, reg(`C:evil.yaml`))},
		{"symlink", "is a link",
			archive(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "/etc"},
				reg("a/evil.yaml"))},
		{"hardlink", "is a link",
			archive(t, tar.Header{Typeflag: tar.TypeLink, Name: "a", Linkname: "/etc/passwd"})},
		{"device", "neither file nor folder",
			archive(t, tar.Header{Typeflag: tar.TypeChar, Name: "a"})},
		{"pipe", "neither file nor folder",
			archive(t, tar.Header{Typeflag: tar.TypeFifo, Name: "a"})},
		{"twice", "it has \"./a\" twice", archive(t, reg("a"), reg("./a"))},
		{"below-a-file", "which is a file", archive(t, reg("a"), reg("a/b"))},
		{"file-over-folder", "it has \"a\" twice", archive(t, reg("a/b"), reg("a"))},
		{"long-name", "has more than 1024 bytes", archive(t, reg(strings.Repeat("n/", 600)+"n"))},
		{"not-gzip", "it is not gzipped", []byte("kind: Deployment\n")},
		{"not-tar", "the archive is refused",
			zip(t, bytes.Repeat([]byte("kind: Deployment\n"), 100))},
		{"cut-short", "the archive is refused", good[:len(good)-6]},
		{"rubbish-behind", "the archive is refused", append(bytes.Clone(good), "rubbish"...)},
	} {
		t.Run(c.name, func(t *testing.T) {
			ref := host + "/" + c.name + ":v1"
			store(t, ref,
				image(t, oci.ConfigMediaType, static.NewLayer(c.content, oci.ContentMediaType)))
			refused(t, ref, c.why)
		})
	}
}

// Archives of some megabytes that would grow to 10 GB: in one file, in many,
// and behind the end of the archive. None is ever held in memory, or unpacked
// beyond the limit.
func TestBombs(t *testing.T) {
	host := serve(t, nil)
	const part = 60 << 20
	zeros := zip(t, make([]byte, part))
	const parts = 10_000_000_000/part + 1

	var many []byte
	for i := range parts {
		many = append(many,
			zip(t,
				header(t, tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("%d.yaml", i),
					Size: part, Mode: 0o644}))...)
		many = append(many, zeros...)
	}
	one := zip(t,
		header(t, tar.Header{Typeflag: tar.TypeReg, Name: "big.yaml", Size: parts * part,
			Mode: 0o644, Format: tar.FormatPAX}))
	behind := zip(t, make([]byte, 1024)) // the end of an archive
	pax := zip(t, header(t, tar.Header{Typeflag: tar.TypeReg, Name: "a", Size: 0, Mode: 0o644}))
	behind = append(pax, behind...)
	for range parts {
		one = append(one, zeros...)
		behind = append(behind, zeros...)
	}
	for _, c := range []struct {
		name, why string
		content   []byte
	}{
		{"one", "larger than the limit (67108864 a file", one},
		{"many", "larger than the limit", many},
		{"behind", "unpacks to more than 1073741824 bytes", behind},
	} {
		t.Run(c.name, func(t *testing.T) {
			if len(c.content) > 64<<20 {
				t.Fatalf("the archive has %d bytes", len(c.content))
			}
			ref := host + "/" + c.name + ":v1"
			store(t, ref,
				image(t, oci.ConfigMediaType, static.NewLayer(c.content, oci.ContentMediaType)))
			refused(t, ref, c.why)
		})
	}
}

// What says that it is a rendered package, and is something else.
func TestMediaTypesRefused(t *testing.T) {
	lie := ""
	host := serve(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if lie != "" && r.Method == http.MethodGet &&
				strings.Contains(r.URL.Path, "/manifests/") {
				w = &liar{w, lie}
			}
			next.ServeHTTP(w, r)
		})
	})
	layer := static.NewLayer(archive(t, tar.Header{Typeflag: tar.TypeReg, Name: "a.yaml"}),
		oci.ContentMediaType)
	random, err := random.Image(10, 1)
	if err != nil {
		t.Fatal(err)
	}
	store(t, host+"/container:v1", random)
	refused(t, host+"/container:v1", "it is not a rendered package")
	store(t, host+"/config:v1", image(t, types.OCIConfigJSON, layer))
	refused(t, host+"/config:v1", "its config is application/vnd.oci.image.config.v1+json")
	store(t, host+"/layer:v1",
		image(t, oci.ConfigMediaType, static.NewLayer([]byte("x"), types.OCILayer)))
	refused(t, host+"/layer:v1", "its layer is application/vnd.oci.image.layer")
	store(t, host+"/two:v1",
		image(t, oci.ConfigMediaType, layer, static.NewLayer([]byte("x"), oci.ContentMediaType)))
	refused(t, host+"/two:v1", "2 layers")
	store(t, host+"/none:v1", image(t, oci.ConfigMediaType))
	refused(t, host+"/none:v1", "0 layers")

	store(t, host+"/good:v1", image(t, oci.ConfigMediaType, layer))
	lie = string(types.OCIImageIndex)
	refused(t, host+"/good:v1", "its media type is application/vnd.oci.image.index.v1+json")
}

// liar writes another content type.
type liar struct {
	http.ResponseWriter
	mediaType string
}

func (l *liar) WriteHeader(status int) {
	l.Header().Set("Content-Type", l.mediaType)
	l.ResponseWriter.WriteHeader(status)
}

func (l *liar) Write(b []byte) (int, error) {
	l.Header().Set("Content-Type", l.mediaType)
	return l.ResponseWriter.Write(b)
}

// A layer, or a manifest, that the registry changed since it was pushed.
func TestTampered(t *testing.T) {
	blobs := t.TempDir()
	host := serve(t, nil, registry.WithBlobHandler(registry.NewDiskBlobHandler(blobs)))
	if _, err := oci.Push(t.Context(), oci.Scheme+host+"/fleet:v1", files, meta,
		oci.Options{}); err != nil {
		t.Fatal(err)
	}
	evil := archive(t, tar.Header{Typeflag: tar.TypeReg, Name: "evil.yaml"})
	changed := 0
	for file, data := range tree(t, blobs) {
		if !strings.HasPrefix(data, "\x1f\x8b") {
			continue
		}
		for len(evil) < len(data) {
			evil = append(evil, 0)
		}
		if err := os.WriteFile(filepath.Join(blobs, file), evil[:len(data)], 0o600); err != nil {
			t.Fatal(err)
		}
		changed++
	}
	if changed != 1 {
		t.Fatalf("%d layers", changed)
	}
	refused(t, host+"/fleet:v1", "sha256")
}
