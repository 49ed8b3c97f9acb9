package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/go-multierror"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render/apply"
	"github.com/armature-dev/armature/render/sign"
)

// verifyImages checks every image that objects run against a policy. It reports all
// failures.
func verifyImages(ctx context.Context, objects []apply.Object, policy sign.Policy) error {
	places := make(map[string]string)
	for _, o := range objects {
		for _, image := range krm.Images(o.Object) {
			if _, known := places[image]; !known {
				places[image] = fmt.Sprintf("%s:%d", o.File, o.Line)
			}
		}
	}
	var images []sign.Image
	for _, ref := range slices.Sorted(maps.Keys(places)) {
		images = append(images, sign.Image{Ref: ref, Place: places[ref]})
	}
	return multierror.Append(nil, sign.VerifyImages(ctx, images, policy)...).ErrorOrNil()
}
