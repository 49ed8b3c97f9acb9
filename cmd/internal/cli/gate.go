package cli

import (
	"bytes"
	"context"
	"sync"

	"github.com/hashicorp/go-multierror"
	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/images"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/objects"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// Transformation is render.Stream or render.Uninject.
type Transformation func(render.Source, render.Options,
	render.Sink) ([]finding.Finding, render.Stats, error)

// ImageGate implements --verify-images: nothing is written unless a policy accepts every image that
// would run.
type ImageGate struct {
	file   string
	Policy *sign.Policy // nil demands nothing
}

func (g *ImageGate) Flag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&g.file, "verify-images", "",
		"`file` with a VerifyPolicy that every image must satisfy, by digest; queries "+
			"the registries")
}

// Open reads the policy.
func (g *ImageGate) Open() error {
	if g.file == "" {
		return nil
	}
	policy, err := sign.ReadPolicy(g.file)
	g.Policy = &policy
	return err
}

// Before wraps a transformation so that it writes nothing before its images are verified.
func (g *ImageGate) Before(ctx context.Context, at *Place, do Transformation) Transformation {
	if g.Policy == nil {
		return do
	}
	return func(src render.Source, opt render.Options,
		sink render.Sink) ([]finding.Finding, render.Stats, error) {
		var mu sync.Mutex
		var files []render.File
		found, stats, err := do(src, opt, func(file string, data []byte) error {
			mu.Lock()
			defer mu.Unlock()
			if n := len(files); n > 0 && files[n-1].Path == file { // the next piece of it
				files[n-1].Data = append(files[n-1].Data, data...)
				return ctx.Err()
			}
			files = append(files, render.File{Path: file, Data: bytes.Clone(data)})
			return ctx.Err()
		})
		if err != nil || finding.Failed(found) {
			return found, stats, err
		}
		if err := g.Pass(ctx, at, src, files, opt.Config); err != nil {
			return nil, render.Stats{}, err
		}
		for _, f := range files {
			if err := sink(f.Path, f.Data); err != nil {
				return nil, render.Stats{}, err
			}
		}
		return found, stats, nil
	}
}

// Pass verifies the images of the output: those of all objects, and those of the results of
// kustomizations among the files.
func (g *ImageGate) Pass(ctx context.Context, at *Place, src render.Source, files []render.File,
	config *api.RenderConfig) error {
	if g.Policy == nil {
		return nil
	}
	own, _ := images.Rows(config) // the render has reported errors in them
	images := objects.ImagesIn(src, files, at.File, own)
	if err := ctx.Err(); err != nil {
		return err
	}
	return multierror.Append(nil, sign.VerifyImages(ctx, images, *g.Policy)...).ErrorOrNil()
}
