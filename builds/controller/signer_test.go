package controller_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest/attester"
	"github.com/armature-dev/armature/render/deliver/sign"
	"github.com/armature-dev/armature/render/deliver/sign/signtest"
)

// kmsFolder is on the PATH, for the programs of KMSs.
var kmsFolder string

var kmsProgram = sync.OnceValue(func() error { return signtest.BuildKMS(kmsFolder, "testkms") })

// kms returns a key of a KMS, and its public half in PEM.
func (w *world) kms() (key string, public []byte) {
	w.Helper()
	w.must(kmsProgram())
	file := filepath.Join(w.TempDir(), "key.pem")
	public, err := signtest.NewKey(file)
	w.must(err)
	return "testkms://" + file, public
}

// script makes a KMS of a shell script, and returns a key of it. The script's file changes at once.
func (w *world) script(named, text string) (key string) {
	w.Helper()
	file := filepath.Join(kmsFolder, "sigstore-kms-"+named)
	w.must(os.WriteFile(file+".new", []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	w.must(os.Rename(file+".new", file))
	return named + "://"
}

// A build is attested with a key of a KMS: whoever has the public half verifies it, and the
// status says whose signature it is.
func TestAttestedByKMS(t *testing.T) {
	w, s := newWorld(t), newShop(t, true)
	var public []byte
	w.options.Attest.Key, public = w.kms()
	w.start()
	w.create("weather", s.sold)
	run := w.run(1)
	digest := s.push(t, "weather:v1")
	w.play(run, digest)
	b := w.phase("weather", api.PhaseSucceeded)
	s.once(t, "weather", digest)
	block, _ := pem.Decode(public)
	half := sha256.Sum256(block.Bytes)
	if by := b.Status.Attestation.Signer; by == nil ||
		*by != (api.AttestationSigner{PublicKey: "sha256:" + hex.EncodeToString(half[:])}) {
		t.Errorf("signer %+v", by)
	}
	artifact := s.ref(t, "weather@"+digest).(name.Digest)
	p := s.policy(t, b.Status.Attestation.BuilderID)
	if _, err := sign.Verify(t.Context(), artifact, p); err == nil {
		t.Error("the key in the Secret signed")
	}
	w.must(os.WriteFile(p.Keys[0], public, 0o600))
	if _, err := sign.Verify(t.Context(), artifact, p); err != nil {
		t.Error(err)
	}
}

// Without the program of its KMS no attested build runs, and the build says what the
// platform has to do.
func TestNoKMSProgram(t *testing.T) {
	w, s := newWorld(t), newShop(t, true)
	w.options.Attest.Key = "absent" + w.namespace + "://key"
	w.start()
	w.create("weather", s.sold)
	b := w.phase("weather", api.PhaseFailed)
	if c := condition(b, api.ConditionReady); c.Reason != api.ReasonAttestKeyMissing ||
		!strings.Contains(c.Message, "sigstore-kms-absent"+w.namespace) || len(w.runs()) != 0 {
		t.Errorf("%d runs, condition %+v", len(w.runs()), c)
	}
}

// A KMS that fails, hangs or prints without end delays what it has to sign and nothing else.
// Its words do not reach the status, and when it signs again the build goes on.
func TestFailingKMS(t *testing.T) {
	for what, script := range map[string]string{
		"fails":   `echo '{"errorMessage":"token-of-the-platform"}'; exit 1`,
		"endless": "yes token-of-the-platform",
		"garbage": `echo '{"publicKey":{"publicKeyPEM":"'$(base64 -w0 <%s)'"},"signMessage":{"signature":"dG9rZW4="}}'`,
	} {
		t.Run(what, func(t *testing.T) {
			w, s := newWorld(t), newShop(t, true)
			good, public := w.kms()
			file := filepath.Join(t.TempDir(), "public.pem")
			w.must(os.WriteFile(file, public, 0o600))
			w.options.Attest.Key = w.script(what+w.namespace,
				strings.Replace(script, "%s", file, 1)) + strings.TrimPrefix(good, "testkms://")
			w.start()
			w.create("weather", s.sold)
			digest := s.push(t, "weather:v1")
			w.play(w.runOf("weather"), digest)
			w.attestWaits("the platform's key does not sign", "token")
			s.nothing(t, "weather", digest)
			w.create("other")
			w.succeed(w.runOf("other"))
			w.phase("other", api.PhaseSucceeded)
			w.script(what+w.namespace, "exec "+kmsFolder+`/sigstore-kms-testkms "$@"`)
			w.phase("weather", api.PhaseSucceeded)
			s.once(t, "weather", digest)
		})
	}
}

// A KMS that hangs delays what it has to sign, and no other build.
func TestHangingKMS(t *testing.T) {
	w, s := newWorld(t), newShop(t, true)
	begun := filepath.Join(t.TempDir(), "begun")
	w.options.Attest.Key = w.script("hangs"+w.namespace, "touch "+begun+"; sleep 1000") + "key"
	w.start()
	w.create("weather", s.sold)
	digest := s.push(t, "weather:v1")
	w.play(w.runOf("weather"), digest)
	w.eventually("the KMS is asked", func() string {
		if _, err := os.Stat(begun); err != nil {
			return err.Error()
		}
		return ""
	})
	w.create("other")
	w.succeed(w.runOf("other"))
	w.phase("other", api.PhaseSucceeded)
	w.eventually("the build says that it waits",
		func() string { return reason(w.build("weather"), api.ReasonRetrying) })
	s.nothing(t, "weather", digest)
}

func reason(b *api.AgentBuild, want string) string {
	if c := condition(b, api.ConditionAttested); c.Reason != want {
		return c.Reason + " " + c.Message
	}
	return ""
}

// What a tenant writes where a run's signatures are kept changes nothing of what is
// attached.
func TestForgedKeptSignatures(t *testing.T) {
	for _, forged := range []string{"null", "{", `{"x":"eA=="}`, strings.Repeat("x", 200<<10)} {
		t.Run(forged[:1], func(t *testing.T) {
			w, s := newWorld(t), newShop(t, true)
			w.options.Attest.Key, _ = w.kms()
			w.start()
			w.create("weather", s.sold)
			run := w.runOf("weather")
			before := run.DeepCopy()
			run.Annotations["armature.dev/signatures"] = forged
			w.must(w.Patch(t.Context(), run, client.MergeFrom(before)))
			digest := s.push(t, "weather:v1")
			w.play(run, digest)
			w.phase("weather", api.PhaseSucceeded)
			s.once(t, "weather", digest)
		})
	}
}

// keyless makes the identity of a ServiceAccount attest, and returns the authority and the file
// with the token.
func (w *world) keyless() (a *signtest.Authority, token string) {
	w.Helper()
	a = signtest.NewAuthority(w.TB)
	vouches, err := a.TrustedRoot()
	w.must(err)
	folder := w.TempDir()
	token, file := filepath.Join(folder, "token"), filepath.Join(folder, "trusted_root.json")
	w.must(os.WriteFile(token,
		[]byte(signtest.Token(systemNamespace, "armature-controller", 1)+"\n"), 0o600))
	w.must(os.WriteFile(file, vouches, 0o600))
	w.options.Attest.Keyless = attester.Keyless{Token: token, TrustedRoot: file, Fulcio: a.URL,
		Timestamps: a.Timestamps()}
	return a, token
}

// identityPolicy accepts the controller's identity.
func (w *world) identityPolicy() sign.Policy {
	return sign.Policy{IgnoreTlog: true, IgnoreSCT: true,
		TrustedRoot: w.options.Attest.Keyless.TrustedRoot, Identities: []sign.Identity{
			{Subject: signtest.Identity(systemNamespace, "armature-controller"),
				Issuer: signtest.Issuer}},
		Builds: &sign.Builds{MinimumLevel: 3, SBOM: true,
			Builders: []sign.TrustedBuilder{{ID: prodBuilder, Level: 3}}}}
}

// A build is attested by the controller's identity: whoever demands it and its issuer
// verifies that, after the certificate has ended too, and another identity is refused. The token is
// read for each run.
func TestAttestedKeyless(t *testing.T) {
	for what, referrers := range map[string]bool{"referrers": true, "no referrers": false} {
		t.Run(what, func(t *testing.T) {
			w, s := newWorld(t), newShop(t, referrers)
			a, token := w.keyless()
			a.Valid = 10 * time.Second
			w.start()
			var artifacts []name.Digest
			for i, build := range []string{"weather", "traffic"} {
				w.must(os.WriteFile(token,
					[]byte(signtest.Token(systemNamespace, "armature-controller", i)), 0o600))
				w.create(build, s.sold)
				digest := s.push(t, build+":v1")
				w.play(w.runOf(build), digest)
				b := w.phase(build, api.PhaseSucceeded)
				s.once(t, build, digest)
				want := api.AttestationSigner{Identity: signtest.Identity(systemNamespace,
					"armature-controller"), Issuer: signtest.Issuer}
				if by := b.Status.Attestation.Signer; by == nil || *by != want {
					t.Errorf("signer %+v", by)
				}
				artifacts = append(artifacts, s.ref(t, build+"@"+digest).(name.Digest))
			}
			tokens := a.Tokens()
			if first, last :=
				tokens[0],
				tokens[len(tokens)-1]; first != signtest.Token(systemNamespace,
				"armature-controller", 0) ||
				last != signtest.Token(systemNamespace, "armature-controller", 1) {
				t.Errorf("tokens %q", tokens)
			}
			time.Sleep(a.Valid + time.Second) // the certificates end
			for _, artifact := range artifacts {
				if _, err := sign.Verify(t.Context(), artifact, w.identityPolicy()); err != nil {
					t.Error(err)
				}
				for change, edit := range map[string]func(*sign.Identity){
					"ServiceAccount": func(i *sign.Identity) {
						i.Subject = signtest.Identity(w.namespace, "armature-controller")
					},
					"issuer": func(i *sign.Identity) {
						i.Issuer = "https://kubernetes.elsewhere"
					},
				} {
					p := w.identityPolicy()
					edit(&p.Identities[0])
					if _, err := sign.Verify(t.Context(), artifact, p); err == nil {
						t.Errorf("with another %s it passes", change)
					}
				}
			}
		})
	}
}

// Without a token or with a trusted root that cannot be used no attested build runs, and
// the build says so. When it is there, the build goes on.
func TestNoAttestIdentity(t *testing.T) {
	for what, file := range map[string]func(attester.Keyless) string{
		"identity token is missing": func(k attester.Keyless) string {
			return k.Token
		},
		"trusted root of its identity cannot be used: ": func(k attester.Keyless) string {
			return k.TrustedRoot
		},
	} {
		t.Run(what, func(t *testing.T) {
			w, s := newWorld(t), newShop(t, true)
			w.keyless()
			at := file(w.options.Attest.Keyless)
			text, err := os.ReadFile(at)
			w.must(err)
			w.must(os.WriteFile(at, []byte(" \n"), 0o600))
			w.start()
			w.create("weather", s.sold)
			b := w.phase("weather", api.PhaseFailed)
			if c := condition(b, api.ConditionReady); c.Reason != api.ReasonAttestIdentityMissing ||
				!strings.Contains(c.Message, what) || len(w.runs()) != 0 {
				t.Errorf("%d runs, condition %+v", len(w.runs()), c)
			}
			w.must(os.WriteFile(at, text, 0o600))
			w.run(1)
		})
	}
}

// An authority that refuses, or that the trusted root does not vouch for, delays what is to
// be signed. Nothing is attached, and neither its words nor the token reach the status.
func TestFailingAuthority(t *testing.T) {
	for what, fail := range map[string]func(*world, *signtest.Authority) (restore func()){
		"refuses": func(_ *world, a *signtest.Authority) func() {
			text := "words of the authority"
			a.Down.Store(&text)
			return func() { a.Down.Store(nil) }
		},
		"is another": func(w *world, a *signtest.Authority) func() {
			ours, err := os.ReadFile(w.options.Attest.Keyless.TrustedRoot)
			w.must(err)
			theirs, err := signtest.NewAuthority(w.TB).TrustedRoot()
			w.must(err)
			w.must(os.WriteFile(w.options.Attest.Keyless.TrustedRoot, theirs, 0o600))
			return func() {
				w.must(os.WriteFile(w.options.Attest.Keyless.TrustedRoot, ours, 0o600))
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			w, s := newWorld(t), newShop(t, true)
			a, _ := w.keyless()
			restore := fail(w, a)
			w.start()
			w.create("weather", s.sold)
			digest := s.push(t, "weather:v1")
			w.play(w.runOf("weather"), digest)
			w.attestWaits("the platform's identity does not sign", "words")
			s.nothing(t, "weather", digest)
			restore()
			w.phase("weather", api.PhaseSucceeded)
			s.once(t, "weather", digest)
		})
	}
}
