package layout

import (
	"context"
	"fmt"
	"os"
	"regexp"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Push says what to push where.
type Push struct {
	// Dir holds the OCI layout.
	Dir string
	// Digest of the image or index, sha256: and 64 hexadecimal digits.
	Digest string
	// Image to push it to, as registry/repository:tag.
	Image string
	// PlainHTTP sends it to a registry without TLS.
	PlainHTTP bool
	// Keychain has the login of the registry; nil is none.
	Keychain authn.Keychain
}

var sha256Digest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// Run pushes the image or index that Digest names. The tag moves last. Whatever is
// missing from the layout, is a link or has other content than its digest says is
// an error, and then the registry has no manifest of it.
func (p Push) Run(ctx context.Context) error {
	if !sha256Digest.MatchString(p.Digest) {
		return fmt.Errorf("%q is not a digest: write sha256: and 64 hexadecimal digits", p.Digest)
	}
	digest, err := v1.NewHash(p.Digest)
	if err != nil {
		return fmt.Errorf("reading the digest: %w", err)
	}
	options := []name.Option{name.StrictValidation}
	if p.PlainHTTP {
		options = append(options, name.Insecure)
	}
	tag, err := name.NewTag(p.Image, options...)
	if err != nil {
		return fmt.Errorf("reading the image to push to: %w", err)
	}
	root, err := os.OpenRoot(p.Dir)
	if err != nil {
		return fmt.Errorf("opening the layout: %w", err)
	}
	defer root.Close()
	found, list, err := store{root}.read(digest)
	if err != nil {
		return fmt.Errorf("reading the layout in %s: %w", p.Dir, err)
	}
	to := []remote.Option{remote.WithContext(ctx), remote.WithUserAgent("armature")}
	if p.Keychain != nil {
		to = append(to, remote.WithAuthFromKeychain(p.Keychain))
	}
	// By digest first: the registry refuses a manifest of another one.
	byDigest := tag.Context().Digest(p.Digest)
	if list != nil {
		if err := remote.WriteIndex(byDigest, list, to...); err != nil {
			return fmt.Errorf("pushing %s: %w", byDigest, err)
		}
		return tagged(tag, list, to)
	}
	img, err := partial.CompressedToImage(found)
	if err != nil {
		return fmt.Errorf("reading the image %s: %w", digest, err)
	}
	if err := remote.Write(byDigest, img, to...); err != nil {
		return fmt.Errorf("pushing %s: %w", byDigest, err)
	}
	return tagged(tag, img, to)
}

func tagged(tag name.Tag, what remote.Taggable, to []remote.Option) error {
	if err := remote.Tag(tag, what, to...); err != nil {
		return fmt.Errorf("tagging %s: %w", tag, err)
	}
	return nil
}
