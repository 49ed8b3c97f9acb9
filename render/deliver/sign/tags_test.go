package sign_test

import (
	"bytes"
	"crypto"
	"encoding/base64"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	cosignbundle "github.com/sigstore/cosign/v2/pkg/cosign/bundle"
	cosignoci "github.com/sigstore/cosign/v2/pkg/oci"
	"github.com/sigstore/cosign/v2/pkg/oci/mutate"
	ociremote "github.com/sigstore/cosign/v2/pkg/oci/remote"
	"github.com/sigstore/cosign/v2/pkg/oci/static"
	cosigntypes "github.com/sigstore/cosign/v2/pkg/types"
	timestamps "github.com/sigstore/sigstore-go/pkg/sign"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/dsse"
	"github.com/sigstore/sigstore/pkg/signature/payload"

	"github.com/armature-dev/armature/render/deliver/sign"
	"github.com/armature-dev/armature/render/deliver/sign/signtest"
)

// tags signs the artifact and attests provenance as cosign 2 does: under the tags .sig and
// .att, which we read and do not write.
func (f *fixture) tags(s sign.Signer) {
	f.Helper()
	f.tagsIn(s, nil)
}

// tagsIn does the same, and attaches what a log has of it, if there is one.
func (f *fixture) tagsIn(s sign.Signer, log *journal) {
	f.Helper()
	must := func(err error) {
		f.Helper()
		if err != nil {
			f.Fatal(err)
		}
	}
	text, err := os.ReadFile(s.Key)
	must(err)
	private, err := cryptoutils.UnmarshalPEMToPrivateKey(text,
		cryptoutils.StaticPasswordFunc([]byte(secret)))
	must(err)
	key, err := signature.LoadSignerVerifier(private, crypto.SHA256)
	must(err)
	var beside []static.Option
	var cert []byte
	if s.Certificate != "" {
		cert, err = os.ReadFile(s.Certificate)
		must(err)
		beside = append(beside, static.WithCertChain(cert, cert))
	}
	stamped := func(signature, content, made []byte) []static.Option {
		beside := slices.Clone(beside)
		if log != nil {
			beside = append(beside, log.entered(content, made, verifierPEM(f, key, cert)))
		}
		if s.Timestamps == "" {
			return beside
		}
		stamp, err := timestamps.NewTimestampAuthority(&timestamps.TimestampAuthorityOptions{
			URL: s.Timestamps}).GetTimestamp(f.Context(), signature)
		must(err)
		return append(beside,
			static.WithRFC3161Timestamp(
				&cosignbundle.RFC3161Timestamp{SignedRFC3161Timestamp: stamp}))
	}
	claim, err := payload.Cosign{Image: f.artifact}.MarshalJSON()
	must(err)
	made, err := key.SignMessage(bytes.NewReader(claim))
	must(err)
	signed, err := static.NewSignature(claim, base64.StdEncoding.EncodeToString(made),
		stamped(made, claim, made)...)
	must(err)
	entity, err := ociremote.SignedEntity(f.artifact)
	must(err)
	entity, err = mutate.AttachSignatureToEntity(entity, signed)
	must(err)
	must(ociremote.WriteSignatures(f.artifact.Context(), entity))

	algorithm, hex, _ := strings.Cut(f.artifact.DigestStr(), ":")
	statement, err := json.Marshal(map[string]any{"_type": "https://in-toto.io/Statement/v1",
		"predicateType": sign.PredicateType, "predicate": provenance,
		"subject": []any{map[string]any{"name": f.artifact.Repository.String(),
			"digest": map[string]string{algorithm: hex}}}})
	must(err)
	envelope, err := dsse.WrapSigner(key, cosigntypes.IntotoPayloadType).SignMessage(
		bytes.NewReader(statement))
	must(err)
	var attestation cosignoci.Signature
	attestation, err = static.NewAttestation(envelope,
		append(stamped(envelope, envelope, nil), static.WithLayerMediaType(cosigntypes.DssePayloadType),
			static.WithAnnotations(map[string]string{"predicateType": sign.PredicateType}))...)
	must(err)
	entity, err = mutate.AttachAttestationToEntity(entity, attestation)
	must(err)
	must(ociremote.WriteAttestations(f.artifact.Context(), entity))
}

// A timestamp counts under tags, too, if its authority is known.
func TestTimestampsUnderTags(t *testing.T) {
	for _, known := range []bool{true, false} {
		f := setup(t)
		ours, clock := f.authority("ours"), signtest.NewAuthority(t)
		s := ours.issue(subject, issuer, time.Now().Add(2*time.Second-time.Hour))
		s.Timestamps = clock.Timestamps()
		f.tags(s)
		if !known {
			clock = signtest.NewAuthority(t)
		}
		trusted, err := clock.TrustedRoot(ours.cert)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second) // the certificate has ended
		p := identity("")
		p.TrustedRoot = f.write("trusted_root.json", trusted)
		if !known {
			f.refused(p, "unable to verify signed timestamps")
		} else if _, err := sign.Verify(t.Context(), f.artifact, p); err != nil {
			t.Error(err)
		}
	}
}
