package attester

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/registry"
	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/render/deliver/oci"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// access is how to reach the registry of a build.
type access struct {
	keychain  authn.Keychain
	transport http.RoundTripper
	plainHTTP []string
}

// options of a request whose answer has at most the size that sign.Bounded allows.
func (r access) options(ctx context.Context) []remote.Option {
	reach := oci.Options{Keychain: r.keychain}
	return append(reach.Remote(ctx), remote.WithTransport(sign.Bounded(r.transport)))
}

// pushed is what a run built, as the registry has it.
type pushed struct {
	build    *api.AgentBuild
	built    *attest.Built
	access   access
	artifact name.Digest
	// parts are the images of an index, nil for one image.
	parts []name.Digest
}

// images that are signed. An index is the last, so that its images are signed once it is.
// Each has a statement of its own, as what looks at one image by digest expects.
func (p *pushed) images() []name.Digest { return append(slices.Clone(p.parts), p.artifact) }

// findImages looks for what a run built under the name that was ordered: exactly the digest
// that the run reported, and for an index exactly the images that it reported.
func findImages(ctx context.Context, build *api.AgentBuild, built *attest.Built, r access) (*pushed, error) {
	artifact, err := findImage(ctx, build, built, r)
	if err != nil {
		return nil, err
	}
	parts, err := findParts(ctx, build, built, artifact, r)
	if err != nil {
		return nil, err
	}
	return &pushed{build: build, built: built, access: r, artifact: artifact, parts: parts}, nil
}

func findImage(ctx context.Context, build *api.AgentBuild, built *attest.Built, r access) (name.Digest, error) {
	mismatch := func(format string, args ...any) error {
		return compose.Place(build).At("spec.buildOutput").Fault(api.ReasonImageMismatch, fmt.Sprintf(format, args...),
			"look who else pushes to this tag, give each build a tag of its own, then start again with `armature build rerun`")
	}
	var options []name.Option
	tag, err := name.NewTag(built.Image)
	if err == nil && registry.IsPlainHTTP(r.plainHTTP, tag.RegistryStr()) {
		options = append(options, name.Insecure)
		tag, err = name.NewTag(built.Image, options...)
	}
	if err != nil {
		return name.Digest{}, mismatch("%s is not an image with a tag", built.Image)
	}
	reach := oci.Options{Keychain: r.keychain}
	found, err := remote.Head(tag, append(reach.Remote(ctx), remote.WithTransport(r.transport))...)
	if answer := (*transport.Error)(nil); errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound {
		return name.Digest{}, mismatch("the registry has no image %s, and the run reported %s", tag, built.Digest)
	}
	if err != nil {
		return name.Digest{}, registryFault(build, tag, err)
	}
	if found.Digest.String() != built.Digest || !(found.MediaType.IsImage() || found.MediaType.IsIndex()) {
		return name.Digest{}, mismatch("%s is %s (%s) in the registry, and the run built %s", tag, found.Digest, found.MediaType, built.Digest)
	}
	return tag.Context().Digest(built.Digest), nil
}

// findParts gives the images of an index, nil for one image: exactly those that the
// run reported, each for its platform.
func findParts(ctx context.Context, build *api.AgentBuild, built *attest.Built, artifact name.Digest, r access) (parts []name.Digest, _ error) {
	if len(built.Platforms) == 0 {
		return nil, nil
	}
	listed, err := listImages(artifact, r.options(ctx))
	if err != nil {
		return nil, registryFault(build, artifact, err)
	}
	same := slices.EqualFunc(listed, built.Platforms, func(d v1.Descriptor, p api.PlatformStatus) bool {
		return d.Platform != nil && d.Platform.String() == p.Platform && d.Digest.String() == p.Digest
	})
	if !same {
		return nil, compose.Place(build).At("spec.platforms").Fault(api.ReasonImageMismatch,
			fmt.Sprintf("%s does not list the images of %s that the run reported, and those alone", artifact, strings.Join(build.Spec.Platforms, ", ")),
			"look who changed the step that pushes, then start again with `armature build rerun`")
	}
	for _, p := range built.Platforms {
		parts = append(parts, artifact.Context().Digest(p.Digest))
	}
	return parts, nil
}

// listImages of an index, nil for one image.
func listImages(image name.Digest, options []remote.Option) (listed []v1.Descriptor, _ error) {
	found, err := remote.Get(image, options...)
	if err != nil || !found.MediaType.IsIndex() {
		return nil, err
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(found.Manifest, &index); err != nil {
		return nil, err
	}
	for _, m := range index.Manifests {
		if m.MediaType.IsImage() {
			listed = append(listed, m)
		}
	}
	return listed, nil
}

// registryFault says what a registry answered, without its text: the tenant chose the
// server, and what it says may be another's. An address that may not be asked is final.
func registryFault(build *api.AgentBuild, ref name.Reference, err error) error {
	if errors.Is(err, gitremote.ErrForbiddenAddress) {
		return compose.Place(build).At("spec.buildOutput.imageRegistry").Fault(api.ReasonRegistryRefused,
			ref.Context().RegistryStr()+" has an address that builds may not ask",
			"use another registry, or let the operator allow the network in --git-allow-network of the controller")
	}
	answer := (*transport.Error)(nil)
	if !errors.As(err, &answer) {
		return fmt.Errorf("asking the registry of %s: %w", ref, err)
	}
	switch answer.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("the registry of %s answers %d: the login in spec.buildOutput.imageRepoCredentials has to be one that may push and pull", ref, answer.StatusCode)
	}
	return fmt.Errorf("the registry of %s answers %d %s", ref, answer.StatusCode, http.StatusText(answer.StatusCode))
}
