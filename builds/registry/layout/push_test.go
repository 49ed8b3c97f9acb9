package layout_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	ggcr "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/armature-dev/armature/builds/registry/layout"
	"github.com/armature-dev/armature/functions/multi"
)

// written is a layout with one image and an index of two, and their digests.
func written(t *testing.T) (dir, image, index string) {
	t.Helper()
	dir = t.TempDir()
	path, err := ggcr.Write(dir, empty.Index)
	must(t, err)
	img, err := random.Image(2048, 3)
	must(t, err)
	must(t, path.AppendImage(img))
	list, err := random.Index(1024, 2, 2)
	must(t, err)
	must(t, path.AppendIndex(list))
	imageDigest, err := img.Digest()
	must(t, err)
	indexDigest, err := list.Digest()
	must(t, err)
	return dir, imageDigest.String(), indexDigest.String()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// registryAt is a registry and the host that it is reached by.
func registryAt(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(registry.New())
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func blob(dir, digest string) string {
	return filepath.Join(dir, "blobs", "sha256", strings.TrimPrefix(digest, "sha256:"))
}

func TestPush(t *testing.T) {
	dir, image, index := written(t)
	for what, digest := range map[string]string{"image": image, "index": index} {
		t.Run(what, func(t *testing.T) {
			to := registryAt(t) + "/team/weather:v1"
			pushed, err := layout.Push{Dir: dir, Digests: []string{digest}, Image: to,
				PlainHTTP: true}.Run(t.Context())
			must(t, err)
			if pushed != digest {
				t.Errorf("it says that it pushed %s, want %s", pushed, digest)
			}
			ref, err := name.ParseReference(to)
			must(t, err)
			got, err := remote.Get(ref)
			must(t, err)
			if got.Digest.String() != digest {
				t.Errorf("the tag is at %s, want %s", got.Digest, digest)
			}
			if what == "image" {
				img, err := got.Image()
				must(t, err)
				must(t, validate.Image(img))
				return
			}
			list, err := got.ImageIndex()
			must(t, err)
			must(t, validate.Index(list))
		})
	}
}

// What is not what the digest names is not pushed: the registry has no tag and no
// manifest afterwards.
func TestPushRefuses(t *testing.T) {
	manifestOf := func(t *testing.T, dir, digest string) v1.Manifest {
		t.Helper()
		raw, err := os.ReadFile(blob(dir, digest))
		must(t, err)
		var m v1.Manifest
		must(t, json.Unmarshal(raw, &m))
		return m
	}
	flip := func(t *testing.T, file string) {
		t.Helper()
		raw, err := os.ReadFile(file)
		must(t, err)
		raw[len(raw)-1] ^= 1
		must(t, os.WriteFile(file, raw, 0o600))
	}
	cases := map[string]struct {
		change func(t *testing.T, dir, digest string)
		digest string
		image  string
		want   string
	}{
		"a manifest of other content": {change: func(t *testing.T, dir, digest string) {
			flip(t, blob(dir, digest))
		}, want: "has the content of"},
		"a layer of other content": {change: func(t *testing.T, dir, digest string) {
			flip(t, blob(dir, manifestOf(t, dir, digest).Layers[1].Digest.String()))
		}, want: "has the content of"},
		"a configuration of other content": {change: func(t *testing.T, dir, digest string) {
			flip(t, blob(dir, manifestOf(t, dir, digest).Config.Digest.String()))
		}, want: "has the content of"},
		"a longer layer": {change: func(t *testing.T, dir, digest string) {
			file := blob(dir, manifestOf(t, dir, digest).Layers[0].Digest.String())
			raw, err := os.ReadFile(file)
			must(t, err)
			must(t, os.WriteFile(file, append(raw, 0), 0o600))
		}, want: "its manifest says"},
		"a missing layer": {change: func(t *testing.T, dir, digest string) {
			must(t, os.Remove(blob(dir, manifestOf(t, dir, digest).Layers[2].Digest.String())))
		}, want: "has no blob"},
		"a link to a secret": {change: func(t *testing.T, dir, digest string) {
			file := blob(dir, manifestOf(t, dir, digest).Layers[0].Digest.String())
			secret := filepath.Join(t.TempDir(), "config.json")
			must(t, os.Rename(file, secret))
			must(t, os.Symlink(secret, file))
		}, want: "not a regular file"},
		"a link to the right blob": {change: func(t *testing.T, dir, digest string) {
			file := blob(dir, manifestOf(t, dir, digest).Layers[0].Digest.String())
			must(t, os.Rename(file, filepath.Join(dir, "elsewhere")))
			must(t, os.Symlink("../../elsewhere", file))
		}, want: "not a regular file"},
		"a folder of blobs that is a link": {change: func(t *testing.T, dir, _ string) {
			must(t, os.Rename(filepath.Join(dir, "blobs"), filepath.Join(t.TempDir(), "blobs")))
			must(t, os.Symlink("/", filepath.Join(dir, "blobs")))
		}, want: "opening a blob"},
		"a layer that is elsewhere": {change: func(t *testing.T, dir, _ string) {
			path, err := ggcr.FromPath(dir)
			must(t, err)
			other, err := random.Layer(10,
				"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip")
			must(t, err)
			img, err := mutate.AppendLayers(empty.Image, other)
			must(t, err)
			must(t, path.ReplaceImage(img, func(v1.Descriptor) bool { return false }))
		}, digest: "foreign", want: "somewhere else"},
		"another digest": {digest: "sha256:" + strings.Repeat("0a", 32),
			want: "has no blob"},
		"no digest":               {digest: "latest", want: "not a digest"},
		"a digest that leads out": {digest: "sha256:../../../etc/passwd", want: "not a digest"},
		"the digest of a layer":   {digest: "layer", want: "reading the manifest"},
		"an image without a tag":  {image: "/team/weather", want: "reading the image"},
	}
	for what, c := range cases {
		t.Run(what, func(t *testing.T) {
			dir, digest, _ := written(t)
			host := registryAt(t)
			if c.change != nil {
				c.change(t, dir, digest)
			}
			switch c.digest {
			case "":
			case "layer":
				digest = manifestOf(t, dir, digest).Layers[0].Digest.String()
			case "foreign":
				path, err := ggcr.FromPath(dir)
				must(t, err)
				list, err := path.ImageIndex()
				must(t, err)
				m, err := list.IndexManifest()
				must(t, err)
				digest = m.Manifests[len(m.Manifests)-1].Digest.String()
			default:
				digest = c.digest
			}
			image := host + "/team/weather:v1"
			if c.image != "" {
				image = host + c.image
			}
			_, err := layout.Push{Dir: dir, Digests: []string{digest}, Image: image,
				PlainHTTP: true}.Run(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("the error is %v, want one with %q", err, c.want)
			}
			if c.image != "" {
				return
			}
			ref, err := name.ParseReference(image)
			must(t, err)
			if got, err := remote.Head(ref); err == nil {
				t.Errorf("the registry has the tag, at %s", got.Digest)
			}
			if d, err := name.NewDigest(host + "/team/weather@" + digest); err == nil {
				if _, err := remote.Head(d); err == nil {
					t.Error("the registry has the manifest")
				}
			}
		})
	}
}

// An index within an index is refused before its own entries are read: a chain of them could be as
// long as the volume has room.
func TestPushRefusesNestedIndex(t *testing.T) {
	dir, _, _ := written(t)
	write := func(entry v1.Hash) v1.Hash {
		raw, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex,
			Manifests: []v1.Descriptor{{MediaType: types.OCIImageIndex, Digest: entry}}})
		must(t, err)
		digest, _, err := v1.SHA256(bytes.NewReader(raw))
		must(t, err)
		must(t, os.WriteFile(blob(dir, digest.String()), raw, 0o600))
		return digest
	}
	missing := v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("0a", 32)}
	outer := write(write(missing))
	_, err := layout.Push{Dir: dir, Digests: []string{outer.String()},
		Image: registryAt(t) + "/team/weather:v1", PlainHTTP: true}.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "another index in it") {
		t.Errorf("error %v", err)
	}
}

// A pipe that takes a blob's place between two looks at it keeps nobody waiting: who
// pushes would stand still until the run's timeout.
func TestPushWaitsForNoPipe(t *testing.T) {
	written, image, _ := written(t)
	dir, aside := t.TempDir(), t.TempDir()
	// for which the image is not, so that nothing is pushed
	must(t, os.Rename(written, filepath.Join(dir, "linux-riscv64")))
	manifest := blob(filepath.Join(dir, "linux-riscv64"), image)
	regular, pipe, next := filepath.Join(aside, "regular"), filepath.Join(aside, "pipe"),
		filepath.Join(aside, "next")
	must(t, os.Rename(manifest, regular))
	must(t, os.Link(regular, manifest))
	must(t, syscall.Mkfifo(pipe, 0o600))
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			for _, file := range []string{pipe, regular} { // each takes its place at once
				if err := multi.Errors(os.Link(file, next), os.Rename(next, manifest)); err != nil {
					stopped <- err
					return
				}
			}
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
		}
	}()
	ended := make(chan int, 1)
	go func() {
		replaced := 0
		defer func() { ended <- replaced }()
		for begun := time.Now(); replaced < 3 && time.Since(begun) < time.Minute; {
			_, err := layout.Push{Dir: dir, Digests: []string{image},
				Platforms: []string{"linux/riscv64"},
				Image:     "registry.invalid/team/weather:v1"}.Run(t.Context())
			switch {
			case err == nil:
				t.Error("an image for another platform is pushed")
				return
			case strings.Contains(err.Error(), "was replaced"):
				replaced++
			}
		}
	}()
	select {
	case replaced := <-ended:
		t.Logf("the blob was replaced at the right moment %d times", replaced)
	case <-time.After(2 * time.Minute):
		t.Error("it waits for a pipe")
	}
	close(stop)
	must(t, <-stopped)
}

// The tag for the cache is put beside the image, and nowhere else.
func TestTagCache(t *testing.T) {
	dir, image, index := written(t)
	for what, digest := range map[string]string{"image": image, "index": index} {
		t.Run(what, func(t *testing.T) {
			host := registryAt(t)
			push := layout.Push{Dir: dir, Digests: []string{digest},
				Image: host + "/team/weather:v1", PlainHTTP: true}
			if err := push.TagCache(t.Context(), digest,
				host+"/team/weather:team.weather-cache"); err == nil {
				t.Error("an image is tagged that the registry does not have")
			}
			pushed, err := push.Run(t.Context())
			must(t, err)
			must(t, push.TagCache(t.Context(), pushed, host+"/team/weather:team.weather-cache"))
			ref, err := name.ParseReference(host + "/team/weather:team.weather-cache")
			must(t, err)
			if got, err := remote.Head(ref); err != nil || got.Digest.String() != digest {
				t.Errorf("the tag for the cache is at %v: %v, want %s", got, err, digest)
			}
			for _, other := range []string{host + "/other/weather:team.weather-cache",
				"example.com/team/weather:c", host + "/team/weather@" + digest, "no image"} {
				if err := push.TagCache(t.Context(), pushed, other); err == nil {
					t.Errorf("%s is accepted", other)
				}
			}
		})
	}
}

// A registry that takes the image, and never answers for the tag of the cache, keeps nobody
// waiting.
func TestTagCacheGivesUp(t *testing.T) {
	t.Cleanup(layout.SetTagTimeout(300 * time.Millisecond))
	dir, image, _ := written(t)
	inner, over := registry.New(), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/manifests/team.weather-cache") {
			<-over
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(over) })
	repository := strings.TrimPrefix(server.URL, "http://") + "/team/weather"
	push := layout.Push{Dir: dir, Digests: []string{image}, Image: repository + ":v1", PlainHTTP: true}
	pushed, err := push.Run(t.Context())
	must(t, err)
	result := make(chan error, 1)
	go func() { result <- push.TagCache(t.Context(), pushed, repository+":team.weather-cache") }()
	select {
	case err := <-result:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the error is %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it waits for the registry")
	}
}
