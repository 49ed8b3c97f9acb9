package sign

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	securedsse "github.com/secure-systems-lab/go-securesystemslib/dsse"
	cosignbundle "github.com/sigstore/cosign/v2/pkg/cosign/bundle"
	"github.com/sigstore/cosign/v2/pkg/oci/static"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/cryptoutils"

	"github.com/armature-dev/armature/functions/multi"
)

// object is a JSON object.
type object map[string]any

// tagged converts a layer in cosign's tag format, which is a claim or the envelope of a statement,
// to a Sigstore bundle. The annotations contain the signature of a claim, the certificate and the
// proofs.
func tagged(form string, layer []byte, notes map[string]string) (*bundle.Bundle, error) {
	material := object{"publicKey": object{}}
	if text := notes[static.CertificateAnnotationKey]; text != "" {
		certs, err := cryptoutils.UnmarshalCertificatesFromPEM([]byte(text))
		if err == nil && len(certs) == 0 {
			err = errors.New("it is not in PEM")
		}
		if err != nil {
			return nil, fmt.Errorf("reading the certificate: %w", err)
		}
		material = object{"certificate": object{"rawBytes": certs[0].Raw}}
	}
	if text := notes[static.BundleAnnotationKey]; text != "" {
		entry, err := logged(text)
		if err != nil {
			return nil, fmt.Errorf("reading the proof of the transparency log: %w", err)
		}
		material["tlogEntries"] = []object{entry}
	}
	if text := notes[static.RFC3161TimestampAnnotationKey]; text != "" {
		var stamp cosignbundle.RFC3161Timestamp
		if err := json.Unmarshal([]byte(text), &stamp); err != nil {
			return nil, fmt.Errorf("reading the timestamp: %w", err)
		}
		material["timestampVerificationData"] = object{
			"rfc3161Timestamps": []object{{"signedTimestamp": stamp.SignedRFC3161Timestamp}}}
	}
	made := object{"mediaType": bundleType + "+json;version=0.1", "verificationMaterial": material}
	if form == signatures {
		sum := sha256.Sum256(layer)
		made["messageSignature"] = object{"signature": notes[static.SignatureAnnotationKey],
			"messageDigest": object{"algorithm": "SHA2_256", "digest": sum[:]}}
	} else {
		var envelope securedsse.Envelope
		if err := json.Unmarshal(layer, &envelope); err != nil {
			return nil, fmt.Errorf("reading the envelope: %w", err)
		}
		made["dsseEnvelope"] = envelope
	}
	text, err := json.Marshal(made)
	if err != nil {
		return nil, err
	}
	b := &bundle.Bundle{}
	return b, b.UnmarshalJSON(text)
}

// logged returns the entry of a transparency log from cosign's annotation with the log's promise.
func logged(text string) (object, error) {
	var proof struct {
		SignedEntryTimestamp []byte
		Payload              struct {
			Body                     []byte
			IntegratedTime, LogIndex int64
			LogID                    string
		}
	}
	if err := json.Unmarshal([]byte(text), &proof); err != nil {
		return nil, err
	}
	var body struct{ Kind, APIVersion string }
	log, err := hex.DecodeString(proof.Payload.LogID)
	if err := multi.Errors(err, json.Unmarshal(proof.Payload.Body, &body)); err != nil {
		return nil, err
	}
	return object{"canonicalizedBody": proof.Payload.Body, "logId": object{"keyId": log},
		"kindVersion": object{"kind": body.Kind, "version": body.APIVersion},
		"logIndex":    proof.Payload.LogIndex, "integratedTime": proof.Payload.IntegratedTime,
		"inclusionPromise": object{"signedEntryTimestamp": proof.SignedEntryTimestamp}}, nil
}

// enveloped is a bundle of an envelope in cosign's tag format, whose timestamp is of the envelope
// and not of the signature in it.
type enveloped struct {
	*bundle.Bundle
	envelope []byte
}

func (e enveloped) SignatureContent() (verify.SignatureContent, error) {
	content, err := e.Bundle.SignatureContent()
	return stamped{content, e.envelope}, err
}

type stamped struct {
	verify.SignatureContent
	envelope []byte
}

func (s stamped) Signature() []byte { return s.envelope }
