package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/hashicorp/go-multierror"
	"golang.org/x/sync/errgroup"

	"github.com/armature-dev/armature/render/apply"
	"github.com/armature-dev/armature/render/oci"
	"github.com/armature-dev/armature/render/sign"
)

// verifyImages checks every image that objects run against a policy, eight at once.
// It reports all failures. An image without a digest is refused: its tag may name
// another image by the time it runs.
func verifyImages(ctx context.Context, objects []apply.Object, policy sign.Policy) error {
	places := make(map[string]string)
	for _, o := range objects {
		found := make(map[string]bool)
		objectImages(o.Object, found)
		for image := range found {
			if _, known := places[image]; !known {
				places[image] = fmt.Sprintf("%s:%d", o.File, o.Line)
			}
		}
	}
	images := slices.Sorted(maps.Keys(places))
	failed := make([]error, len(images))
	var group errgroup.Group
	group.SetLimit(8)
	for i, image := range images {
		group.Go(func() error {
			if err := verifyImage(ctx, image, policy); err != nil {
				failed[i] = fmt.Errorf("%s: image %q: %w", places[image], image, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return multierror.Append(nil, failed...).ErrorOrNil()
}

func verifyImage(ctx context.Context, image string, policy sign.Policy) error {
	ref, err := oci.Options{PlainHTTP: policy.PlainHTTP}.Parse(oci.Scheme + image)
	if err != nil {
		return err
	}
	digest, ok := ref.(name.Digest)
	if !ok {
		return errors.New("it has no digest, so that nobody can say what runs\n  hint: run `armature pin`")
	}
	_, err = sign.Verify(ctx, digest, policy)
	return err
}

// objectImages finds the images of all containers, and of image volumes, wherever an
// object has them: custom resources have pod templates, too.
func objectImages(value any, found map[string]bool) {
	switch value := value.(type) {
	case map[string]any:
		for key, child := range value {
			switch key {
			case "containers", "initContainers", "ephemeralContainers":
				listImages(child, found, "image")
			case "volumes":
				listImages(child, found, "image", "reference")
			}
			objectImages(child, found)
		}
	case []any:
		for _, child := range value {
			objectImages(child, found)
		}
	}
}

// listImages finds a text in each item of a list.
func listImages(list any, found map[string]bool, path ...string) {
	items, _ := list.([]any)
	for _, item := range items {
		for _, key := range path {
			fields, _ := item.(map[string]any)
			item = fields[key]
		}
		if image, ok := item.(string); ok && image != "" {
			found[image] = true
		}
	}
}
