package sign_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/armature-dev/armature/render/deliver/sign"
	"github.com/armature-dev/armature/render/deliver/sign/signtest"
)

// kmsFolder has the program for keys of testkms://, which the first test that needs it builds.
var (
	kmsFolder  string
	kmsProgram = sync.OnceValue(func() (err error) {
		if kmsFolder, err = os.MkdirTemp("", "armature-kms-"); err != nil {
			return err
		}
		return signtest.BuildKMS(kmsFolder, "testkms")
	})
)

func TestMain(m *testing.M) {
	code := m.Run()
	if kmsFolder != "" {
		_ = os.RemoveAll(kmsFolder)
	}
	os.Exit(code)
}

// kms puts a program for keys of testkms:// on the PATH, and returns the name of a key and the file
// of its public half.
func (f *fixture) kms() (key, public string) {
	f.Helper()
	if err := kmsProgram(); err != nil {
		f.Fatal(err)
	}
	f.Setenv("PATH", kmsFolder+string(os.PathListSeparator)+os.Getenv("PATH"))
	file := filepath.Join(f.dir, "kms.pem")
	half, err := signtest.NewKey(file)
	if err != nil {
		f.Fatal(err)
	}
	return "testkms://" + file, f.write("kms.pub", half)
}

// What a key of a KMS signs, its public half and the KMS itself verify, and it is
// attached once although each signature is another.
func TestKMS(t *testing.T) {
	f := setup(t)
	key, public := f.kms()
	f.sign(sign.Signer{Key: key})
	f.sign(sign.Signer{Key: key})
	if s, a, b := f.attachments(); s != 0 || a != 0 || b != 2 {
		t.Errorf("%d signatures, %d attestations, %d bundles, want 0, 0, 2", s, a, b)
	}
	_, other := f.key("other")
	for _, of := range []string{public, key} {
		p := local(of)
		p.Provenance = true
		if _, err := sign.Verify(t.Context(), f.artifact, p); err != nil {
			t.Errorf("%s: %v", of, err)
		}
	}
	f.refused(local(other), "could not verify envelope")
	if _, err := (sign.Signer{Key: "testkms:///nowhere"}).Open(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "no such file") {
		t.Errorf("the program's own words are missing: %v", err)
	}
}

// A key that the KMS replaced is noticed when it signs, and opening it again helps.
func TestKMSKeyReplaced(t *testing.T) {
	f := setup(t)
	key, _ := f.kms()
	opened, err := sign.OpenKMS(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	public, err := signtest.NewKey(strings.TrimPrefix(key, "testkms://"))
	if err != nil {
		t.Fatal(err)
	}
	session, err := sign.Signer{Opened: opened}.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := session.Sign(t.Context(), f.artifact); !errors.As(err, new(*sign.KeyError)) ||
		!strings.Contains(err.Error(), "not of the public key") {
		t.Errorf("%v", err)
	}
	if s, _, b := f.attachments(); s+b != 0 {
		t.Errorf("%d signatures and %d bundles of a key that nobody knows", s, b)
	}
	if opened, err = sign.OpenKMS(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	f.sign(sign.Signer{Opened: opened})
	if _, err := sign.Verify(t.Context(), f.artifact,
		local(f.write("new.pub", public))); err != nil {
		t.Error(err)
	}
}

// A program that hangs, prints without end or answers nonsense ends with its children, in
// time, and what it says is bounded.
func TestHostileKMS(t *testing.T) {
	f := setup(t)
	f.Setenv("PATH", f.dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	child := filepath.Join(f.dir, "child")
	for what, test := range map[string]struct{ script, want string }{
		"hangs":       {"sleep 1000", "in time"},
		"child":       {"sleep 1000 & echo $! >" + child + "; sleep 1000", "in time"},
		"endless":     {"yes", "prints more than"},
		"stubborn":    {"trap '' PIPE; yes 2>/dev/null; sleep 1000", "prints more than"},
		"words":       {"yes >&2 & sleep 1; kill $!; exit 1", "exit status 1"},
		"fails":       {"echo no entry >&2; exit 1", "no entry"},
		"silent":      {"exit 0", "no answer"},
		"nonsense":    {"echo '[]'", "no answer"},
		"another":     {`echo '{"defaultAlgorithm":{"defaultAlgorithm":"x"}}'`, "no public key"},
		"not-a-key":   {`echo '{"publicKey":{"publicKeyPEM":"eA=="}}'`, "reading the public key"},
		"error-first": {`echo '{"errorMessage":"the KMS is closed"}'; exit 1`, "the KMS is closed"},
	} {
		if err := os.WriteFile(filepath.Join(f.dir, "sigstore-kms-"+what),
			[]byte("#!/bin/sh\n"+test.script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if test.want == "in time" { // do not wait for kmsTime
			cancel()
			ctx, cancel = context.WithTimeout(t.Context(), 3*time.Second)
		}
		_, err := sign.OpenKMS(ctx, what+"://key")
		cancel()
		if err == nil || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 4<<10 {
			t.Errorf("%s: %.200v, want %q", what, err, test.want)
		}
	}
	pid, err := os.ReadFile(child)
	if err != nil {
		t.Fatal(err)
	}
	for range 600 {
		state, err := exec.Command("ps", "-o", "stat=", "-p", strings.TrimSpace(string(pid))).Output()
		// ended, whether or not somebody asked how
		if err != nil || strings.HasPrefix(string(state), "Z") {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("the child %s of a program that was ended runs on", pid)
}

// Other names of keys and names that would lead to another folder name no program.
func TestKMSProgram(t *testing.T) {
	for key, want := range map[string]string{
		"awskms:///alias/attest": "sigstore-kms-awskms", "my-hsm://a": "sigstore-kms-my-hsm",
		"k8s://a/b": "", "env://KEY": "", "https://host/key": "", "cosign.key": "", "../x://a": "",
		"a/../../tmp/x://a": "", "x://": "", "X://a": "", "-x://a": "",
	} {
		if got := sign.KMSProgram(key); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
}

// shelf keeps signatures for several sessions.
type shelf struct {
	sync.Mutex
	kept map[string][]byte
}

func (s *shelf) keep(_ context.Context, name string, made []byte,
	valid func([]byte) bool) ([]byte, error) {
	s.Lock()
	defer s.Unlock()
	if have := s.kept[name]; have != nil && valid(have) {
		return have, nil
	}
	if made != nil {
		s.kept[name] = made
	}
	return made, nil
}

// Those who sign the same with one KMS at the same time attach one signature of each kind. What
// is kept and not valid does not count.
func TestKeptSignatures(t *testing.T) {
	f := setup(t)
	key, public := f.kms()
	s := &shelf{kept: map[string][]byte{}}
	var all sync.WaitGroup
	errs := make(chan error, 4)
	for range 4 {
		all.Add(1)
		go func() {
			defer all.Done()
			session, err := sign.Signer{Key: key, Keep: s.keep}.Open(t.Context())
			if err == nil {
				_, err = session.Attest(t.Context(), f.artifact, sign.PredicateType, provenance)
			}
			errs <- err
		}()
	}
	all.Wait()
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if len(s.kept) != 1 {
		t.Errorf("%d signatures are kept", len(s.kept))
	}
	if _, _, b := f.attachments(); b != 1 {
		t.Errorf("%d bundles, want one", b)
	}
	for name := range s.kept {
		s.kept[name] = []byte(fmt.Sprintf(`{"signature":%q}`, "Zm9yZ2Vk"))
	}
	f.artifact = f.push("second")
	f.sign(sign.Signer{Key: key, Keep: s.keep})
	if _, err := sign.Verify(t.Context(), f.artifact, local(public)); err != nil {
		t.Error(err)
	}
}
