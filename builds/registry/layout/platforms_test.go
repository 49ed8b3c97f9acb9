package layout_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	ggcr "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/armature-dev/armature/builds/registry/layout"
)

var ordered = []string{"linux/amd64", "linux/arm64", "linux/arm/v7"}

// built leaves the layout of one platform, and the digest of its image, which says
// that it is for the platform says.
func built(t *testing.T, dir, platform, says string) string {
	t.Helper()
	of, err := v1.ParsePlatform(says)
	must(t, err)
	img, err := random.Image(512, 2)
	must(t, err)
	config, err := img.ConfigFile()
	must(t, err)
	config.OS, config.Architecture, config.Variant = of.OS, of.Architecture, of.Variant
	img, err = mutate.ConfigFile(img, config)
	must(t, err)
	path, err := ggcr.Write(filepath.Join(dir, strings.ReplaceAll(platform, "/", "-")), empty.Index)
	must(t, err)
	must(t, path.AppendImage(img))
	digest, err := img.Digest()
	must(t, err)
	return digest.String()
}

// builtAll are the layouts of all platforms that were ordered.
func builtAll(t *testing.T) (dir string, digests []string) {
	t.Helper()
	dir = t.TempDir()
	for _, platform := range ordered {
		digests = append(digests, built(t, dir, platform, platform))
	}
	return dir, digests
}

// The images of several platforms are pushed as an index, which names each with its
// platform, and from which a client pulls its own.
func TestPushPlatforms(t *testing.T) {
	dir, digests := builtAll(t)
	to := registryAt(t) + "/team/weather:v1"
	pushed, err := layout.Push{Dir: dir, Digests: digests, Platforms: ordered, Image: to,
		PlainHTTP: true}.Run(t.Context())
	must(t, err)
	ref, err := name.ParseReference(to)
	must(t, err)
	got, err := remote.Get(ref)
	must(t, err)
	if got.Digest.String() != pushed {
		t.Errorf("the tag is at %s, and it says that it pushed %s", got.Digest, pushed)
	}
	list, err := got.ImageIndex()
	must(t, err)
	must(t, validate.Index(list))
	m, err := list.IndexManifest()
	must(t, err)
	var have []string
	for _, d := range m.Manifests {
		have = append(have, d.Platform.String()+" "+d.Digest.String())
	}
	var want []string
	for i, platform := range ordered {
		want = append(want, platform+" "+digests[i])
		of, err := v1.ParsePlatform(platform)
		must(t, err)
		img, err := remote.Image(ref, remote.WithPlatform(*of))
		must(t, err)
		if digest, err := img.Digest(); err != nil || digest.String() != digests[i] {
			t.Errorf("a pull for %s gets %s (%v), want %s", platform, digest, err, digests[i])
		}
	}
	if !slices.Equal(have, want) {
		t.Errorf("the index has %q, want %q", have, want)
	}
	again, err := layout.Push{Dir: dir, Digests: digests, Platforms: ordered, Image: to,
		PlainHTTP: true}.Run(t.Context())
	if err != nil || again != pushed {
		t.Errorf("pushed again it is %s (%v), want %s", again, err, pushed)
	}
}

// One platform is pushed as its image, without an index.
func TestPushOnePlatform(t *testing.T) {
	dir := t.TempDir()
	digest := built(t, dir, "linux/arm64", "linux/arm64/v8") // which is the same
	to := registryAt(t) + "/team/weather:v1"
	pushed, err := layout.Push{Dir: dir, Digests: []string{digest},
		Platforms: []string{"linux/arm64"}, Image: to, PlainHTTP: true}.Run(t.Context())
	if err != nil || pushed != digest {
		t.Errorf("pushed %s (%v), want %s", pushed, err, digest)
	}
}

// layerOf an image in a layout, as a file.
func layerOf(t *testing.T, dir, digest string) string {
	t.Helper()
	path, err := ggcr.FromPath(dir)
	must(t, err)
	hash, err := v1.NewHash(digest)
	must(t, err)
	img, err := path.Image(hash)
	must(t, err)
	layers, err := img.Layers()
	must(t, err)
	layer, err := layers[0].Digest()
	must(t, err)
	return blob(dir, layer.String())
}

// Anything but one image for each platform that was ordered is an error, and then the
// registry has neither the tag nor that image.
func TestPushPlatformsRefuses(t *testing.T) {
	type push struct {
		dir                string
		platforms, digests []string
	}
	const otherContent = "a layer of other content"
	cases := map[string]struct {
		change func(t *testing.T, p *push)
		want   string
	}{
		"another digest than the layout's": {func(_ *testing.T, p *push) {
			p.digests[1] = "sha256:" + strings.Repeat("0a", 32)
		}, "linux/arm64: the layout has no blob"},
		"the digests of two swapped": {func(_ *testing.T, p *push) {
			p.digests[0], p.digests[1] = p.digests[1], p.digests[0]
		}, "linux/amd64: the layout has no blob"},
		"an image of another platform": {func(t *testing.T, p *push) {
			p.digests[1] = built(t, p.dir, "linux/arm64", "linux/amd64")
		}, "linux/arm64: the image"},
		"an image of another variant": {func(t *testing.T, p *push) {
			p.digests[2] = built(t, p.dir, "linux/arm/v7", "linux/arm/v6")
		}, "is for linux/arm/v6"},
		"an image of another system": {func(t *testing.T, p *push) {
			p.digests[1] = built(t, p.dir, "linux/arm64", "windows/arm64")
		}, "is for windows/arm64"},
		"a missing layout": {func(t *testing.T, p *push) {
			must(t, os.RemoveAll(filepath.Join(p.dir, "linux-arm64")))
		}, "linux/arm64: the layout has no blob"},
		"a layout that is a link to another": {func(t *testing.T, p *push) {
			must(t, os.Rename(filepath.Join(p.dir, "linux-arm64"),
				filepath.Join(t.TempDir(), "arm64")))
			must(t, os.Symlink("/", filepath.Join(p.dir, "linux-arm64")))
		}, "linux/arm64: opening a blob"},
		"an index in place of an image": {func(t *testing.T, p *push) {
			list, err := random.Index(64, 1, 2)
			must(t, err)
			path, err := ggcr.FromPath(filepath.Join(p.dir, "linux-arm64"))
			must(t, err)
			must(t, path.AppendIndex(list))
			digest, err := list.Digest()
			must(t, err)
			p.digests[1] = digest.String()
		}, "is an index"},
		"a missing layer": {func(t *testing.T, p *push) {
			must(t, os.Remove(layerOf(t, filepath.Join(p.dir, "linux-arm64"), p.digests[1])))
		}, "has no blob"},
		otherContent: {func(t *testing.T, p *push) {
			file := layerOf(t, filepath.Join(p.dir, "linux-arm64"), p.digests[1])
			raw, err := os.ReadFile(file)
			must(t, err)
			raw[len(raw)-1] ^= 1
			must(t, os.WriteFile(file, raw, 0o600))
		}, "has the content of"},
		"two layouts for one platform": {func(_ *testing.T, p *push) {
			p.platforms[2], p.digests[2] = p.platforms[1], p.digests[1]
		}, "the platform linux/arm64 has two layouts"},
		"a digest more": {func(_ *testing.T, p *push) {
			p.digests = append(p.digests, p.digests[0])
		}, "4 digests are given for 3 platforms"},
		"a digest less": {func(_ *testing.T, p *push) { p.digests = p.digests[:2] },
			"2 digests are given for 3 platforms"},
		"no digest": {func(_ *testing.T, p *push) { p.digests[1] = "" },
			"not a digest"},
		"two digests in one": {func(_ *testing.T, p *push) {
			p.digests[1] += " " + p.digests[2]
		}, "not a digest"},
		"no platform": {func(_ *testing.T, p *push) { p.platforms[1] = "linux" },
			"not a platform"},
		"a platform that leads out": {func(_ *testing.T, p *push) { p.platforms[1] = "../.." },
			"the layout has no blob"},
	}
	for what, c := range cases {
		t.Run(what, func(t *testing.T) {
			dir, digests := builtAll(t)
			p := push{dir, slices.Clone(ordered), slices.Clone(digests)}
			c.change(t, &p)
			to := registryAt(t) + "/team/weather"
			_, err := layout.Push{Dir: dir, Digests: p.digests, Platforms: p.platforms,
				Image: to + ":v1", PlainHTTP: true}.Run(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("the error is %v, want one with %q", err, c.want)
			}
			refs := []string{to + ":v1", to + "@" + digests[1]}
			if what != otherContent { // found when the image before it is there, and no index
				refs = append(refs, to+"@"+digests[0])
			}
			for _, ref := range refs {
				parsed, err := name.ParseReference(ref)
				must(t, err)
				if _, err := remote.Head(parsed); err == nil {
					t.Errorf("the registry has %s", ref)
				}
			}
		})
	}
}
