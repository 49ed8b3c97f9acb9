package sign_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/armature-dev/armature/render/deliver/sign"
)

// hostile is a registry with a signed artifact. A test replaces some of its answers.
type hostile struct {
	*fixture
	public string
	// answer handles a request, or reports that it does not.
	answer atomic.Pointer[func(http.ResponseWriter, *http.Request) bool]
}

func newHostile(t *testing.T) *hostile {
	t.Helper()
	h := &hostile{}
	inner := registry.New(registry.WithReferrersSupport(true),
		registry.Logger(log.New(io.Discard, "", 0)))
	h.fixture = setupWith(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if answer := h.answer.Load(); answer != nil && (*answer)(w, r) {
			return
		}
		inner.ServeHTTP(w, r)
	}))
	private, public := h.key("ours")
	h.public = public
	h.sign(signer(private))
	return h
}

func (h *hostile) behave(answer func(http.ResponseWriter, *http.Request) bool) {
	h.answer.Store(&answer)
}

// endless answers without an end, and counts what the reader takes.
func endless(w http.ResponseWriter, media types.MediaType) (taken int64) {
	w.Header().Set("Content-Type", string(media))
	chunk := []byte(strings.Repeat(" ", 1<<16))
	for taken < 1<<30 {
		n, err := w.Write(chunk)
		if taken += int64(n); err != nil {
			break
		}
	}
	return taken
}

// An answer that does not end is left, wherever it is given.
func TestEndlessAnswers(t *testing.T) {
	for _, what := range []string{"/referrers/", "/manifests/sha256:", ".sig", "/blobs/"} {
		t.Run(strings.Trim(what, "/:"), func(t *testing.T) {
			h := newHostile(t)
			var once sync.Once
			var taken int64
			done := make(chan struct{})
			h.behave(func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, what) {
					return false
				}
				media := types.OCIManifestSchema1
				if what == "/referrers/" {
					media = types.OCIImageIndex
				}
				n := endless(w, media)
				once.Do(func() { taken = n; close(done) })
				return true
			})
			if v, err := sign.Verify(t.Context(), h.artifact, local(h.public)); err == nil {
				t.Fatalf("%+v", v)
			} else if what != "/blobs/" &&
				!strings.Contains(err.Error(), "larger than what is read") {
				t.Error(err) // of a blob the manifest says the size
			}
			<-done
			// What the kernel buffers comes on top of what is read.
			if limit := int64(sign.MaxAttachment + 64<<20); taken > limit {
				t.Errorf("%d MiB were taken", taken>>20)
			}
		})
	}
}

// Thousands of referrers that are about something else cost one list; hundreds of
// the type that is looked for are refused.
func TestManyReferrers(t *testing.T) {
	h := newHostile(t)
	genuine := h.referrers()
	list := func(n int, predicateType string) {
		index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
		for i := range n {
			index.Manifests = append(index.Manifests,
				v1.Descriptor{MediaType: types.OCIManifestSchema1, Size: 1,
					ArtifactType: "application/vnd.dev.sigstore.bundle.v0.3+json",
					Digest:       v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%064x", i)},
					Annotations: map[string]string{
						"dev.sigstore.bundle.predicateType": predicateType}})
		}
		index.Manifests = append(index.Manifests, genuine...)
		text, err := json.Marshal(index)
		if err != nil {
			t.Fatal(err)
		}
		h.behave(func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/referrers/") {
				return false
			}
			w.Header().Set("Content-Type", string(types.OCIImageIndex))
			_, _ = w.Write(text)
			return true
		})
	}
	list(5000, "https://spdx.dev/Document")
	if _, err := sign.Verify(t.Context(), h.artifact, local(h.public)); err != nil {
		t.Error(err)
	}
	list(20, "https://sigstore.dev/cosign/sign/v1") // the registry has none of them
	if _, err := sign.Verify(t.Context(), h.artifact, local(h.public)); err != nil {
		t.Error(err)
	}
	list(sign.MaxAttachments, "https://sigstore.dev/cosign/sign/v1")
	h.refused(local(h.public), "has 101 attachments of one type, more than 100")
}

// A registry that redirects in a circle is left.
func TestRedirects(t *testing.T) {
	h := newHostile(t)
	var hops atomic.Int32
	h.behave(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/referrers/") {
			return false
		}
		hops.Add(1)
		http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
		return true
	})
	h.refused(local(h.public), "stopped after 10 redirects")
	if n := hops.Load(); n > 100 {
		t.Errorf("%d redirects were followed", n)
	}
}

// A registry that does not answer holds nobody longer than its caller waits.
func TestSilentRegistry(t *testing.T) {
	h := newHostile(t)
	asked, released := make(chan struct{}), make(chan struct{})
	defer close(released)
	var once sync.Once
	h.behave(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			once.Do(func() { close(asked) })
			<-released
		}
		return false
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-asked
		cancel()
	}()
	if v, err := sign.Verify(ctx, h.artifact, local(h.public)); !errors.Is(err, context.Canceled) {
		t.Errorf("%+v %v", v, err)
	}
}

// A size that a manifest claims is not believed.
func TestClaimedSizes(t *testing.T) {
	h := newHostile(t)
	for _, d := range h.referrers() {
		h.put(d, func(m *v1.Manifest) { m.Layers[0].Size = 1 << 40 })
	}
	if _, err := sign.Verify(t.Context(), h.artifact, local(h.public)); err != nil {
		t.Errorf("the genuine bundles are there as well: %v", err)
	}
	other, _ := h.key("other")
	h.artifact = h.push("another")
	h.sign(signer(other))
	h.refused(local(h.public), "signature: ")
}

// Large attachments that claim to be signatures are not held in memory together.
func TestLargeAttachments(t *testing.T) {
	h := newHostile(t)
	genuine := h.referrers()
	for _, letter := range []string{"a", "b", "c", "d"} {
		content := []byte(strings.Repeat(letter, 30<<20))
		layer := static.NewLayer(content, "application/vnd.dev.sigstore.bundle.v0.3+json")
		digest, err := layer.Digest()
		if err == nil {
			err = remote.WriteLayer(h.artifact.Context(), layer)
		}
		if err != nil {
			t.Fatal(err)
		}
		h.put(genuine[0], func(m *v1.Manifest) {
			m.Annotations["dev.sigstore.bundle.predicateType"] = "https://sigstore.dev/cosign/sign/v1"
			m.Layers[0].Digest, m.Layers[0].Size = digest, int64(len(content))
		})
	}
	for _, d := range genuine {
		if err := remote.Delete(h.artifact.Context().Digest(d.Digest.String())); err != nil {
			t.Fatal(err)
		}
	}
	var read atomic.Int32
	h.behave(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			read.Add(1)
		}
		return false
	})
	h.refused(local(h.public), "larger than what is read")
	if n := read.Load(); n != sign.MaxContent/(30<<20) {
		t.Errorf("%d of four attachments of 30 MiB were read", n)
	}
}
