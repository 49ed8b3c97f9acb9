package commit

import (
	"bufio"
	"bytes"
	"crypto/rsa"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"
)

// allowedSigner is a line of a file of allowed signers.
type allowedSigner struct {
	principals    string
	key           ssh.PublicKey
	after, before time.Time // zero for no bound
}

// sshNamespace is the namespace of Git's signatures. A signature that ssh-keygen made of a file has
// another one, and is not valid for a commit.
const sshNamespace = "git"

// maxPrincipals bounds the principals of a line, in bytes, since the status of builds repeats them.
const maxPrincipals = 256

// minRSA is the least size of an RSA key, in bits.
const minRSA = 2048

// parseAllowedSigners parses a file of allowed signers, whose lines have principals, options and a
// key, as ssh-keygen(1) describes.
func parseAllowedSigners(data []byte) (out []allowedSigner, err error) {
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 64<<10)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		bad := func(message string) error { return fmt.Errorf("line %d: %s", n, message) }
		at := strings.IndexAny(line, " \t")
		if line[0] == '"' { // principals may be quoted
			if at = strings.IndexByte(line[1:], '"') + 2; at == 1 {
				return nil, bad("a quote is not closed")
			}
		}
		if at < 0 || at >= len(line) {
			return nil, bad("it has no key: write PRINCIPALS [OPTIONS] KEYTYPE KEY")
		}
		s := allowedSigner{principals: strings.Trim(line[:at], `"`)}
		if len(s.principals) > maxPrincipals {
			return nil, bad(fmt.Sprintf("the principals have more than %d bytes", maxPrincipals))
		}
		var options []string
		if s.key, _, options, _, err = ssh.ParseAuthorizedKey([]byte(line[at:])); err != nil {
			return nil, bad("it has no key: write PRINCIPALS [OPTIONS] KEYTYPE KEY")
		}
		if err := checkKey(s.key); err != nil {
			return nil, bad(err.Error())
		}
		git, err := s.readOptions(options)
		if err != nil {
			return nil, bad(err.Error())
		}
		if git {
			out = append(out, s)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, errors.New("it allows no key to sign commits")
	}
	return out, nil
}

// readOptions parses the options of a line. git is false for a key that may not sign commits.
func (s *allowedSigner) readOptions(options []string) (git bool, err error) {
	git = true
	for _, option := range options {
		name, value, _ := strings.Cut(option, "=")
		value = strings.Trim(value, `"`)
		switch strings.ToLower(name) {
		case "namespaces":
			if strings.ContainsAny(value, "*?!") && value != "*" {
				return false, fmt.Errorf(
					"namespaces=%q: patterns are not supported: list the names", value)
			}
			git = value == "*" || slices.Contains(strings.Split(value, ","), sshNamespace)
		case "valid-after":
			s.after, err = readTime(value)
		case "valid-before":
			s.before, err = readTime(value)
		case "cert-authority":
			return false, errors.New(
				"certificates of SSH (cert-authority) are not supported: list the keys")
		default:
			return false, fmt.Errorf("the option %q is unknown", name)
		}
		if err != nil {
			return false, fmt.Errorf("%s: %w", name, err)
		}
	}
	return git, nil
}

// readTime parses a time in the formats of ssh-keygen. A time without a Z is UTC as well, because
// the controller has no other time zone.
func readTime(text string) (time.Time, error) {
	text = strings.TrimSuffix(text, "Z")
	for _, form := range []string{"20060102", "200601021504", "20060102150405"} {
		if len(form) == len(text) {
			return time.Parse(form, text)
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time: write YYYYMMDD or YYYYMMDDHHMMSSZ", text)
}

// checkKey rejects weak keys and certificates.
func checkKey(key ssh.PublicKey) error {
	switch key.Type() {
	case ssh.KeyAlgoED25519, ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256,
		ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521:
		return nil
	case ssh.KeyAlgoRSA:
		if crypto, ok := key.(ssh.CryptoPublicKey); ok {
			if public, ok := crypto.CryptoPublicKey().(*rsa.PublicKey); ok &&
				public.N.BitLen() >= minRSA {
				return nil
			}
		}
		return fmt.Errorf("an RSA key of less than %d bits is too weak", minRSA)
	}
	return fmt.Errorf("keys of type %s are not supported", key.Type())
}

// sshSigner verifies an SSH signature, and returns the allowed signer that has its key.
func (p *Policy) sshSigner(armored string, payload []byte, now time.Time) (string, error) {
	if len(p.ssh) == 0 {
		return "", errors.New("it is signed with SSH, and the policy has no allowedSigners")
	}
	block, rest := pem.Decode([]byte(armored))
	if block == nil || len(block.Headers) > 0 || strings.TrimSpace(string(rest)) != "" {
		return "", errors.New("its SSH signature is malformed")
	}
	// Unarmor accepts only SHA-256 and SHA-512, for RSA as well.
	signature, err := sshsig.Unarmor([]byte(armored))
	if err != nil {
		return "", fmt.Errorf("its SSH signature is malformed: %.100s", err)
	}
	key := signature.PublicKey
	fingerprint := ssh.FingerprintSHA256(key)
	var allowed []allowedSigner
	for _, s := range p.ssh {
		if bytes.Equal(s.key.Marshal(), key.Marshal()) {
			allowed = append(allowed, s)
		}
	}
	if len(allowed) == 0 {
		return "", fmt.Errorf("it is signed by the SSH key %s, which the policy does not allow",
			fingerprint)
	}
	err = sshsig.Verify(bytes.NewReader(payload), signature, key, signature.HashAlgorithm, sshNamespace)
	if errors.Is(err, sshsig.ErrNamespaceMismatch) {
		return "", fmt.Errorf("its SSH signature is for %.100q, not for Git", signature.Namespace)
	} else if err != nil {
		return "", fmt.Errorf("its signature by the SSH key %s is not of this commit", fingerprint)
	}
	for _, s := range allowed {
		if (s.after.IsZero() || !now.Before(s.after)) &&
			(s.before.IsZero() || now.Before(s.before)) {
			return s.principals + " " + fingerprint, nil
		}
	}
	return "", fmt.Errorf(
		"it is signed by the SSH key %s of %s, which the policy does not allow at this time",
		fingerprint, allowed[0].principals)
}
