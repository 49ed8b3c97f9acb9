package skill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/armature-dev/armature/render/archive"
	"github.com/armature-dev/armature/render/deliver/oci"
)

// maxCheck is the maximum time to check an image.
const maxCheck = 5 * time.Minute

// Check reads the image of a skill, of which it keeps only SKILL.md in memory. It refuses the same
// content as Read: links, devices, set-uid files, extended attributes, names that lead out of the
// folder, files beyond the limits, and an invalid SKILL.md. named is the folder where agents find
// the skill; "" accepts any name. options configure access to the registry and limit its answers.
func Check(ctx context.Context, ref name.Digest, named string,
	options []remote.Option) (*Skill, error) {
	ctx, cancel := context.WithTimeout(ctx, maxCheck)
	defer cancel()
	s, err := check(ref, append(slices.Clone(options), remote.WithContext(ctx)))
	if err == nil && named != "" && s.Name != named {
		err = fmt.Errorf("%s: the name %q is not the folder's, %q", Manifest, s.Name, named)
	}
	if err != nil {
		return nil, fmt.Errorf("the skill %s is refused: %w\n  hint: publish its folder with "+
			"`armature skill push`, under the name in its %s", ref, err, Manifest)
	}
	return s, nil
}

func check(ref name.Digest, options []remote.Option) (s *Skill, _ error) {
	images, index, err := oci.Images(ref, options)
	if err != nil {
		return nil, err
	}
	if !index {
		images = []name.Digest{ref}
	}
	for _, image := range images {
		of, err := checkImage(image, options)
		switch {
		case err != nil:
			return nil, err
		case s != nil && s.Name != of.Name:
			return nil, fmt.Errorf("it is %s on one platform and %s on another", s.Name, of.Name)
		}
		s = of
	}
	if s == nil {
		return nil, errors.New("it is an index without images")
	}
	return s, nil
}

// checkImage checks the image of one platform.
func checkImage(ref name.Digest, options []remote.Option) (*Skill, error) {
	found, err := remote.Get(ref, options...)
	if err != nil {
		return nil, err
	}
	manifest, err := v1.ParseManifest(bytes.NewReader(found.Manifest))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading its manifest: %w", err)
	case len(manifest.Layers) != 1:
		return nil, fmt.Errorf("it has %d layers where a skill has one: one hides files of another",
			len(manifest.Layers))
	}
	layer := manifest.Layers[0]
	switch {
	case layer.MediaType != types.OCILayer && layer.MediaType != types.DockerLayer:
		return nil, fmt.Errorf("its layer is %s, not %s", layer.MediaType, types.OCILayer)
	case layer.Size > maxPacked:
		return nil, fmt.Errorf("its layer has %d MiB, more than %d MiB", layer.Size>>20, maxPacked>>20)
	}
	content, err := oci.Blob(ref.Context(), layer, options)
	if err != nil {
		return nil, fmt.Errorf("reading its layer: %w", err)
	}
	defer content.Close()
	s, err := unpack(content)
	if err == nil {
		if _, err = io.Copy(io.Discard, content); err != nil { // verifies the digest at the end
			err = fmt.Errorf("reading its layer: %w", err)
		}
	}
	return s, err
}

// unpack checks the content of a layer and returns its skill.
func unpack(packed io.Reader) (s *Skill, err error) {
	files := 0
	// Folders count as well.
	limits := archive.Limits{Unpacked: maxBytes, File: maxFile, Files: 2 * maxFiles}
	err = archive.Each(packed, limits, func(name string, size int64, content io.Reader) error {
		if files++; files > maxFiles {
			return fmt.Errorf("more than %d files", maxFiles)
		}
		if err := checkName(name); err != nil {
			return err
		}
		if name != Manifest {
			return nil
		}
		text, err := io.ReadAll(io.LimitReader(content, maxHead+1))
		if err != nil {
			return err
		}
		if s, err = parse(text); err != nil {
			return fmt.Errorf("%s: %w", Manifest, err)
		}
		return nil
	})
	if err == nil && s == nil {
		err = fmt.Errorf("it has no %s at its root", Manifest)
	}
	return s, err
}
