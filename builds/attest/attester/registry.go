package attester

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

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

// pushed holds the images of a run in the registry.
type pushed struct {
	build    *api.AgentBuild
	built    *attest.Built
	artifact name.Digest
	// parts are the images of an index, nil for one image.
	parts []name.Digest
	// options of requests; sign.Bounded limits the size of the answers.
	options []remote.Option
}

// images returns the images to sign. An index is the last, so that its images are signed before it.
// Each image has its own statement, because consumers look up a platform's image by its digest.
func (p *pushed) images() []name.Digest { return append(slices.Clone(p.parts), p.artifact) }

// findImages finds the image of a run in the registry. The tag must have exactly the digest that
// the run reported, and an index exactly the images that it reported, each for its platform.
func (a *Attester) findImages(ctx context.Context, build *api.AgentBuild, built *attest.Built,
	login authn.Keychain) (*pushed, error) {
	const shared = "look who else pushes to this tag, give each build a tag of its own, then " +
		"start again with `armature build rerun`"
	mismatch := func(field, hint, format string, args ...any) error {
		return compose.Place(build).At(field).Fault(api.ReasonImageMismatch,
			fmt.Sprintf(format, args...), hint)
	}
	tag, err := name.NewTag(built.Image)
	if err == nil {
		tag, err = name.NewTag(built.Image, a.reach(tag).Names()...)
	}
	if err != nil {
		return nil, mismatch("spec.buildOutput", shared, "%s is not an image with a tag", built.Image)
	}
	options := oci.Access{Keychain: login, Transport: sign.Bounded(a.transport)}.Remote(ctx)
	found, err := remote.Head(tag, options...)
	if answer := (*transport.Error)(nil); errors.As(err, &answer) &&
		answer.StatusCode == http.StatusNotFound {
		return nil, mismatch("spec.buildOutput", shared,
			"the registry has no image %s, and the run reported %s", tag, built.Digest)
	}
	if err != nil {
		return nil, registryFault(build, tag, err)
	}
	if found.Digest.String() != built.Digest ||
		!(found.MediaType.IsImage() || found.MediaType.IsIndex()) {
		return nil, mismatch("spec.buildOutput", shared,
			"%s is %s (%s) in the registry, and the run built %s", tag, found.Digest,
			found.MediaType, built.Digest)
	}
	p := &pushed{build: build, built: built, artifact: tag.Context().Digest(built.Digest),
		options: options}
	if len(built.Platforms) == 0 {
		return p, nil
	}
	listed, err := listImages(p.artifact, options)
	if err != nil {
		return nil, registryFault(build, p.artifact, err)
	}
	same := slices.EqualFunc(listed, built.Platforms,
		func(d v1.Descriptor, p api.PlatformStatus) bool {
			return d.Platform != nil && d.Platform.String() == p.Platform &&
				d.Digest.String() == p.Digest
		})
	if !same {
		return nil, mismatch("spec.platforms",
			"look who changed the step that pushes, then start again with `armature build rerun`",
			"%s does not list the images of %s that the run reported, and those alone", p.artifact,
			strings.Join(build.Spec.Platforms, ", "))
	}
	for _, platform := range built.Platforms {
		p.parts = append(p.parts, p.artifact.Context().Digest(platform.Digest))
	}
	return p, nil
}

// reach returns the access to a registry, with or without TLS.
func (a *Attester) reach(at name.Reference) oci.Access {
	return oci.Access{PlainHTTP: registry.IsPlainHTTP(a.plainHTTP, at.Context().RegistryStr())}
}

// listImages returns the images of an index, or nil for one image.
func listImages(image name.Digest, options []remote.Option) ([]v1.Descriptor, error) {
	found, err := remote.Get(image, options...)
	if err != nil || !found.MediaType.IsIndex() {
		return nil, err
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(found.Manifest, &index); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(index.Manifests,
		func(m v1.Descriptor) bool { return !m.MediaType.IsImage() }), nil
}

// registryFault returns the error of a registry without the text of its answer: the tenant chose
// the server, and the text may come from another system. A forbidden address is final.
func registryFault(build *api.AgentBuild, ref name.Reference, err error) error {
	if errors.Is(err, gitremote.ErrForbiddenAddress) {
		return compose.Place(build).At("spec.buildOutput.imageRegistry").Fault(
			api.ReasonRegistryRefused,
			ref.Context().RegistryStr()+" has an address that builds may not ask",
			"use another registry, or let the operator allow the network in --git-allow-network "+
				"of the controller")
	}
	answer := (*transport.Error)(nil)
	if !errors.As(err, &answer) {
		return fmt.Errorf("asking the registry of %s: %w", ref, err)
	}
	if answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden {
		return fmt.Errorf("the registry of %s answers %d: the login in "+
			"spec.buildOutput.imageRepoCredentials has to be one that may push and pull", ref,
			answer.StatusCode)
	}
	return fmt.Errorf("the registry of %s answers %d %s", ref, answer.StatusCode,
		http.StatusText(answer.StatusCode))
}

const (
	// maxSBOM limits a bill of materials in bytes. Signing and reading it back holds several
	// copies in memory.
	maxSBOM = 8 << 20
	// sbomTimeout bounds the reading of one bill of materials.
	sbomTimeout = time.Minute
)

// readBill reads a bill of materials that the run reported, and its document. It reads the blob in
// the image's repository by the reported digest only: each user with the right to push can change
// tags and the referrers of the image.
func (p *pushed) readBill(ctx context.Context,
	reported attest.Bill) (_ *attest.SBOM, document json.RawMessage, _ error) {
	invalid := func(format string, args ...any) error {
		return compose.Place(p.build).Fault(api.ReasonSBOMInvalid,
			"the SBOM: "+fmt.Sprintf(format, args...),
			"see docs/builds-attest.md for what a step has to leave, then start again with "+
				"`armature build rerun`")
	}
	ctx, cancel := context.WithTimeout(ctx, sbomTimeout)
	defer cancel()
	options := append(slices.Clip(p.options), remote.WithContext(ctx))
	at := p.artifact.Context().Digest(reported.Digest)
	document, err := readBlob(at, options)
	var answer *transport.Error
	switch {
	case len(document) > maxSBOM:
		return nil, nil, invalid("%s has more than %d MiB", at, maxSBOM>>20)
	case errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound:
		return nil, nil, invalid("the registry does not have %s, which the run reported", at)
	case err != nil:
		return nil, nil, registryFault(p.build, at, err)
	}
	read, err := attest.ReadSBOM(document)
	if err != nil {
		return nil, nil, invalid("%s: %v", at, err)
	}
	if want := cmp.Or(reported.Of, p.built.Digest); read.Of == want {
		return read, document, nil
	} else if reported.Of != "" {
		return nil, nil, invalid(
			"%s describes the image %s, and has to describe that of its platform, %s", at, read.Of, want)
	}
	parts, err := listImages(p.artifact, options)
	if err != nil {
		return nil, nil, registryFault(p.build, p.artifact, err)
	}
	if !slices.ContainsFunc(parts, func(d v1.Descriptor) bool {
		return d.Digest.String() == read.Of
	}) {
		return nil, nil, invalid("%s describes the image %s, and the run built %s", at, read.Of,
			p.built.Digest)
	}
	return read, document, nil
}

// readBlob reads the first maxSBOM+1 bytes of a blob. It verifies the digest of a blob of at most
// maxSBOM bytes.
func readBlob(at name.Digest, options []remote.Option) ([]byte, error) {
	blob, err := remote.Layer(at, options...)
	if err != nil {
		return nil, err
	}
	content, err := blob.Compressed() // as stored; its end verifies the digest
	if err != nil {
		return nil, err
	}
	defer content.Close()
	return io.ReadAll(io.LimitReader(content, maxSBOM+1))
}
