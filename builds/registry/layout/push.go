package layout

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/armature-dev/armature/builds/api"
)

// Push says what to push where.
type Push struct {
	// Dir has the OCI layout or, with Platforms, a folder for each, for example linux-arm64.
	Dir string
	// Digests are sha256: and 64 hexadecimal digits each: the digest of the image or index, or the
	// digest of the image of each of Platforms, in their order.
	Digests []string
	// Platforms are the platforms of the images, for example linux/arm64, at most 32. Several are
	// pushed as an index. Without platforms, one image or index is pushed as it is.
	Platforms []string
	// Image is the destination, as registry/repository:tag.
	Image string
	// PlainHTTP pushes to a registry without TLS.
	PlainHTTP bool
	// Keychain has the login of the registry; nil pushes without a login.
	Keychain authn.Keychain
}

// Run pushes what Digests name, and returns the digest that the tag then has. The tag moves last. A
// blob that is missing, is a link or does not match its digest, or an image of another platform, is
// an error: the registry then has neither the tag nor the manifest.
func (p Push) Run(ctx context.Context) (string, error) {
	tag, err := p.tag(p.Image)
	if err != nil {
		return "", fmt.Errorf("reading the image to push to: %w", err)
	}
	root, err := os.OpenRoot(p.Dir)
	if err != nil {
		return "", fmt.Errorf("opening the layout: %w", err)
	}
	defer root.Close()
	found, err := p.read(root)
	if err != nil {
		return "", fmt.Errorf("reading the layout in %s: %w", p.Dir, err)
	}
	to := p.options(ctx)
	// It is pushed by digest first: the registry refuses a manifest with another digest.
	byDigest := tag.Context().Digest(found.digest.String())
	for _, img := range found.images {
		digest, err := img.Digest()
		if err == nil {
			err = remote.Write(tag.Context().Digest(digest.String()), img, to...)
		}
		if err != nil {
			return "", fmt.Errorf("pushing %s: %w", byDigest, err)
		}
	}
	if found.mediaType.IsIndex() {
		if err := remote.Put(byDigest, found, to...); err != nil {
			return "", fmt.Errorf("pushing %s: %w", byDigest, err)
		}
	}
	if err := remote.Tag(tag, found, to...); err != nil {
		return "", fmt.Errorf("tagging %s: %w", tag, err)
	}
	return found.digest.String(), nil
}

// tagTimeout bounds TagCache, which runs after the image was pushed. A registry needs far less.
var tagTimeout = time.Minute

// TagCache adds a second tag, given as registry/repository:tag, to the digest that Run has pushed
// to the same repository. It takes at most tagTimeout.
func (p Push) TagCache(ctx context.Context, digest, image string) error {
	ctx, cancel := context.WithTimeout(ctx, tagTimeout)
	defer cancel()
	tag, err := p.tag(image)
	if err != nil {
		return fmt.Errorf("reading the image for the cache: %w", err)
	}
	if pushed, err := p.tag(p.Image); err != nil || pushed.Context() != tag.Context() {
		return fmt.Errorf("%s is not in the repository of %s", image, p.Image)
	}
	to := p.options(ctx)
	found, err := remote.Get(tag.Context().Digest(digest), to...)
	if err != nil {
		return fmt.Errorf("reading what was pushed: %w", err)
	}
	if err := remote.Tag(tag, found, to...); err != nil {
		return fmt.Errorf("tagging %s: %w", tag, err)
	}
	return nil
}

func (p Push) tag(image string) (name.Tag, error) {
	options := []name.Option{name.StrictValidation}
	if p.PlainHTTP {
		options = append(options, name.Insecure)
	}
	return name.NewTag(image, options...)
}

func (p Push) options(ctx context.Context) []remote.Option {
	to := []remote.Option{remote.WithContext(ctx), remote.WithUserAgent("armature")}
	if p.Keychain != nil {
		to = append(to, remote.WithAuthFromKeychain(p.Keychain))
	}
	return to
}

// read reads the image or the index to push.
func (p Push) read(root *os.Root) (artifact, error) {
	if len(p.Platforms) > 0 {
		return p.readPlatforms(root)
	}
	if len(p.Digests) != 1 {
		return artifact{}, fmt.Errorf(
			"%d digests are given, but one image is pushed without platforms", len(p.Digests))
	}
	digest, err := parseDigest(p.Digests[0])
	if err != nil {
		return artifact{}, err
	}
	return store{root: root}.read(digest, v1.Hash{})
}

func parseDigest(text string) (v1.Hash, error) {
	if !api.IsDigest(text) {
		return v1.Hash{}, fmt.Errorf(
			"%.80q is not a digest: write sha256: and 64 hexadecimal digits", text)
	}
	return v1.NewHash(text)
}
