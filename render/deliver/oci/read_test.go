package oci_test

import (
	"io"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/armature-dev/armature/render/deliver/oci"
)

// A blob has the size that its descriptor says, or is refused; where else the descriptor says that
// it is, nobody looks.
func TestBlobSizes(t *testing.T) {
	in, err := name.NewRepository(serve(t, nil) + "/fleet")
	if err != nil {
		t.Fatal(err)
	}
	layer := static.NewLayer([]byte("content"), types.OCILayer)
	digest, err := layer.Digest()
	if err == nil {
		err = remote.WriteLayer(in, layer)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{7, 6, 8, 0, -1, -100, 1 << 40} {
		d := v1.Descriptor{Digest: digest, Size: size, URLs: []string{"http://127.0.0.1:1/x"}}
		r, err := oci.Blob(in, d, nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if right := size == 7; (err == nil) != right || right && string(text) != "content" ||
			len(text) > 7 {
			t.Errorf("%d bytes: %q %v", size, text, err)
		}
		r.Close()
	}
}
