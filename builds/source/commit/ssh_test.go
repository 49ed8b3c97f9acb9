package commit_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha512"
	"encoding/pem"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

var now = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// Commits that the real git and ssh-keygen signed count, whatever the kind of the key.
func TestSSHSigner(t *testing.T) {
	r := newRepository(t)
	for _, kind := range [][]string{{"ed25519"}, {"ecdsa", "-b", "384"}, {"rsa", "-b", "2048"}} {
		private, public := r.sshKey(kind...)
		object := r.object(r.commit("signed by "+kind[0], withSSH(private)...))
		p := policy(t, "{branches: [main], allowedSigners: [people]}", "people",
			"x@y "+someKey+"\nalice@example.com,a@b "+public)
		signer, err := p.Signer(object, now)
		if err != nil || !strings.HasPrefix(signer, "alice@example.com,a@b SHA256:") {
			t.Errorf("%s: signer %q, error %v", kind[0], signer, err)
		}
		if merged := withHeader(object, "mergetag",
			"object x\ntype commit\n\n-----BEGIN SSH SIGNATURE-----"); bytes.Equal(merged, object) {
			t.Fatal("the object is as it was")
		} else if _, err := p.Signer(merged, now); err == nil ||
			!strings.Contains(err.Error(), "is not of this commit") {
			t.Errorf("%s: a header added: %v", kind[0], err)
		}
	}
}

// A key counts in its time, by the clock and not by what the commit says.
func TestSSHSignerTimes(t *testing.T) {
	r := newRepository(t)
	private, public := r.sshKey("ed25519")
	object := r.object(r.commit("old", withSSH(private)...))
	for options, want := range map[string]bool{
		`valid-after="20260101",valid-before="20270101Z"`: true,
		`valid-before="20260601120001"`:                   true,
		`valid-before="20260601120000Z"`:                  false, `valid-before="20260501"`: false,
		`valid-after="202606011201"`: false,
	} {
		p := policy(t, "{branches: [main], allowedSigners: [people]}", "people",
			"a@b "+options+" "+public)
		if _, err := p.Signer(object, now); (err == nil) != want ||
			err != nil && !strings.Contains(err.Error(), "does not allow at this time") {
			t.Errorf("%s: %v", options, err)
		}
	}
	renewed := policy(t, "{branches: [main], allowedSigners: [people]}", "people",
		"a@b valid-before=\"20260101\" "+public+"\nc@d valid-after=\"20260101\" "+public)
	if signer, err := renewed.Signer(object, now); err != nil ||
		!strings.HasPrefix(signer, "c@d ") {
		t.Errorf("a second time: %q, %v", signer, err)
	}
}

// Nothing but one signature of these bytes, for Git, by a key of the policy counts.
func TestForgedSignatures(t *testing.T) {
	r := newRepository(t)
	private, public := r.sshKey("ed25519")
	stranger, _ := r.sshKey("ed25519")
	rsa, rsaPublic := r.sshKey("rsa", "-b", "2048")
	plain := r.object(r.commit("unsigned"))
	signed := r.object(r.commit("signed", withSSH(private)...))
	other := r.object(r.commit("other", withSSH(private)...))
	foreign := r.object(r.commit("foreign", withSSH(stranger)...))
	own := func(namespace string) []byte {
		return withHeader(plain, "gpgsig", r.signSSH(private, namespace, plain))
	}
	signature := r.signSSH(private, "git", plain)
	p := policy(t, "{branches: [main], allowedSigners: [people]}", "people",
		"alice@example.com "+public+"\nbob@example.com "+rsaPublic)
	if _, err := p.Signer(own("git"), now); err != nil {
		t.Fatalf("the forgeries are not what they seem: %v", err)
	}
	swapped := func(from, to []byte) []byte { // the signature of one commit, the rest of another
		_, message, _ := bytes.Cut(to, []byte("\n\n"))
		head, _, _ := bytes.Cut(from, []byte("\n\n"))
		return []byte(string(head) + "\n\n" + string(message))
	}
	for _, test := range []struct {
		name   string
		object []byte
		want   string
	}{
		{"unsigned", plain, "it is not signed"},
		{"another key", foreign, "which the policy does not allow"},
		{"of another commit", swapped(other, signed), "is not of this commit"},
		{"the message changed", bytes.Replace(signed, []byte("\n\nsigned"), []byte("\n\nSigned"),
			1), "is not of this commit"},
		{"the parent changed", bytes.Replace(signed, []byte("\nparent "), []byte("\nparent 0"), 1),
			"is not of this commit"},
		{"a trailing byte", append(bytes.Clone(signed), ' '), "is not of this commit"},
		{"for files", own("file"), `is for "file", not for Git`},
		{"two headers", withHeader(signed, "gpgsig", signature), "2 headers with a signature"},
		{"a second of SHA-256", withHeader(signed, "gpgsig-sha256", signature),
			"2 headers with a signature"},
		{"in the message", append(bytes.Clone(plain), "\ngpgsig "+signature...),
			"it is not signed"},
		{"two armours", withHeader(plain, "gpgsig", signature+signature), "is malformed"},
		{"text after it", withHeader(plain, "gpgsig", signature+"more"), "is malformed"},
		{"cut", withHeader(plain, "gpgsig", signature[:len(signature)/2]), "is malformed"},
		{"garbage",
			withHeader(plain, "gpgsig",
				string(pem.EncodeToMemory(&pem.Block{Type: "SSH SIGNATURE",
					Bytes: []byte("SSHSIG garbage")}))), "is malformed"},
		{"with a PEM header",
			withHeader(plain, "gpgsig",
				string(pem.EncodeToMemory(&pem.Block{Type: "SSH SIGNATURE",
					Headers: map[string]string{"a": "b"}, Bytes: []byte("x")}))), "is malformed"},
		{"OpenPGP",
			withHeader(plain, "gpgsig",
				"-----BEGIN PGP SIGNATURE-----\n\nx\n-----END PGP SIGNATURE-----"),
			"the policy has no openPGPKeys"},
		{"gitsign", withHeader(plain, "gpgsig",
			"-----BEGIN SIGNED MESSAGE-----\nx\n-----END SIGNED MESSAGE-----"), "gitsign"},
		{"unknown", withHeader(plain, "gpgsig", "yes"), "of an unknown kind"},
		{"RSA with SHA-1", withHeader(plain, "gpgsig", legacyRSA(t, rsa, plain)),
			`invalid signature format "ssh-rsa"`},
		{"empty", nil, "it is not signed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if signer, err := p.Signer(test.object, now); err == nil ||
				!strings.Contains(err.Error(), test.want) {
				t.Errorf("signer %q, error %v, want %q", signer, err, test.want)
			}
		})
	}
	if _, err := policy(t, "{branches: [main]}").Signer(signed, now); err == nil {
		t.Error("a policy without signers accepts a signature")
	}
}

// legacyRSA signs as SSH did with SHA-1, which ssh-keygen does no longer.
func legacyRSA(t *testing.T, private string, text []byte) string {
	t.Helper()
	file, err := os.ReadFile(private)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.ParsePrivateKey(file)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha512.Sum512(text)
	magic := [6]byte{'S', 'S', 'H', 'S', 'I', 'G'}
	signature, err := signer.(ssh.AlgorithmSigner).SignWithAlgorithm(rand.Reader, ssh.Marshal(struct {
		Magic                             [6]byte
		Namespace, Reserved, Hash, Digest string
	}{magic, "git", "", "sha512", string(sum[:])}), ssh.KeyAlgoRSA)
	if err != nil {
		t.Fatal(err)
	}
	blob := ssh.Marshal(struct {
		Magic                                           [6]byte
		Version                                         uint32
		PublicKey, Namespace, Reserved, Hash, Signature string
	}{magic, 1, string(signer.PublicKey().Marshal()), "git", "", "sha512",
		string(ssh.Marshal(signature))})
	return string(pem.EncodeToMemory(&pem.Block{Type: "SSH SIGNATURE", Bytes: blob}))
}

// Keys that are too weak are refused when the policy is read.
func TestWeakKeys(t *testing.T) {
	r := newRepository(t)
	_, weak := r.sshKey("rsa", "-b", "1024")
	for name, key := range map[string]string{
		"less than 2048 bits": weak,
		"of type ssh-dss":     "ssh-dss AAAAB3NzaC1kc3MAAAADAQABAAAAAwEAAQAAAAMBAAEAAAADAQAB",
	} {
		_, err := parse("{branches: [main], allowedSigners: [people]}", "people", "a@b "+key)
		if err == nil || !strings.Contains(err.Error(), name) &&
			!strings.Contains(err.Error(), "it has no key") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
