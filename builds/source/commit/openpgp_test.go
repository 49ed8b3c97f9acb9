package commit_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// gpg of a home of its own, which ends with the test.
func (r *repository) gpg(in []byte, args ...string) []byte {
	r.Helper()
	return r.run(in, "gpg",
		append([]string{"--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""},
			args...)...)
}

func newKeyring(t *testing.T) *repository {
	t.Helper()
	for _, program := range []string{"gpg", "gpg-agent", "gpgconf"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed\n  hint: apt-get install gnupg", program)
		}
	}
	r := newRepository(t)
	home, err := os.MkdirTemp("", "gpg") // a socket's name has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	r.home = home
	t.Cleanup(func() {
		kill := exec.Command("gpgconf", "--kill", "all")
		kill.Env = append(os.Environ(), "GNUPGHOME="+home)
		_ = kill.Run()
		_ = os.RemoveAll(home)
	})
	return r
}

// openPGPKey makes a key, and returns its fingerprint.
func (r *repository) openPGPKey(name, kind, use, expires string) (fingerprint string) {
	r.Helper()
	r.gpg(nil, "--quick-generate-key", name, kind, use, expires)
	for line := range strings.Lines(string(r.gpg(nil, "--with-colons", "--list-keys", name))) {
		if fields := strings.Split(line, ":"); fields[0] == "fpr" {
			return fields[9]
		}
	}
	r.Fatalf("gpg made no key of %s", name)
	return ""
}

func (r *repository) export(names ...string) string {
	r.Helper()
	return string(r.gpg(nil, append([]string{"--armor", "--export"}, names...)...))
}

func withOpenPGP(fingerprint string) []string {
	return []string{"-c", "gpg.format=openpgp", "-c", "user.signingkey=" + fingerprint, "-c",
		"commit.gpgsign=true"}
}

// detach a signature of a text.
func (r *repository) detach(text []byte, options ...string) string {
	r.Helper()
	return string(r.gpg(text, append(options, "--armor", "--detach-sign")...))
}

// Commits that the real git and gpg signed count, by a primary key or a subkey.
func TestOpenPGPSigner(t *testing.T) {
	r := newKeyring(t)
	for _, key := range []struct{ kind, use, subkey string }{{"nistp256", "sign", ""},
		{"rsa2048", "sign", ""}, {"ed25519", "cert", "ed25519"}} {
		name := "Alice " + key.kind + " <alice@example.com>"
		fingerprint := r.openPGPKey(name, key.kind, key.use, "0")
		if key.subkey != "" {
			r.gpg(nil, "--quick-add-key", fingerprint, key.subkey, "sign", "0")
		}
		object := r.object(r.commit("signed by "+key.kind, withOpenPGP(fingerprint)...))
		p := policy(t, "{branches: [main], openPGPKeys: [keys.asc]}", "keys.asc", r.export(fingerprint))
		if signer, err := p.Signer(object, time.Now()); err != nil ||
			signer != name+" "+fingerprint {
			t.Errorf("%s: signer %q, error %v", key.kind, signer, err)
		}
		if _, err := p.Signer(bytes.Replace(object, []byte("\n\nsigned"), []byte("\n\nSigned"), 1),
			time.Now()); err == nil || !strings.Contains(err.Error(), "is not of this commit") {
			t.Errorf("%s: the message changed: %v", key.kind, err)
		}
	}
}

// Nothing but one signature of these bytes counts, by a key of the policy that is neither
// expired nor revoked.
func TestForgedOpenPGPSignatures(t *testing.T) {
	r := newKeyring(t)
	alice := r.openPGPKey("alice@example.com", "rsa2048", "sign", "0")
	brief := r.openPGPKey("brief@example.com", "ed25519", "sign", "1d")
	lost := r.openPGPKey("lost@example.com", "ed25519", "sign", "0")
	stranger := r.openPGPKey("mallory@example.com", "ed25519", "sign", "0")
	weak := r.openPGPKey("weak@example.com", "rsa1024", "sign", "0")
	plain := r.object(r.commit("unsigned"))
	foreign := r.object(r.commit("foreign", withOpenPGP(stranger)...))
	short := r.object(r.commit("of a key for a day", withOpenPGP(brief)...))
	compromised := r.object(r.commit("of a lost key", withOpenPGP(lost)...))
	before := r.export(lost)
	revocation, err := os.ReadFile(filepath.Join(r.home, "openpgp-revocs.d", lost+".rev"))
	if err != nil {
		t.Fatal(err)
	}
	r.gpg(bytes.Replace(revocation, []byte("\n:-----BEGIN"), []byte("\n-----BEGIN"), 1), "--import")
	all := r.export(alice, brief, lost, weak)
	p := policy(t, "{branches: [main], openPGPKeys: [keys.asc]}", "keys.asc", all)
	if _, err := policy(t, "{branches: [main], openPGPKeys: [a]}", "a", before).Signer(compromised,
		time.Now()); err != nil {
		t.Fatalf("before the revocation: %v", err)
	}
	if _, err := p.Signer(short, time.Now()); err != nil {
		t.Fatalf("before the expiry: %v", err)
	}
	signature := r.detach(plain, "--local-user", alice)
	if _, err := p.Signer(withHeader(plain, "gpgsig", signature), time.Now()); err != nil {
		t.Fatalf("the forgeries are not what they seem: %v", err)
	}
	for _, test := range []struct {
		name   string
		object []byte
		in     time.Duration
		want   string
	}{
		{"another key", foreign, 0, "which the policy does not allow"},
		{"an expired key", short, 48 * time.Hour, "is expired"},
		{"a revoked key", compromised, 0, "which is revoked"},
		{"of another commit", withHeader(plain, "gpgsig", r.detach(foreign, "--local-user", alice)),
			0, "is not of this commit"},
		{"two of them",
			withHeader(plain, "gpgsig", r.detach(plain, "--local-user", alice, "--local-user",
				brief)), 0, "several OpenPGP signatures"},
		{"two armours", withHeader(plain, "gpgsig", signature+signature), 0, "is malformed"},
		{"text after it", withHeader(plain, "gpgsig", signature+"more"), 0, "is malformed"},
		{"of text", withHeader(plain, "gpgsig",
			r.detach(plain, "--local-user", alice, "--textmode")), 0, "is malformed"},
		{"with SHA-1",
			withHeader(plain, "gpgsig", r.detach(plain, "--local-user", alice, "--digest-algo",
				"SHA1")), 0, "uses the hash SHA-1"},
		{"RSA of 1024 bits", withHeader(plain, "gpgsig", r.detach(plain, "--local-user", weak)), 0,
			"is too weak"},
		{"a whole message",
			withHeader(plain, "gpgsig",
				string(r.gpg(plain, "--armor", "--local-user", alice, "--sign"))), 0,
			"of an unknown kind"},
		{"garbage",
			withHeader(plain, "gpgsig",
				"-----BEGIN PGP SIGNATURE-----\n\naGFsbG8=\n-----END PGP SIGNATURE-----\n"), 0,
			"is malformed"},
		{"empty", withHeader(plain, "gpgsig",
			"-----BEGIN PGP SIGNATURE-----\n\n-----END PGP SIGNATURE-----\n"), 0, "is malformed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if signer, err := p.Signer(test.object, time.Now().Add(test.in)); err == nil ||
				!strings.Contains(err.Error(), test.want) {
				t.Errorf("signer %q, error %v, want %q", signer, err, test.want)
			}
		})
	}
	if _, err := policy(t, "{branches: [main], allowedSigners: [people]}", "people",
		"a@b "+someKey).Signer(foreign, time.Now()); err == nil ||
		!strings.Contains(err.Error(), "the policy has no openPGPKeys") {
		t.Errorf("a policy with SSH alone: %v", err)
	}
	// A file with a copy from before the revocation is refused, and so is one without public keys.
	for name, files := range map[string][]string{
		"occurs twice":           {"a", all, "b", before},
		"not a file of public":   {"a", "keys", "b", all},
		"reading an OpenPGP key": {"a", publicKeys("aGFsbG8="), "b", all},
	} {
		if _, err := parse("{branches: [main], openPGPKeys: [a, b]}", files...); err == nil ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	secret := string(r.gpg(nil, "--armor", "--export-secret-keys", alice))
	if _, err := parse("{branches: [main], openPGPKeys: [a]}", "a", secret); err == nil ||
		!strings.Contains(err.Error(), "not a file of public") {
		t.Errorf("a private key: %v", err)
	}
}

func publicKeys(body string) string {
	return "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n" + body +
		"\n-----END PGP PUBLIC KEY BLOCK-----\n"
}
