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

// ErrNoDigest means that an image has no digest: its tag may move before the image runs.
var ErrNoDigest = errors.New(
	"it has no digest, so that nobody can say what runs\n  hint: run `armature pin`")

// ErrNotJudged means that an object selects images without naming one that can be verified.
var ErrNotJudged = errors.New("what it runs cannot be judged")

// Image is an image in an object or a file.
type Image struct {
	images.Image
	// File is the path in the package; "" if unknown.
	File string
	// Place is the file and line of the object, for errors.
	Place string
}

// exempt reports whether an exemption of the policy covers an image.
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

// VerifyImages verifies images against a policy, eight in parallel. It returns an error with the
// image and its place for each image that is refused or cannot be verified, in the order of the
// images. An image in several places is reported once.
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

// verify verifies one image.
func (i Image) verify(ctx context.Context, p Policy) error {
	var err error
	if i.Problem != "" {
		err = fmt.Errorf("%w: %s", ErrNotJudged, i.Problem)
	} else if err = i.verifyImage(ctx, p); err == nil {
		return nil
	}
	subject := i.Place
	if i.Ref == "" && i.Kind != "" {
		subject += ": " + strings.TrimSpace(i.Kind+" "+i.Field)
	} else if i.Ref != "" {
		subject += fmt.Sprintf(": image %q", i.Ref)
	}
	if i.Problem == "" && !i.Guessed {
		return fmt.Errorf("%s: %w", subject, err)
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
		subject, err, exemption)
}

// verifyImage verifies the signature of an image and, for a skill, its content.
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

// CheckSkill checks the content of a skill, which it reads with the policy's access. named is the
// folder where agents find the skill; "" accepts any name.
func CheckSkill(ctx context.Context, ref name.Digest, named string,
	p Policy) (*skill.Skill, error) {
	return skill.Check(ctx, ref, named, bounded(ctx, p.Access))
}
