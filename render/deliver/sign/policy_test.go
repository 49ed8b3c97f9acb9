package sign_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/armature-dev/armature/functions/images"
	"github.com/armature-dev/armature/render/deliver/sign"
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
		{Identities: []sign.Identity{{SubjectRegExp: "(?s).{1,}|me",
			Issuer: "https://id.example.com"}}},
		{Identities: []sign.Identity{{SubjectRegExp: `[\s\S]*`, Issuer: "https://id.example.com"}}},
	} {
		if _, err := sign.Verify(t.Context(), artifact, p); !errors.Is(err, sign.ErrEmptyPolicy) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	if err := (sign.Policy{Identities: []sign.Identity{{SubjectRegExp: "https://github.com/acme/.*",
		IssuerRegExp: ".*@acme.example"}}}).Check(); err != nil {
		t.Errorf("a condition is refused: %v", err)
	}
	for _, p := range []sign.Policy{
		{Identities: []sign.Identity{{Subject: "me"}}},
		{Identities: []sign.Identity{{Issuer: "https://id.example.com"}}},
		{Identities: []sign.Identity{{Subject: "me", SubjectRegExp: "m.",
			Issuer: "https://id.example.com"}}},
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
	p, err := read(head +
		"spec:\n  keys: [cosign.pub, k8s://team/keys]\n  insecureIgnoreTlog: true\n")
	if err != nil || p.Keys[0] != filepath.Join(dir, "cosign.pub") ||
		p.Keys[1] != "k8s://team/keys" || !p.IgnoreTlog {
		t.Errorf("%+v %v", p, err)
	}
	for text, why := range map[string]string{
		"":                            "is not a policy",
		head:                          "neither a key nor an identity",
		head + "spec: {}\n":           "neither a key nor an identity",
		head + "spec: {key: a.pub}\n": `spec.key: no such field`,
		"kind: VerifyPolicy\nspec: {keys: [a]}\n": "is not a policy",
		head + "spec: {keys: [a]":                 "reading the policy",
	} {
		if p, err := read(text); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %+v %v, want %q", text, p, err, why)
		}
	}
}

// A policy that a controller is given names files beside it, and needs nobody but the
// registry.
func TestParsePolicy(t *testing.T) {
	files := map[string][]byte{"a.pub": []byte("key"), "roots.pem": []byte("roots"),
		"root.json": []byte("{}")}
	const someone = "identities: [{subject: me, issuer: 'https://id.example.com'}]"
	for _, spec := range []string{
		"keys: [a.pub], insecureIgnoreTlog: true",
		"keys: [a.pub], trustedRoot: root.json",
		someone + ", trustedRoot: root.json",
		someone + ", roots: roots.pem, insecureIgnoreTlog: true, insecureIgnoreSCT: true",
	} {
		if p, err := sign.ParsePolicy([]byte(head+"spec: {"+spec+"}"), files); err != nil ||
			p.Files == nil || p.Name != "fleet" || p.Digest == "" {
			t.Errorf("%s: %+v, %v", spec, p, err)
		}
	}
	for spec, why := range map[string]string{
		"keys: [b.pub], " +
			"insecureIgnoreTlog: true": `"b.pub" is not beside the policy, which has a.pub, root.json, roots.pem`,
		"keys: [./a.pub], " +
			"insecureIgnoreTlog: true": "is not beside the policy",
		"keys: [a.pub, 'k8s://team/keys'], " +
			"insecureIgnoreTlog: true": "is not beside the policy",
		"keys: ['awskms:///alias/x'], " +
			"insecureIgnoreTlog: true": "is not beside the policy",
		"keys: ['https://example.com/a.pub'], " +
			"insecureIgnoreTlog: true": "is not beside the policy",
		"keys: [a.pub], " +
			"trustedRoot: other.json": "is not beside the policy",
		someone +
			", roots: /etc/ssl/certs/ca.pem, insecureIgnoreTlog: true, " +
			"insecureIgnoreSCT: true": "is not beside the policy",
		"keys: [a.pub]":                                          "Sigstore's public instance",
		someone + ", insecureIgnoreTlog: true":                   "Sigstore's public instance",
		someone + ", roots: roots.pem":                           "Sigstore's public instance",
		someone + ", roots: roots.pem, insecureIgnoreTlog: true": "Sigstore's public instance",
		"insecureIgnoreTlog: true":                               "neither a key nor an identity",
	} {
		if p, err := sign.ParsePolicy([]byte(head+"spec: {"+spec+"}"), files); err == nil ||
			!strings.Contains(err.Error(), why) {
			t.Errorf("%s: %+v, %v, want %q", spec, p, err, why)
		}
	}
	if _, err := sign.ParsePolicy(
		[]byte(head+"spec: {keys: [policy_test.go], insecureIgnoreTlog: true}"), nil); err == nil {
		t.Error("without files beside it, the policy reads those of the file system")
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

// An exemption lets pass the kind, field or file that it names, and nothing beside it.
func TestExemptions(t *testing.T) {
	fleet := sign.Image{Image: images.Image{Ref: "x", Group: "example.com", Kind: "Fleet",
		Field: "spec.jobs[0].image", Problem: "p"}, File: "a/b/fleet.yaml"}
	for _, c := range []struct {
		exemption sign.Exemption
		passes    bool
	}{
		{sign.Exemption{Group: "example.com", Kind: "Fleet"}, true},
		{sign.Exemption{Group: "example.com", Kind: "Fleet", Field: "spec.jobs.image"}, true},
		{sign.Exemption{Group: "example.com", Kind: "Fleet", Field: "spec.jobs"}, true},
		{sign.Exemption{Group: "example.com", Kind: "Fleet", Field: "spec.job"}, false},
		{sign.Exemption{Kind: "Fleet"}, false},
		{sign.Exemption{Group: "example.com", Kind: "Fle"}, false},
		{sign.Exemption{File: "a/b/fleet.yaml"}, true},
		{sign.Exemption{File: "a/*"}, true},
		{sign.Exemption{File: "a/"}, true},
		{sign.Exemption{File: "b"}, false},
		{sign.Exemption{File: "a/c*"}, false},
	} {
		refused := sign.VerifyImages(t.Context(), []sign.Image{fleet},
			sign.Policy{Exemptions: []sign.Exemption{c.exemption}})
		if (len(refused) == 0) != c.passes {
			t.Errorf("%+v: %v", c.exemption, refused)
		}
	}
}

// TestPolicyNames: messages name the field of a file, or the flag that the user gave.
func TestPolicyNames(t *testing.T) {
	id := func(subject, subjects, issuer, issuers string) sign.Policy {
		return sign.Policy{Identities: []sign.Identity{{Subject: subject, SubjectRegExp: subjects,
			Issuer: issuer, IssuerRegExp: issuers}}}
	}
	for _, c := range []struct {
		policy      sign.Policy
		file, flags []string
	}{
		{sign.Policy{}, []string{"keys or identities"},
			[]string{"--key", "--certificate-identity"}},
		{sign.Policy{Keys: []string{" "}}, []string{"a key is empty"}, []string{"--key is empty"}},
		{sign.Policy{Keys: []string{"a"}, Roots: "a", TrustedRoot: "b"},
			[]string{"roots and trustedRoot"}, []string{"--ca-roots and --trusted-root"}},
		{id("a@b.example", "", "", ""), []string{"identity 1: ", "issuer or issuerRegExp"},
			[]string{"--certificate-oidc-issuer or --certificate-oidc-issuer-regexp"}},
		{id("", "", "https://b.example", ""), []string{"identity 1: ", "subject or subjectRegExp"},
			[]string{"--certificate-identity or --certificate-identity-regexp"}},
		{id("", "(", "https://b.example", ""), []string{"identity 1: subjectRegExp: "},
			[]string{"--certificate-identity-regexp: "}},
		{id("a@b.example", "", "", ".*"),
			[]string{`identity 1: issuerRegExp ".*" matches everybody`},
			[]string{`--certificate-oidc-issuer-regexp ".*" matches everybody`}},
	} {
		for _, flags := range []bool{false, true} {
			p, want := c.policy, c.file
			if p.Flags = flags; flags {
				want = c.flags
			}
			err := p.Check()
			for _, part := range want {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("flags %t: have %v, want %q", flags, err, part)
				}
			}
			if flags && err != nil && strings.Contains(err.Error(), "RegExp") {
				t.Errorf("a field in place of a flag: %v", err)
			}
		}
	}
}
