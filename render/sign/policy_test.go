package sign_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/armature-dev/armature/render/sign"
)

// A policy that trusts everybody is refused, before the registry is asked.
func TestEmptyPolicies(t *testing.T) {
	artifact, err := name.NewDigest("registry.invalid/fleet@sha256:" + strings.Repeat("0", 64))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []sign.Policy{
		{},
		{IgnoreTlog: true, Provenance: true, Roots: "roots.pem"},
		{Keys: []string{""}},
		{Keys: []string{" "}},
		{Identities: []sign.Identity{{SubjectRegExp: ".*", Issuer: "https://id.example.com"}}},
		{Identities: []sign.Identity{{Subject: "me", IssuerRegExp: "^.+$"}}},
		{Identities: []sign.Identity{{SubjectRegExp: ".*.*", Issuer: "https://id.example.com"}}},
		{Identities: []sign.Identity{{SubjectRegExp: "(?s).{1,}|me", Issuer: "https://id.example.com"}}},
		{Identities: []sign.Identity{{SubjectRegExp: `[\s\S]*`, Issuer: "https://id.example.com"}}},
	} {
		if _, err := sign.Verify(t.Context(), artifact, p); !errors.Is(err, sign.ErrEmptyPolicy) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	if err := (sign.Policy{Identities: []sign.Identity{{SubjectRegExp: "https://github.com/acme/.*", IssuerRegExp: ".*@acme.example"}}}).Check(); err != nil {
		t.Errorf("a condition is refused: %v", err)
	}
	for _, p := range []sign.Policy{
		{Identities: []sign.Identity{{Subject: "me"}}},
		{Identities: []sign.Identity{{Issuer: "https://id.example.com"}}},
		{Identities: []sign.Identity{{Subject: "me", SubjectRegExp: "m.", Issuer: "https://id.example.com"}}},
		{Identities: []sign.Identity{{SubjectRegExp: "(", Issuer: "https://id.example.com"}}},
	} {
		if err := p.Check(); err == nil {
			t.Errorf("%+v is taken", p)
		}
	}
}

const head = "apiVersion: armature.dev/v1alpha1\nkind: VerifyPolicy\nmetadata:\n  name: fleet\n"

// policy reads a VerifyPolicy with a spec.
func policy(t *testing.T, spec string) (sign.Policy, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(head+spec), 0o600); err != nil {
		t.Fatal(err)
	}
	return sign.ReadPolicy(file)
}

func TestPolicyFile(t *testing.T) {
	dir := t.TempDir()
	read := func(text string) (sign.Policy, error) {
		file := filepath.Join(dir, "policy.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return sign.ReadPolicy(file)
	}
	p, err := read(head + "spec:\n  keys: [cosign.pub, k8s://team/keys]\n  insecureIgnoreTlog: true\n")
	if err != nil || p.Keys[0] != filepath.Join(dir, "cosign.pub") || p.Keys[1] != "k8s://team/keys" || !p.IgnoreTlog {
		t.Errorf("%+v %v", p, err)
	}
	for text, why := range map[string]string{
		"":                            "is not a policy",
		head:                          "neither a key nor an identity",
		head + "spec: {}\n":           "neither a key nor an identity",
		head + "spec: {key: a.pub}\n": `unknown field "key"`,
		"kind: VerifyPolicy\nspec: {keys: [a]}\n": "is not a policy",
		head + "spec: {keys: [a]":                 "reading the policy",
	} {
		if p, err := read(text); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %+v %v, want %q", text, p, err, why)
		}
	}
}

// TestMissingKey finds a misspelt key without asking the transparency log.
func TestMissingKey(t *testing.T) {
	artifact, err := name.NewDigest("registry.example/a@sha256:" + strings.Repeat("0", 64))
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(t.TempDir(), "missing.pub")
	_, err = sign.Verify(t.Context(), artifact, sign.Policy{Keys: []string{key}})
	if err == nil || !strings.Contains(err.Error(), "reading the key "+key) {
		t.Errorf("%v", err)
	}
}
