package sign

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/armature-dev/armature/functions/images"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/deliver/oci"
	"github.com/armature-dev/armature/render/deliver/skill"
)

// ErrNoDigest is an image without a digest: its tag may name another one by the time
// it runs.
var ErrNoDigest = errors.New(
	"it has no digest, so that nobody can say what runs\n  hint: run `armature pin`")

// ErrNotJudged is what decides over images and is not an image itself.
var ErrNotJudged = errors.New("what it runs cannot be judged")

// Image is what an object or a file names of images.
type Image struct {
	images.Image
	// File is the path in the package, "" if it is unknown.
	File string
	// Place is that of the object, for errors.
	Place string
}

// exempt reports whether a policy lets an image pass.
func (p Policy) exempt(i Image) bool {
	return slices.ContainsFunc(p.Exemptions, func(e Exemption) bool {
		if e.File != "" {
			for file := i.File; file != "" && file != "."; file = path.Dir(file) {
				if ok, _ := path.Match(path.Clean(e.File), file); ok || file == "/" {
					return ok
				}
			}
			return false
		}
		below, ok := strings.CutPrefix(i.Path(), e.Field)
		return e.Kind == i.Kind && e.Group == i.Group &&
			(e.Field == "" || ok && (below == "" || below[0] == '.'))
	})
}

// VerifyImages checks images against a policy, eight at once. It returns an error for each image
// that is refused or cannot be judged, in their order, with the image and its place. An image in
// several places is refused once.
func VerifyImages(ctx context.Context, all []Image, p Policy) []error {
	type key struct{ ref, problem, kind, skill string }
	seen := make(map[key]bool)
	all = slices.DeleteFunc(slices.Clone(all), func(i Image) bool {
		k := key{ref: i.Ref}
		switch {
		case i.Problem != "":
			k = key{i.Ref, i.Problem, i.Group + " " + i.Kind + " " + i.File, ""}
		case i.Is == images.IsSkill:
			k.skill = "/" + i.Skill()
		}
		if p.exempt(i) || seen[k] || i.Unknown && p.UnknownKinds != Refuse {
			return true
		}
		seen[k] = true
		return false
	})
	return multi.Each(len(all), func(i int) error { return all[i].verify(ctx, p) })
}

// verify judges one image.
func (i Image) verify(ctx context.Context, p Policy) error {
	var err error
	if i.Problem != "" {
		err = fmt.Errorf("%w: %s", ErrNotJudged, i.Problem)
	} else if err = i.verifyImage(ctx, p); err == nil {
		return nil
	}
	what := i.Place
	if i.Ref == "" && i.Kind != "" {
		what += ": " + strings.TrimSpace(i.Kind+" "+i.Field)
	} else if i.Ref != "" {
		what += fmt.Sprintf(": image %q", i.Ref)
	}
	if i.Problem == "" && !i.Guessed {
		return fmt.Errorf("%s: %w", what, err)
	}
	exemption := fmt.Sprintf("{group: %q, kind: %s}", i.Group, i.Kind)
	switch {
	case i.Kind == "":
		exemption = fmt.Sprintf("{file: %q}", i.File)
	case i.Field != "" && !i.Unknown:
		exemption = fmt.Sprintf("{group: %q, kind: %s, field: %s}", i.Group, i.Kind, i.Path())
	}
	return fmt.Errorf(
		"%s: %w\n  hint: if it may pass without that, add to spec.exemptions of the policy: %s",
		what, err, exemption)
}

// verifyImage verifies the signature of an image, and then the content of a skill.
func (i Image) verifyImage(ctx context.Context, p Policy) error {
	ref, err := p.Parse(oci.Scheme + i.Ref)
	if err != nil {
		return err
	}
	digest, ok := ref.(name.Digest)
	if !ok {
		return ErrNoDigest
	}
	if _, err = Verify(ctx, digest, p); err == nil && i.Is == images.IsSkill {
		_, err = CheckSkill(ctx, digest, i.Skill(), p)
	}
	return err
}

// CheckSkill checks the content of a skill, which it reaches as a policy says. named is the
// folder where agents find it, "" for any.
func CheckSkill(ctx context.Context, ref name.Digest, named string,
	p Policy) (*skill.Skill, error) {
	return skill.Check(ctx, ref, named, bounded(ctx, p.Access))
}
