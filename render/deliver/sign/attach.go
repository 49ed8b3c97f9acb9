package sign

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	layers "github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	ociremote "github.com/sigstore/cosign/v2/pkg/oci/remote"
	cosigntypes "github.com/sigstore/cosign/v2/pkg/types"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/sign"
	"github.com/sigstore/sigstore-go/pkg/verify"

	"github.com/armature-dev/armature/functions/multi"
)

// attempts is how often publish attaches a bundle. Without a referrers API, the referrers of an
// artifact are a list that two clients may read and write at the same time, and one of the writes
// is lost.
const attempts = 3

// Sign attaches a signature to an artifact as a Sigstore bundle and returns the reference of the
// bundle by digest. It keeps an existing signature by the same key, so that it may be repeated
// after a failure.
func (s *Session) Sign(ctx context.Context, artifact name.Digest) (bundle string, err error) {
	return s.publish(ctx, artifact, "", cosigntypes.CosignSignPredicateType, nil)
}

// Attest attaches a signed statement about an artifact (in-toto v1) with a predicate, whose
// type is a URI, as a Sigstore bundle, and returns its reference. It may be repeated like Sign.
func (s *Session) Attest(ctx context.Context, artifact name.Digest, predicateType string,
	predicate any) (bundle string, err error) {
	return s.publish(ctx, artifact, artifact.Repository.String(), predicateType, predicate)
}

// publish attaches a statement unless it is attached already, and reads it back. It signs the
// statement once. named is the name of the subject.
func (s *Session) publish(ctx context.Context, artifact name.Digest, named, predicateType string,
	predicate any) (place string, err error) {
	ctx, cancel := context.WithTimeout(ctx, MaxTime)
	defer cancel()
	defer func() {
		if err != nil {
			err = fmt.Errorf("attaching %s to %s: %w", predicateType, artifact, err)
		}
	}()
	stated := statement{Type: "https://in-toto.io/Statement/v1", PredicateType: predicateType}
	if predicate != nil {
		if stated.Predicate, err = json.Marshal(predicate); err != nil {
			return "", err
		}
	}
	algorithm, hex, _ := strings.Cut(artifact.DigestStr(), ":")
	stated.Subject = []subject{{Name: named, Digest: map[string]string{algorithm: hex}}}
	text, err := json.Marshal(stated)
	if err != nil {
		return "", err
	}
	var signed *bundle.Bundle
	for n := 0; ; n++ {
		existing, err := newEvidence(artifact, bounded(ctx, s.access))
		if err != nil {
			return "", err
		}
		known, err := existing.find(bundles, predicateType)
		if err != nil {
			return "", err
		}
		states := func(a attached) bool { return s.states(existing, a, text, predicateType) }
		for _, a := range known {
			if states(a) {
				return a.place, nil
			}
		}
		if n == attempts {
			return "", fmt.Errorf("it was written %d times, and the registry does not have it: "+
				"does somebody else sign the same artifact?", attempts)
		}
		if signed == nil {
			if signed, err = s.bundle(ctx, text, states); err != nil {
				return "", err
			}
		}
		if err := s.refer(existing, predicateType, signed); err != nil {
			return "", err
		}
	}
}

// refer attaches a Sigstore bundle as a referrer (OCI 1.1), also under the fallback tag if the
// registry has no referrers API. The manifest contains no time, so that the same bundle is attached
// once.
func (s *Session) refer(to *evidence, predicateType string, b *bundle.Bundle) error {
	content, err := b.MarshalJSON()
	if err != nil {
		return err
	}
	return ociremote.WriteReferrer(to.artifact, b.MediaType,
		[]v1.Layer{layers.NewLayer(content, types.MediaType(b.MediaType))},
		map[string]string{"dev.sigstore.bundle.content": "dsse-envelope",
			predicateAnnotation: predicateType},
		ociremote.WithRemoteOptions(to.options...), ociremote.WithNameOptions(s.access.Names()...))
}

// bundle signs a statement, or returns the stored bundle of that statement. Bundles are stored
// without the statement, which may be large.
func (s *Session) bundle(ctx context.Context, text []byte,
	states func(attached) bool) (*bundle.Bundle, error) {
	content := &sign.DSSEData{Data: text, PayloadType: cosigntypes.IntotoPayloadType}
	sum := sha256.Sum256(content.PreAuthEncoding())
	name := hex.EncodeToString(sum[:])
	read := func(stored []byte, err error) (*bundle.Bundle, error) {
		b := &bundle.Bundle{}
		if err == nil {
			err = b.UnmarshalJSON(stored)
		}
		if err == nil && b.GetDsseEnvelope() == nil {
			err = errors.New("it has no envelope")
		}
		if err != nil {
			return nil, fmt.Errorf("keeping a signature: %w", err)
		}
		b.GetDsseEnvelope().Payload = text
		return b, nil
	}
	valid := func(stored []byte) bool {
		b, err := read(stored, nil)
		return err == nil && states(attached{bundle: b})
	}
	if s.keep != nil {
		if stored, err := s.keep(ctx, name, nil, valid); err != nil || stored != nil {
			return read(stored, err)
		}
	}
	with := s.with
	with.Context = ctx
	made, err := sign.Bundle(content, s.key, with)
	var b *bundle.Bundle
	if err == nil {
		b, err = bundle.NewBundle(made)
	}
	if err == nil && s.own != nil && !states(attached{bundle: b}) {
		err = errors.New("the trusted root does not vouch for the certificate, or for the " +
			"timestamp or the log's entry: is it the one of these authorities?")
	}
	if err != nil {
		return nil, &KeyError{err}
	}
	if s.keep == nil {
		return b, nil
	}
	b.GetDsseEnvelope().Payload = nil
	stored, err := b.MarshalJSON()
	if err != nil {
		return nil, err
	}
	return read(s.keep(ctx, name, stored, valid))
}

// states reports whether a bundle is the session's signature of a statement, with the certificate,
// the log entry and the timestamp that the session attaches. With a trusted root, another
// certificate of the same identity also counts.
func (s *Session) states(about *evidence, a attached, text []byte, predicateType string) bool {
	if a.err != nil {
		return false
	}
	stamps, err := a.bundle.Timestamps()
	by, err2 := a.bundle.VerificationContent()
	content, err3 := a.bundle.SignatureContent()
	if multi.Errors(err, err2, err3) != nil ||
		!bytes.Equal(a.bundle.GetDsseEnvelope().GetPayload(), text) ||
		len(stamps) < len(s.with.TimestampAuthorities) ||
		len(a.bundle.VerificationMaterial.TlogEntries) < len(s.with.TransparencyLogs) {
		return false
	}
	if s.own != nil {
		_, err := s.own.judge(about, a, predicateType)
		return err == nil
	}
	return by.Certificate().Equal(s.cert) &&
		verify.VerifySignature(content, &bundle.PublicKey{}, keyed(s.key)) == nil
}
