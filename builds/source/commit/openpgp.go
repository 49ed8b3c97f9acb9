package commit

import (
	"bytes"
	"crypto"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	pgperrors "github.com/ProtonMail/go-crypto/openpgp/errors"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

const (
	publicKeyBlock = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
	signatureEnd   = "-----END PGP SIGNATURE-----"
)

// openPGPHashes are the hashes that a signature may use.
var openPGPHashes = []crypto.Hash{crypto.SHA256, crypto.SHA384, crypto.SHA512, crypto.SHA3_256,
	crypto.SHA3_512}

// parseOpenPGPKeys parses public keys as gpg --armor --export writes them. Other content is an
// error, and so is a key that occurs twice, because one of the copies may lack the revocation. seen
// has the fingerprints of the policy's keys.
func parseOpenPGPKeys(data []byte, seen map[string]bool) (out openpgp.EntityList, err error) {
	defer func() { // the keys are not trusted, and the library may panic
		if recover() != nil {
			out, err = nil, errors.New("an OpenPGP key is malformed")
		}
	}()
	blocks := strings.Split(string(data), publicKeyBlock)
	if strings.TrimSpace(blocks[0]) != "" || len(blocks) == 1 {
		return nil, errors.New(
			"it is not a file of public OpenPGP keys: write it with gpg --armor --export")
	}
	for _, block := range blocks[1:] {
		keys, err := openpgp.ReadArmoredKeyRing(strings.NewReader(publicKeyBlock + block))
		if err != nil {
			return nil, fmt.Errorf("reading an OpenPGP key: %w", err)
		}
		for _, key := range keys {
			name := fmt.Sprintf("%X", key.PrimaryKey.Fingerprint)
			if seen[name] {
				return nil, fmt.Errorf("the OpenPGP key %s occurs twice: keep the newest copy", name)
			}
			seen[name] = true
			if self, _ := key.PrimarySelfSignature(); self == nil {
				return nil, fmt.Errorf("the OpenPGP key %s has no signature of its own", name)
			}
		}
		out = append(out, keys...)
	}
	return out, nil
}

// openPGPSigner verifies a signature by one of the policy's keys, which must be neither revoked nor
// expired now.
func (p *Policy) openPGPSigner(armored string, payload []byte,
	now time.Time) (signer string, err error) {
	if len(p.openPGP) == 0 {
		return "", errors.New("it is signed with OpenPGP, and the policy has no openPGPKeys")
	}
	malformed := errors.New("its OpenPGP signature is malformed")
	defer func() { // keys and signature are not trusted, and the library may panic
		if recover() != nil {
			signer, err = "", malformed
		}
	}()
	if !strings.HasSuffix(strings.TrimSpace(armored), signatureEnd) ||
		strings.Count(armored, "-----BEGIN ") != 1 {
		return "", malformed
	}
	block, err := armor.Decode(strings.NewReader(armored))
	if err != nil {
		return "", malformed
	}
	body, err := io.ReadAll(block.Body)
	if err != nil {
		return "", malformed
	}
	packets := packet.NewReader(bytes.NewReader(body))
	first, err := packets.Next()
	signature, is := first.(*packet.Signature)
	if err != nil || !is || signature.IssuerKeyId == nil ||
		signature.SigType != packet.SigTypeBinary {
		return "", malformed
	}
	if _, err := packets.Next(); !errors.Is(err, io.EOF) {
		return "", errors.New("it has several OpenPGP signatures, and only one is allowed")
	}
	id := fmt.Sprintf("%016X", *signature.IssuerKeyId)
	keys := p.openPGP.KeysById(*signature.IssuerKeyId)
	if len(keys) == 0 {
		return "", fmt.Errorf("it is signed by the OpenPGP key %s, which the policy does not allow", id)
	}
	for _, key := range keys {
		if err := checkOpenPGPKey(key.PublicKey); err != nil {
			return "", fmt.Errorf("it is signed by the OpenPGP key %s: %w", id, err)
		}
	}
	if !slices.Contains(openPGPHashes, signature.Hash) {
		return "", fmt.Errorf("its OpenPGP signature uses the hash %s", signature.Hash)
	}
	config := &packet.Config{Time: func() time.Time { return now }}
	_, owner, err := openpgp.VerifyDetachedSignatureAndHash(
		p.openPGP, bytes.NewReader(payload), bytes.NewReader(body), openPGPHashes, config)
	switch {
	case errors.Is(err, pgperrors.ErrKeyRevoked):
		return "", fmt.Errorf("it is signed by the OpenPGP key %s, which is revoked", id)
	case errors.Is(err, pgperrors.ErrKeyExpired), errors.Is(err, pgperrors.ErrSignatureExpired):
		return "", fmt.Errorf(
			"it is signed by the OpenPGP key %s, and the key or the signature is expired", id)
	case err != nil:
		return "", fmt.Errorf(
			"its signature by the OpenPGP key %s is not of this commit, or the key may not sign", id)
	}
	name := ""
	if identity := owner.PrimaryIdentity(); identity != nil {
		name = identity.Name[:min(len(identity.Name), maxPrincipals)]
	}
	return strings.TrimSpace(fmt.Sprintf("%s %X", name, owner.PrimaryKey.Fingerprint)), nil
}

// checkOpenPGPKey rejects weak kinds of keys.
func checkOpenPGPKey(key *packet.PublicKey) error {
	switch key.PubKeyAlgo {
	case packet.PubKeyAlgoECDSA, packet.PubKeyAlgoEdDSA, packet.PubKeyAlgoEd25519, packet.PubKeyAlgoEd448:
		return nil
	case packet.PubKeyAlgoRSA, packet.PubKeyAlgoRSASignOnly:
		if bits, err := key.BitLength(); err == nil && bits >= minRSA {
			return nil
		}
		return fmt.Errorf("an RSA key of less than %d bits is too weak", minRSA)
	}
	return errors.New("keys of its kind are not supported")
}
