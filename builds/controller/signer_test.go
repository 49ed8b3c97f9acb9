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

	"github.com/google/go-containerregistry/pkg/name"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/render/sign"
	"github.com/armature-dev/armature/render/sign/signtest"
)

// kmsFolder is on the PATH, for the programs of KMSs.
var kmsFolder string

var kmsProgram = sync.OnceValue(func() error { return signtest.BuildKMS(kmsFolder, "testkms") })

// kms gives a key of a KMS, and its public half in PEM.
func (w *world) kms() (key string, public []byte) {
	w.Helper()
	w.must(kmsProgram())
	file := filepath.Join(w.TempDir(), "key.pem")
	public, err := signtest.NewKey(file)
	w.must(err)
	return "testkms://" + file, public
}

// script makes a KMS of a shell script, and gives a key of it. The script's file changes at once.
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
	w.options.AttestKey, public = w.kms()
	w.start()
	w.create("weather", s.sold)
	run := w.run(1)
	digest := s.push(t, "weather:v1")
	w.play(run, digest)
	b := w.phase("weather", api.PhaseSucceeded)
	s.once(t, "weather", digest)
	block, _ := pem.Decode(public)
	half := sha256.Sum256(block.Bytes)
	if by := b.Status.Attestation.Signer; by == nil || *by != (api.AttestationSigner{PublicKey: "sha256:" + hex.EncodeToString(half[:])}) {
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
	w.options.AttestKey = "absent" + w.namespace + "://key"
	w.start()
	w.create("weather", s.sold)
	b := w.phase("weather", api.PhaseFailed)
	if c := condition(b, api.ConditionReady); c.Reason != api.ReasonAttestKeyMissing || !strings.Contains(c.Message, "sigstore-kms-absent"+w.namespace) || len(w.runs()) != 0 {
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
			w.options.AttestKey = w.script(what+w.namespace, strings.Replace(script, "%s", file, 1)) + strings.TrimPrefix(good, "testkms://")
			w.start()
			w.create("weather", s.sold)
			digest := s.push(t, "weather:v1")
			w.play(w.runOf("weather"), digest)
			w.eventually("the build says that it waits", func() string {
				c := condition(w.build("weather"), api.ConditionAttested)
				if c.Reason != api.ReasonRetrying || c.Status != metav1.ConditionUnknown || !strings.Contains(c.Message, "the platform's key does not sign") || strings.Contains(c.Message, "token") {
					return c.Reason + " " + c.Message
				}
				return ""
			})
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
	w.options.AttestKey = w.script("hangs"+w.namespace, "touch "+begun+"; sleep 1000") + "key"
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
	w.eventually("the build says that it waits", func() string { return reason(w.build("weather"), api.ReasonRetrying) })
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
			w.options.AttestKey, _ = w.kms()
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
