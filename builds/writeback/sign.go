package writeback

import (
	"bytes"
	"crypto"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"
)

// Signer returns the armored signature of the payload of a commit at a time. It is deterministic,
// so that a commit that is created again after a crash, or by another replica, is the same commit.
type Signer func(payload []byte, at time.Time) (string, error)

// ReadSigner parses a private key as ssh-keygen or gpg --armor --export-secret-keys writes it. An
// empty passphrase means none. It rejects keys whose signatures are random, such as SSH's ECDSA.
func ReadSigner(key, passphrase []byte) (Signer, error) {
	if bytes.Contains(key, []byte("BEGIN PGP PRIVATE KEY BLOCK")) {
		return openPGPSigner(key, passphrase)
	}
	var signer ssh.Signer
	var err error
	if len(passphrase) > 0 {
		signer, err = ssh.ParsePrivateKeyWithPassphrase(key, passphrase)
	} else {
		signer, err = ssh.ParsePrivateKey(key)
	}
	if missing := (*ssh.PassphraseMissingError)(nil); errors.As(err, &missing) {
		return nil, errors.New("the SSH key has a passphrase, which is not given")
	} else if err != nil {
		return nil, errors.New("it is neither a private SSH key nor an armored OpenPGP key, or " +
			"its passphrase is wrong")
	}
	switch kind := signer.PublicKey().Type(); kind {
	case ssh.KeyAlgoED25519, ssh.KeyAlgoRSA:
	default:
		return nil, fmt.Errorf("an SSH key of type %s produces another signature each time it "+
			"signs a commit: use ed25519 or RSA", kind)
	}
	return func(payload []byte, _ time.Time) (string, error) {
		signature, err := sshsig.Sign(bytes.NewReader(payload), signer, sshsig.HashSHA512, "git")
		if err != nil {
			return "", err
		}
		return string(sshsig.Armor(signature)), nil
	}, nil
}

func openPGPSigner(key, passphrase []byte) (_ Signer, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("the OpenPGP key is malformed")
		}
	}()
	keys, err := openpgp.ReadArmoredKeyRing(bytes.NewReader(key))
	if err != nil || len(keys) != 1 {
		return nil, errors.New(
			"it is not one armored OpenPGP key: write it with gpg --armor --export-secret-keys ID")
	}
	owner := keys[0]
	if len(passphrase) > 0 {
		if err := owner.DecryptPrivateKeys(passphrase); err != nil {
			return nil, errors.New("the passphrase of the OpenPGP key is wrong")
		}
	}
	signing, ok := owner.SigningKey(owner.PrimaryKey.CreationTime.Add(time.Second))
	if !ok {
		signing, ok = owner.SigningKey(time.Now())
	}
	switch {
	case !ok || signing.PrivateKey == nil:
		return nil, errors.New("the OpenPGP key has no private key that signs")
	case signing.PrivateKey.Encrypted:
		return nil, errors.New("the OpenPGP key has a passphrase, which is not given")
	case signing.PublicKey.PubKeyAlgo == packet.PubKeyAlgoECDSA ||
		signing.PublicKey.PubKeyAlgo == packet.PubKeyAlgoDSA:
		return nil, errors.New("an OpenPGP key of ECDSA or DSA produces another signature each " +
			"time it signs a commit: use ed25519 or RSA")
	}
	random := false
	return func(payload []byte, at time.Time) (string, error) {
		if at.Before(signing.PublicKey.CreationTime) {
			at = signing.PublicKey.CreationTime
		}
		var out bytes.Buffer
		err := openpgp.ArmoredDetachSign(&out, owner, bytes.NewReader(payload), &packet.Config{
			Time: func() time.Time { return at }, DefaultHash: crypto.SHA512,
			NonDeterministicSignaturesViaNotation: &random,
		})
		return strings.TrimSpace(out.String()) + "\n", err
	}, nil
}
