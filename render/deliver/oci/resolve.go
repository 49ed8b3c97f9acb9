package oci

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/functions/text"
)

// maxResolve is the maximum time to resolve an image, including its verification.
const maxResolve = 5 * time.Minute

// Resolve returns the digest of an image's tag. With a platform, os/arch[/variant], it returns the
// digest of the image for that platform. With "" it returns the digest that the tag names, which
// may be an index of many platforms. Verify gets that digest, because signatures are usually of it.
// Resolve takes at most maxResolve.
func Resolve(ctx context.Context, image, platform string, opt Options) (digest string, err error) {
	ctx, cancel := context.WithTimeout(ctx, maxResolve)
	defer cancel()
	ref, err := name.ParseReference(image, opt.Names()...)
	if err != nil {
		return "", fmt.Errorf("%s: %w", image, err)
	}
	_, named, err := opt.get(ctx, "resolving", ref)
	if err != nil || platform == "" {
		return named.DigestStr(), err
	}
	digest, err = ofPlatform(named, platform, opt.Remote(ctx))
	if err != nil {
		return "", fmt.Errorf("%s: %w", image, err)
	}
	return digest, nil
}

func ofPlatform(ref name.Reference, platform string, options []remote.Option) (string, error) {
	want, err := v1.ParsePlatform(platform)
	if err != nil {
		return "", fmt.Errorf("platform %q: %w", platform, err)
	}
	found, err := remote.Image(ref, append(options, remote.WithPlatform(*want))...)
	if err != nil {
		return "", explain("resolving", ref, err)
	}
	config, err := found.ConfigFile()
	digest, err2 := found.Digest()
	if err := cmp.Or(err, err2); err != nil {
		return "", explain("resolving", ref, err)
	}
	if have := config.Platform(); have == nil || !have.Satisfies(*want) {
		return "", fmt.Errorf("%s is not for %s but for %s", ref, platform, have)
	}
	return digest.String(), nil
}

// Tag sets a second tag of an artifact, in the same repository.
func Tag(ctx context.Context, ref, tag string, opt Options) (Result, error) {
	from, err := opt.Parse(ref)
	if err != nil {
		return Result{}, err
	}
	to, err := name.NewTag(from.Context().Name()+":"+tag, opt.Names()...)
	if err != nil {
		return Result{}, fmt.Errorf("the tag %q: %w", tag, err)
	}
	found, named, err := opt.get(ctx, "tagging", from)
	if err != nil {
		return Result{}, err
	}
	if err := remote.Tag(to, found, opt.Remote(ctx)...); err != nil {
		return Result{}, explain("tagging", to, err)
	}
	return Result{Ref: named.String(), Digest: named.DigestStr()}, nil
}

// Tagged is an artifact under one of its tags.
type Tagged struct {
	Tag    string `json:"tag"`
	Digest string `json:"digest"`
	Origin
}

// attached matches the tags under which cosign stores signatures and attestations.
var attached = text.Pattern(`^sha256-[0-9a-f]{64}(\.(sig|att|sbom))?$`)

// List returns the rendered packages of a repository by tag. It omits other images and cosign's
// attachments.
func List(ctx context.Context, repository string, opt Options) ([]Tagged, error) {
	plain, ok := strings.CutPrefix(repository, Scheme)
	if !ok {
		return nil, fmt.Errorf("%s is not a repository of artifacts: write %sREGISTRY/REPOSITORY",
			repository, Scheme)
	}
	repo, err := name.NewRepository(plain, opt.Names()...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: write %sREGISTRY/REPOSITORY, without a tag", repository,
			err, Scheme)
	}
	tags, err := remote.List(repo, opt.Remote(ctx)...)
	if err != nil {
		return nil, explain("listing", repo.Tag("*"), err)
	}
	tags = slices.DeleteFunc(tags, attached().MatchString)
	list := make([]Tagged, len(tags))
	failed := multi.Each(len(tags), func(i int) (err error) {
		list[i], err = describe(ctx, repo.Tag(tags[i]), opt)
		return err
	})
	if err := multi.Errors(failed...); err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(t Tagged) bool { return t == Tagged{} })
	slices.SortFunc(list, func(a, b Tagged) int { return strings.Compare(a.Tag, b.Tag) })
	return list, nil
}

// describe returns the artifact of a tag, or the zero Tagged if it is not a rendered package.
func describe(ctx context.Context, tag name.Tag, opt Options) (Tagged, error) {
	found, _, err := opt.get(ctx, "listing", tag)
	if err != nil {
		return Tagged{}, err
	}
	manifest, err := v1.ParseManifest(bytes.NewReader(found.Manifest))
	if err != nil || manifest.Config.MediaType != ConfigMediaType {
		return Tagged{}, nil // an index, or an image of another kind
	}
	return Tagged{tag.TagStr(), found.Digest.String(), originOf(manifest.Annotations)}, nil
}
