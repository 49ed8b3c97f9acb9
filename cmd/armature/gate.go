package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/go-multierror"
	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/apply"
	"github.com/armature-dev/armature/render/sign"
)

// imageGate is --verify-images: nothing is written unless a policy accepts every image
// that would run.
type imageGate struct {
	file   string
	policy *sign.Policy // nil demands nothing
}

func (g *imageGate) flag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&g.file, "verify-images", "", "`file` with a VerifyPolicy that every image has to satisfy, by digest; asks the registries")
}

// open reads the policy.
func (g *imageGate) open() error {
	if g.file == "" {
		return nil
	}
	policy, err := sign.ReadPolicy(g.file)
	g.policy = &policy
	return err
}

// pass judges what a render wrote of a source.
func (g *imageGate) pass(ctx context.Context, at *place, src render.Source, files []render.File) error {
	if g.policy == nil {
		return nil
	}
	d := decoder{place: at}
	for _, f := range files {
		if err := d.rendered(src, f.Path, f.Data); err != nil {
			return err
		}
	}
	if err := d.failed.ErrorOrNil(); err != nil {
		return err
	}
	return verifyImages(ctx, d.objects, *g.policy)
}

// before makes a transformation wait for the verdict on what it will write. Both are of
// the same bytes: files are read once.
func (g *imageGate) before(ctx context.Context, at *place, do transformation) transformation {
	if g.policy == nil {
		return do
	}
	return func(src render.Source, opt render.Options, sink render.Sink) ([]krm.Finding, render.Stats, error) {
		src.Files = slices.Clone(src.Files)
		for i := range src.Files {
			text, err := original(src, src.Files[i].Path)
			if err != nil {
				return nil, render.Stats{}, err
			}
			src.Files[i].Data = append([]byte{}, text...)
		}
		judged := opt
		judged.ObjectsOnly, judged.Pieces, judged.Memory, judged.Keep = true, false, nil, nil
		result, err := render.Run(src, judged)
		if err != nil || krm.Failed(result.Findings) {
			return result.Findings, render.Stats{}, err
		}
		if err := errors.Join(g.pass(ctx, at, src, result.Files), ctx.Err()); err != nil {
			return nil, render.Stats{}, err
		}
		return do(src, opt, sink)
	}
}

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
