package sign

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	securedsse "github.com/secure-systems-lab/go-securesystemslib/dsse"
	cosignbundle "github.com/sigstore/cosign/v2/pkg/cosign/bundle"
	cosignoci "github.com/sigstore/cosign/v2/pkg/oci"
	ociremote "github.com/sigstore/cosign/v2/pkg/oci/remote"
	"github.com/sigstore/cosign/v2/pkg/oci/static"
	cosigntypes "github.com/sigstore/cosign/v2/pkg/types"
	"github.com/sigstore/sigstore-go/pkg/bundle"

	"github.com/armature-dev/armature/render/deliver/oci"
)

// Limits of what is read of a registry to judge one artifact. Whoever may push to
// a repository can attach what he likes to its artifacts.
const (
	// MaxManifest is of a manifest or a list of referrers, in bytes.
	MaxManifest = 4 << 20
	// MaxAttachment is of one signature or attestation, in bytes.
	MaxAttachment = 32 << 20
	// MaxContent is of all that is read for one artifact, in bytes. It is held in memory.
	MaxContent = 64 << 20
	// MaxAttachments is how many of one type an artifact may have in one form.
	MaxAttachments = 100
	// MaxTime is how long the reading for one artifact may take.
	MaxTime = 2 * time.Minute
)

// bundleType starts the media type of Sigstore bundles; the version follows.
const bundleType = "application/vnd.dev.sigstore.bundle"

// emptyType is the media type of the config that referrers have.
const emptyType = "application/vnd.oci.empty.v1+json"

// predicateAnnotation says on a referrer what its bundle is about.
const predicateAnnotation = "dev.sigstore.bundle.predicateType"

// store is where attachments of artifacts are.
type store struct {
	options []remote.Option
	names   []name.Option
}

func newStore(ctx context.Context, keychain authn.Keychain, plainHTTP bool,
	transport http.RoundTripper) store {
	opt := oci.Options{Keychain: keychain, PlainHTTP: plainHTTP}
	if transport == nil {
		transport = oci.Transport()
	}
	return store{append(opt.Remote(ctx), remote.WithTransport(Bounded(transport))), opt.Names()}
}

// cosign returns the store's options as cosign's functions take them.
func (s store) cosign() []ociremote.Option {
	return []ociremote.Option{ociremote.WithRemoteOptions(s.options...),
		ociremote.WithNameOptions(s.names...)}
}

// Bounded limits what each answer of a registry to a GET may contain: MaxManifest and
// MaxAttachment.
func Bounded(t http.RoundTripper) http.RoundTripper { return bounded{t} }

type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.RoundTripper.RoundTrip(request)
	if err != nil || request.Method != http.MethodGet {
		return response, err
	}
	limit := int64(MaxAttachment)
	if strings.Contains(request.URL.Path, "/manifests/") ||
		strings.Contains(request.URL.Path, "/referrers/") {
		limit = MaxManifest
	}
	response.Body = &boundedBody{response.Body, limit}
	return response, nil
}

type boundedBody struct {
	io.ReadCloser
	left int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, errTooLarge
	}
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1] // one more than allowed shows that there is more
	}
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}

var errTooLarge = errors.New(
	"the registry's answer is larger than what is read to judge an artifact")

// attached is a statement about an artifact that is signed, by whom is not known
// yet. Either envelope or bundle is set.
type attached struct {
	place    string
	envelope cosignoci.Signature
	bundle   *bundle.Bundle
}

// evidence is what a registry has about one artifact. It is read when it is asked
// for, and once.
type evidence struct {
	store
	artifact name.Digest
	hash     v1.Hash
	read     map[string]found
	// content is how much has been read, in bytes.
	content int64
}

type found struct {
	all []attached
	// skipped says why other attachments cannot be read.
	skipped []error
}

func (s store) evidence(artifact name.Digest) (*evidence, error) {
	hash, err := v1.NewHash(artifact.DigestStr())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", artifact, err)
	}
	return &evidence{store: s, artifact: artifact, hash: hash, read: map[string]found{}}, nil
}

// maxImages of an index are looked at.
const maxImages = 32

// images returns what a registry has about each image that an index lists; nothing for another
// artifact. BuildKit's attestations are for an unknown platform, and no node pulls them.
func (e *evidence) images() (images []*evidence, err error) {
	found, err := remote.Get(e.artifact, e.options...)
	if err != nil || !found.MediaType.IsIndex() {
		return nil, err
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(found.Manifest, &index); err != nil {
		return nil, fmt.Errorf("%s: %w", e.artifact, err)
	}
	if len(index.Manifests) > maxImages {
		return nil, fmt.Errorf("%s lists %d images, and at most %d are looked at", e.artifact,
			len(index.Manifests), maxImages)
	}
	for _, d := range index.Manifests {
		if d.Platform != nil && d.Platform.OS == "unknown" {
			continue
		}
		if !d.MediaType.IsImage() {
			return nil, fmt.Errorf("%s lists %s, which is %.80q and not an image", e.artifact,
				d.Digest, d.MediaType)
		}
		image, err := e.evidence(e.artifact.Context().Digest(d.Digest.String()))
		if err != nil {
			return nil, err
		}
		images = append(images, image)
	}
	return images, nil
}

// The places of attachments: suffixes of tags in cosign's format, and Sigstore bundles.
const (
	signatures   = ".sig"
	attestations = ".att"
	bundles      = ""
)

// find returns the attachments in a place that claim to be of a type; "" is any.
func (e *evidence) find(place, predicateType string) (f found, err error) {
	key := place + " " + predicateType
	if known, ok := e.read[key]; ok {
		return known, nil
	}
	if place == bundles {
		f, err = e.referring(predicateType)
	} else {
		f, err = e.tagged(place, predicateType)
	}
	if err == nil {
		e.read[key] = f
	}
	return f, err
}

// tagged reads an image whose layers are signatures or attestations.
func (e *evidence) tagged(suffix, predicateType string) (f found, err error) {
	tag := e.artifact.Context().Tag(e.hash.Algorithm + "-" + e.hash.Hex + suffix)
	image, err := remote.Get(tag, e.options...)
	if missing(err) {
		return found{}, nil
	}
	if err != nil {
		return found{}, fmt.Errorf("reading %s: %w", tag, err)
	}
	manifest, err := v1.ParseManifest(bytes.NewReader(image.Manifest))
	if err != nil {
		return found{}, fmt.Errorf("reading %s: %w", tag, err)
	}
	var wanted []v1.Descriptor
	for _, layer := range manifest.Layers {
		if claimed := layer.Annotations["predicateType"]; predicateType == "" || claimed == "" ||
			claimed == predicateType {
			wanted = append(wanted, layer)
		}
	}
	if len(wanted) > MaxAttachments {
		return found{}, fmt.Errorf("%s contains %d attachments of one type, more than %d", tag,
			len(wanted), MaxAttachments)
	}
	for _, layer := range wanted {
		place := e.artifact.Context().Digest(layer.Digest.String()).String()
		content, err := e.blob(layer)
		if ended(err) {
			return found{}, fmt.Errorf("reading %s: %w", place, err)
		}
		var envelope cosignoci.Signature
		if err == nil {
			envelope, err = e.envelope(layer, content)
		}
		if err != nil {
			f.skipped = append(f.skipped, fmt.Errorf("%s: %w", place, err))
			continue
		}
		f.all = append(f.all, attached{place: place, envelope: envelope})
	}
	return f, nil
}

// envelope makes a layer of cosign's tag format what cosign's verifiers take. The
// layer's annotations contain the signature, the certificate and the proofs.
func (e *evidence) envelope(layer v1.Descriptor, content []byte) (cosignoci.Signature, error) {
	notes := layer.Annotations
	options := []static.Option{static.WithLayerMediaType(layer.MediaType),
		static.WithAnnotations(maps.Clone(notes))}
	if cert := notes[static.CertificateAnnotationKey]; cert != "" {
		options = append(options,
			static.WithCertChain([]byte(cert), []byte(notes[static.ChainAnnotationKey])))
	}
	if text := notes[static.BundleAnnotationKey]; text != "" {
		var proof cosignbundle.RekorBundle
		if err := json.Unmarshal([]byte(text), &proof); err != nil {
			return nil, fmt.Errorf("reading the proof of the transparency log: %w", err)
		}
		options = append(options, static.WithBundle(&proof))
	}
	if text := notes[static.RFC3161TimestampAnnotationKey]; text != "" {
		var stamp cosignbundle.RFC3161Timestamp
		if err := json.Unmarshal([]byte(text), &stamp); err != nil {
			return nil, fmt.Errorf("reading the timestamp: %w", err)
		}
		options = append(options, static.WithRFC3161Timestamp(&stamp))
	}
	return static.NewSignature(content, notes[static.SignatureAnnotationKey], options...)
}

// referring reads the referrers of the artifact that are Sigstore bundles.
func (e *evidence) referring(predicateType string) (f found, err error) {
	index, err := remote.Referrers(e.artifact, e.options...)
	if err != nil {
		return found{}, fmt.Errorf("listing what refers to %s: %w", e.artifact, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return found{}, fmt.Errorf("listing what refers to %s: %w", e.artifact, err)
	}
	var wanted []v1.Descriptor
	for _, d := range manifest.Manifests {
		if claimsBundle(d, predicateType) {
			wanted = append(wanted, d)
		}
	}
	if len(wanted) > MaxAttachments {
		return found{}, fmt.Errorf("%s has %d bundles of one type, more than %d", e.artifact,
			len(wanted), MaxAttachments)
	}
	for _, d := range wanted {
		place := e.artifact.Context().Digest(d.Digest.String())
		b, err := e.bundle(place)
		if ended(err) {
			return found{}, fmt.Errorf("reading %s: %w", place, err)
		} else if err != nil {
			f.skipped = append(f.skipped, fmt.Errorf("%s: %w", place, err))
			continue
		}
		f.all = append(f.all, attached{place: place.String(), bundle: b})
	}
	return f, nil
}

// claimsBundle reports whether a referrer may be a bundle of a type. Registries show
// the annotations of its manifest, and its artifact type or that of its config.
func claimsBundle(d v1.Descriptor, predicateType string) bool {
	if claimed := d.Annotations[predicateAnnotation]; claimed != "" {
		return claimed == predicateType
	}
	return d.ArtifactType == "" || d.ArtifactType == emptyType ||
		strings.HasPrefix(d.ArtifactType, bundleType)
}

// bundle reads a referrer, which has one layer.
func (e *evidence) bundle(place name.Digest) (*bundle.Bundle, error) {
	image, err := remote.Get(place, e.options...)
	if err != nil {
		return nil, err
	}
	manifest, err := v1.ParseManifest(bytes.NewReader(image.Manifest))
	if err != nil {
		return nil, err
	}
	if len(manifest.Layers) != 1 || !strings.HasPrefix(string(manifest.Layers[0].MediaType), bundleType) {
		return nil, errors.New("it is not a manifest with one Sigstore bundle")
	}
	content, err := e.blob(manifest.Layers[0])
	if err != nil {
		return nil, err
	}
	b := &bundle.Bundle{}
	if err := b.UnmarshalJSON(content); err != nil {
		return nil, fmt.Errorf("reading the bundle: %w", err)
	}
	return b, nil
}

// blob reads a layer, which has its digest and size.
func (e *evidence) blob(layer v1.Descriptor) ([]byte, error) {
	limit := min(MaxAttachment, MaxContent-e.content)
	if layer.Size > limit {
		return nil, errTooLarge
	}
	from, err := remote.Layer(e.artifact.Context().Digest(layer.Digest.String()), e.options...)
	if err != nil {
		return nil, err
	}
	r, err := from.Compressed() // compares what comes with the digest
	if err != nil {
		return nil, err
	}
	defer r.Close()
	content, err := io.ReadAll(io.LimitReader(r, limit+1))
	e.content += int64(len(content))
	if err == nil && int64(len(content)) > limit { // it has not been compared with the digest
		err = errTooLarge
	}
	if err != nil {
		return nil, err
	}
	return content, nil
}

// ended reports whether the reading was cancelled or took too long.
func ended(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// missing reports whether a registry has no such thing.
func missing(err error) bool {
	answer := (*transport.Error)(nil)
	return errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound
}

// statement is an in-toto statement. The predicate is decoded by its type.
type statement struct {
	Type          string          `json:"_type"`
	Subject       []subject       `json:"subject"`
	PredicateType string          `json:"predicateType"`
	Predicate     json.RawMessage `json:"predicate,omitempty"`

	place string // where the registry has it, REPOSITORY@DIGEST
}

type subject struct {
	Name   string            `json:"name,omitempty"`
	Digest map[string]string `json:"digest"`
}

// statement reads the statement. It verifies nothing.
func (a attached) statement() (text []byte, s statement, err error) {
	envelope, err := a.signed()
	if err != nil {
		return nil, s, err
	}
	if envelope.PayloadType != cosigntypes.IntotoPayloadType {
		return nil, s, fmt.Errorf("its payload is %q and not %q", envelope.PayloadType,
			cosigntypes.IntotoPayloadType)
	}
	if text, err = envelope.DecodeB64Payload(); err != nil {
		return nil, s, err
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, s, fmt.Errorf("reading the statement: %w", err)
	}
	return text, s, nil
}

// signed returns the DSSE envelope around the statement.
func (a attached) signed() (*securedsse.Envelope, error) {
	if a.bundle == nil {
		text, err := a.envelope.Payload()
		if err != nil {
			return nil, err
		}
		envelope := &securedsse.Envelope{}
		return envelope, json.Unmarshal(text, envelope)
	}
	envelope, err := a.bundle.Envelope()
	if err != nil {
		return nil, err
	}
	if envelope == nil {
		return nil, errors.New("the bundle has a signature and no statement")
	}
	return envelope.RawEnvelope(), nil
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
