package sign

import (
	"bytes"
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

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	cosigntypes "github.com/sigstore/cosign/v2/pkg/types"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore/pkg/signature/payload"

	"github.com/armature-dev/armature/render/answers"
	"github.com/armature-dev/armature/render/deliver/oci"
)

// Limits of what is read from a registry to verify one artifact. Every client that may push to a
// repository can attach data to its artifacts.
const (
	// MaxManifest is the maximum size of a manifest or a list of referrers, in bytes.
	MaxManifest = 4 << 20
	// MaxAttachment is the maximum size of one signature or attestation, in bytes.
	MaxAttachment = 32 << 20
	// MaxContent is the maximum size of all attachments that are read for one artifact, in bytes.
	// They are held in memory.
	MaxContent = 64 << 20
	// MaxAttachments is the maximum number of attachments of one type and form.
	MaxAttachments = 100
	// MaxTime is the maximum time for reading the attachments of one artifact.
	MaxTime = 2 * time.Minute
)

// bundleType is the media type of Sigstore bundles without the version.
const bundleType = "application/vnd.dev.sigstore.bundle"

// emptyType is the media type of the config that referrers have.
const emptyType = "application/vnd.oci.empty.v1+json"

// predicateAnnotation is the annotation of a referrer with the predicate type of its bundle.
const predicateAnnotation = "dev.sigstore.bundle.predicateType"

// bounded returns the options of requests whose answers are limited.
func bounded(ctx context.Context, a oci.Access) []remote.Option {
	if a.Transport == nil {
		a.Transport = oci.Transport()
	}
	a.Transport = Bounded(a.Transport)
	return a.Remote(ctx)
}

// Bounded limits the size of each answer of a registry to MaxManifest or MaxAttachment.
func Bounded(t http.RoundTripper) http.RoundTripper {
	return answers.Bounded{RoundTripper: t, Limit: func(asked *http.Request,
		_ *http.Response) (int64, error) {
		limit := int64(MaxAttachment)
		if at := asked.URL.Path; strings.Contains(at, "/manifests/") ||
			strings.Contains(at, "/referrers/") {
			limit = MaxManifest
		}
		return limit + 1, errTooLarge // the extra byte shows that there is more
	}}
}

var errTooLarge = errors.New(
	"the registry's answer is larger than what is read to judge an artifact")

// attached is a signed statement about an artifact, whose signer is not verified yet. Signatures
// under cosign's tags are converted to the equivalent bundle.
type attached struct {
	place  string // its reference in the registry, REPOSITORY@DIGEST
	bundle *bundle.Bundle
	// layer under a tag: the claim of a signature, or the envelope of a statement; nil for a
	// bundle.
	layer []byte
	err   error // set if it cannot be read
}

// evidence contains the attachments of one artifact. Each form and type is read once, on demand.
type evidence struct {
	options  []remote.Option
	artifact name.Digest
	hash     v1.Hash
	read     map[string][]attached
	// content is the number of bytes read so far.
	content int64
}

func newEvidence(artifact name.Digest, options []remote.Option) (*evidence, error) {
	hash, err := v1.NewHash(artifact.DigestStr())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", artifact, err)
	}
	return &evidence{options: options, artifact: artifact, hash: hash,
		read: map[string][]attached{}}, nil
}

// Forms of attachments: suffixes of tags in cosign's format, or Sigstore bundles.
const (
	signatures   = ".sig"
	attestations = ".att"
	bundles      = ""
)

// find returns the attachments in a form that claim to be of a type.
func (e *evidence) find(form, predicateType string) (all []attached, _ error) {
	key := form + " " + predicateType
	if known, ok := e.read[key]; ok {
		return known, nil
	}
	wanted, err := e.list(form)
	if err != nil {
		return nil, fmt.Errorf("listing what is attached to %s: %w", e.artifact, err)
	}
	wanted = slices.DeleteFunc(wanted,
		func(d v1.Descriptor) bool { return !claims(d, predicateType) })
	if len(wanted) > MaxAttachments {
		return nil, fmt.Errorf("%s has %d attachments of one type, more than %d", e.artifact,
			len(wanted), MaxAttachments)
	}
	for _, d := range wanted {
		a := attached{place: e.artifact.Context().Digest(d.Digest.String()).String()}
		if a.err = e.open(&a, form, d); errors.Is(a.err, context.DeadlineExceeded) ||
			errors.Is(a.err, context.Canceled) {
			return nil, fmt.Errorf("reading %s: %w", a.place, a.err)
		}
		all = append(all, a)
	}
	e.read[key] = all
	return all, nil
}

// list returns the attachments in a form: layers of the image under a tag, or referrers.
func (e *evidence) list(form string) ([]v1.Descriptor, error) {
	if form == bundles {
		index, err := remote.Referrers(e.artifact, e.options...)
		if err != nil {
			return nil, err
		}
		manifest, err := index.IndexManifest()
		if err != nil {
			return nil, err
		}
		return manifest.Manifests, nil
	}
	tag := e.artifact.Context().Tag(e.hash.Algorithm + "-" + e.hash.Hex + form)
	manifest, err := e.manifest(tag)
	if answer := (*transport.Error)(nil); errors.As(err, &answer) &&
		answer.StatusCode == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return manifest.Layers, nil
}

func (e *evidence) manifest(of name.Reference) (*v1.Manifest, error) {
	image, err := remote.Get(of, e.options...)
	if err != nil {
		return nil, err
	}
	return v1.ParseManifest(bytes.NewReader(image.Manifest))
}

// claims reports whether an attachment may have a type. A layer has the type in an annotation.
// Registries list the annotations of a referrer's manifest, and its artifact type or that of its
// config.
func claims(d v1.Descriptor, predicateType string) bool {
	if claimed := cmp.Or(d.Annotations[predicateAnnotation],
		d.Annotations["predicateType"]); claimed != "" {
		return claimed == predicateType
	}
	return d.ArtifactType == "" || d.ArtifactType == emptyType ||
		strings.HasPrefix(d.ArtifactType, bundleType)
}

// open reads a layer under a tag, or the only layer of a referrer.
func (e *evidence) open(a *attached, form string, d v1.Descriptor) (err error) {
	if form != bundles {
		if a.layer, err = e.blob(d); err == nil {
			a.bundle, err = tagged(form, a.layer, d.Annotations)
		}
		return err
	}
	manifest, err := e.manifest(e.artifact.Context().Digest(d.Digest.String()))
	if err != nil {
		return err
	}
	if len(manifest.Layers) != 1 ||
		!strings.HasPrefix(string(manifest.Layers[0].MediaType), bundleType) {
		return errors.New("it is not a manifest with one Sigstore bundle")
	}
	content, err := e.blob(manifest.Layers[0])
	if err != nil {
		return err
	}
	a.bundle = &bundle.Bundle{}
	if err := a.bundle.UnmarshalJSON(content); err != nil {
		return fmt.Errorf("reading the bundle: %w", err)
	}
	return nil
}

// blob reads a layer and verifies its digest and size.
func (e *evidence) blob(layer v1.Descriptor) ([]byte, error) {
	if layer.Size > min(MaxAttachment, MaxContent-e.content) {
		return nil, errTooLarge
	}
	r, err := oci.Blob(e.artifact.Context(), layer, e.options)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	content, err := io.ReadAll(r)
	e.content += int64(len(content))
	if err != nil {
		return nil, err
	}
	return content, nil
}

// statement is an in-toto statement. Its predicate is decoded by type.
type statement struct {
	Type          string          `json:"_type"`
	Subject       []subject       `json:"subject"`
	PredicateType string          `json:"predicateType"`
	Predicate     json.RawMessage `json:"predicate,omitempty"`

	place string // its reference in the registry, REPOSITORY@DIGEST
}

type subject struct {
	Name   string            `json:"name,omitempty"`
	Digest map[string]string `json:"digest"`
}

// statement returns the statement of an attachment without verifying it.
func (a attached) statement() (s statement, err error) {
	switch envelope := a.bundle.GetDsseEnvelope(); {
	case envelope != nil:
		err = json.Unmarshal(envelope.GetPayload(), &s)
	case a.layer != nil:
		var claim payload.SimpleContainerImage
		err = json.Unmarshal(a.layer, &claim)
		algorithm, hex, _ := strings.Cut(claim.Critical.Image.DockerManifestDigest, ":")
		s.PredicateType = cosigntypes.CosignSignPredicateType
		s.Subject = []subject{{Digest: map[string]string{algorithm: hex}}}
	default:
		err = errors.New("the bundle has a signature and no statement")
	}
	if err != nil {
		return statement{}, fmt.Errorf("reading the statement: %w", err)
	}
	s.place = a.place
	return s, nil
}

// about reports whether a statement is about an artifact.
func (s statement) about(hash v1.Hash) bool {
	for _, subject := range s.Subject {
		if subject.Digest[hash.Algorithm] == hash.Hex {
			return true
		}
	}
	return false
}
