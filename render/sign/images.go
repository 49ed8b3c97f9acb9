package sign

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/sync/errgroup"

	"github.com/armature-dev/armature/render/oci"
)

// ErrNoDigest is an image without a digest: its tag may name another one by the time
// it runs.
var ErrNoDigest = errors.New("it has no digest, so that nobody can say what runs\n  hint: run `armature pin`")

// Image is an image that objects run.
type Image struct {
	Ref string
	// Place is that of an object that runs it, for errors.
	Place string
}

// VerifyImages checks images against a policy, eight at once. It gives an error for
// each that is refused, in their order, which names the image and its place.
func VerifyImages(ctx context.Context, images []Image, p Policy) (refused []error) {
	failed := make([]error, len(images))
	var group errgroup.Group
	group.SetLimit(8)
	for i, image := range images {
		group.Go(func() error {
			if err := verifyImage(ctx, image.Ref, p); err != nil {
				failed[i] = fmt.Errorf("%s: image %q: %w", image.Place, image.Ref, err)
			}
			return nil
		})
	}
	_ = group.Wait() // errors are in failed
	for _, err := range failed {
		if err != nil {
			refused = append(refused, err)
		}
	}
	return refused
}

func verifyImage(ctx context.Context, image string, p Policy) error {
	ref, err := oci.Options{PlainHTTP: p.PlainHTTP}.Parse(oci.Scheme + image)
	if err != nil {
		return err
	}
	digest, ok := ref.(name.Digest)
	if !ok {
		return ErrNoDigest
	}
	_, err = Verify(ctx, digest, p)
	return err
}
