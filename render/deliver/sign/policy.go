// Package sign signs artifacts, says where they come from, and verifies both,
// as cosign does: what one of the two signs, the other verifies.
package sign

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render/deliver/oci"
)

// Policy says whose signature an artifact must carry. Any one of its keys and
// identities will do. The zero Policy is refused.
type Policy struct {
	// Keys are public keys: a file, k8s://namespace/secret, the URI of a KMS, or
	// a URL.
	Keys []string `json:"keys,omitempty"`
	// Identities are those that certificates were issued to.
	Identities []Identity `json:"identities,omitempty"`
	// Roots is a PEM file of the authorities that issue certificates. "" is
	// sigstore's public instance, which takes the network.
	Roots string `json:"roots,omitempty"`
	// TrustedRoot is a file with a trusted root of Sigstore (JSON): certificate
	// authorities, transparency logs and timestamp authorities. With it nothing but
	// the registry is asked. It excludes Roots; "" is what Roots and sigstore's
	// public instance say.
	TrustedRoot string `json:"trustedRoot,omitempty"`
	// Provenance demands an attestation by the same keys or identities of what
	// the artifact was rendered from.
	Provenance bool `json:"provenance,omitempty"`
	// Builds says how an image must have been built. nil makes no demand.
	Builds *Builds `json:"builds,omitempty"`
	// Exemptions are what a judgement of images lets pass.
	Exemptions []Exemption `json:"exemptions,omitempty"`
	// UnknownKinds says what becomes of objects of kinds whose fields Armature does not
	// know: Guess, or Refuse. "" is Guess.
	UnknownKinds UnknownKinds `json:"unknownKinds,omitempty"`
	// IgnoreTlog does without the proof that a signature is in the
	// transparency log; for certificates it means that they must be valid now.
	IgnoreTlog bool `json:"insecureIgnoreTlog,omitempty"`
	// IgnoreSCT does without the proof that a certificate is in the
	// certificate transparency log, which private authorities do not give.
	IgnoreSCT bool `json:"insecureIgnoreSCT,omitempty"`

	File       `json:"-"`
	oci.Access `json:"-"`
	// Files has what Keys, Roots and TrustedRoot name, where the policy is not one of
	// the file system's. nil means that they are files, URLs and so on.
	Files map[string][]byte `json:"-"`
}

// File identifies the file of a policy, for a summary, or says that there is none.
type File struct {
	// Name is metadata.name, and Digest "sha256:…" of the text. They are "" where there is
	// none.
	Name, Digest string
	// Flags says that the settings are those of flags, which messages then name.
	Flags bool
}

// UnknownKinds is what a policy says of kinds that Armature does not know.
type UnknownKinds string

// What becomes of objects of kinds that Armature does not know.
const (
	// Guess takes a field for an image where its name and value look like those of one.
	Guess UnknownKinds = "guess"
	// Refuse refuses them, unless an exemption names their kind.
	Refuse UnknownKinds = "refuse"
)

// Exemption lets images pass that are refused or cannot be judged. It names either
// a kind of objects or files.
type Exemption struct {
	// Group and Kind are those of objects; the group of Kubernetes' core is "".
	Group string `json:"group,omitempty"`
	Kind  string `json:"kind,omitempty"`
	// Field is a path such as spec.steps.image, without indices: of it and of all below it
	// nothing is judged. "" is the whole object.
	Field string `json:"field,omitempty"`
	// File is a path in the package, or a pattern as in path.Match. A folder covers what
	// is below it.
	File string `json:"file,omitempty"`
}

// Identity is whom a certificate was issued to, and by whose word. Of each
// pair one is given.
type Identity struct {
	// Subject is an email address or URI; SubjectRegExp has to match all of it.
	Subject       string `json:"subject,omitempty"`
	SubjectRegExp string `json:"subjectRegExp,omitempty"`
	// Issuer is the OpenID provider; IssuerRegExp has to match all of it.
	Issuer       string `json:"issuer,omitempty"`
	IssuerRegExp string `json:"issuerRegExp,omitempty"`
}

// ErrEmptyPolicy is a policy that demands neither key nor identity.
var ErrEmptyPolicy = errors.New("the policy demands neither a key nor an identity, so that " +
	"anybody's signature would be accepted: name keys or identities")

// called is how the user knows a field: by its name, or by that of the flag.
func (p Policy) called(field, flag string) string {
	if p.Flags {
		return "--" + flag
	}
	return field
}

// Check finds what is wrong with a policy.
func (p Policy) Check() error {
	if len(p.Keys)+len(p.Identities) == 0 {
		if p.Flags {
			return fmt.Errorf("give --key or --certificate-identity: %w", ErrEmptyPolicy)
		}
		return ErrEmptyPolicy
	}
	for _, key := range p.Keys {
		if strings.TrimSpace(key) == "" {
			return fmt.Errorf("%s is empty: %w", p.called("a key", "key"), ErrEmptyPolicy)
		}
	}
	if p.Builds != nil {
		if err := p.Builds.Check(); err != nil {
			return err
		}
	}
	if p.Roots != "" && p.TrustedRoot != "" {
		return fmt.Errorf("%s and %s both say whose certificates count: name one of them",
			p.called("roots", "ca-roots"), p.called("trustedRoot", "trusted-root"))
	}
	if k := p.UnknownKinds; k != "" && k != Guess && k != Refuse {
		return fmt.Errorf("unknownKinds is %q: write %s or %s", k, Guess, Refuse)
	}
	for i, e := range p.Exemptions {
		if _, err := path.Match(e.File, ""); err != nil || (e.File == "") == (e.Kind == "") ||
			e.File != "" && e.Group+e.Field != "" {
			return fmt.Errorf(
				"exemption %d needs a kind, with its group and perhaps a field, or a file", i+1)
		}
	}
	for i, id := range p.Identities {
		at := ""
		if !p.Flags {
			at = fmt.Sprintf("identity %d: ", i+1)
		}
		for _, of := range [...]struct{ field, flag, exact, pattern string }{
			{"subject", "certificate-identity", id.Subject, id.SubjectRegExp},
			{"issuer", "certificate-oidc-issuer", id.Issuer, id.IssuerRegExp},
		} {
			named := p.called(of.field+"RegExp", of.flag+"-regexp")
			if (of.exact == "") == (of.pattern == "") {
				return fmt.Errorf("%sgive either %s or %s", at, p.called(of.field, of.flag), named)
			}
			if _, err := regexp.Compile(of.pattern); err != nil {
				return fmt.Errorf("%s%s: %w", at, named, err)
			}
			all := regexp.MustCompile(whole(of.pattern)) // it compiles without the anchors
			if of.pattern != "" && !slices.ContainsFunc(strangers,
				func(who string) bool { return !all.MatchString(who) }) {
				return fmt.Errorf("%s%s %q matches everybody: %w", at, named, of.pattern,
					ErrEmptyPolicy)
			}
		}
	}
	return nil
}

// strangers have nothing in common: a pattern that all of them match restricts nothing.
var strangers = []string{"x", "a@b.example", "https://c.example/d?e=f#g", "spiffe://h/i"}

// OfPackages is the policy for rendered packages: Builds, Exemptions and UnknownKinds are
// about images.
func (p Policy) OfPackages() Policy {
	p.Builds, p.Exemptions, p.UnknownKinds = nil, nil, ""
	return p
}

// policyFile is a policy in YAML.
type policyFile struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata,omitempty"`
	Spec       Policy         `json:"spec"`
}

// ReadPolicy reads a file with a VerifyPolicy (apiVersion armature.dev/v1alpha1),
// whose spec is a Policy. Unknown fields are errors, and so is an empty policy.
// Files that it names are relative to its folder.
func ReadPolicy(file string) (Policy, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return Policy{}, fmt.Errorf("reading the policy: %w", err)
	}
	p, err := parse(data, file)
	if err != nil {
		return Policy{}, err
	}
	beside := func(name string) string {
		if name == "" || strings.Contains(name, "://") || filepath.IsAbs(name) {
			return name
		}
		return filepath.Join(filepath.Dir(file), name)
	}
	for i, key := range p.Keys {
		p.Keys[i] = beside(key)
	}
	p.Roots = beside(p.Roots)
	p.TrustedRoot = beside(p.TrustedRoot)
	return p, nil
}

// ParsePolicy reads a VerifyPolicy that a controller is given: keys, roots and trusted
// root are among files, by their names there, and no server but the registry may be needed
// to judge by it.
func ParsePolicy(data []byte, files map[string][]byte) (Policy, error) {
	p, err := parse(data, "policy.yaml")
	if err != nil {
		return Policy{}, err
	}
	p.Files = maps.Clone(files)
	if p.Files == nil {
		p.Files = map[string][]byte{}
	}
	for _, name := range append(slices.Clone(p.Keys), p.Roots, p.TrustedRoot) {
		if name == "" {
			continue
		}
		if _, err := p.file(name); err != nil {
			return Policy{}, err
		}
	}
	if p.TrustedRoot == "" && p.public() {
		return Policy{}, errors.New("policy.yaml needs Sigstore's public instance: set " +
			"trustedRoot, or insecureIgnoreTlog, and for identities roots and insecureIgnoreSCT")
	}
	return p, nil
}

// public reports whether a policy without a trusted root needs that of Sigstore's public instance.
func (p Policy) public() bool {
	return !p.IgnoreTlog || len(p.Identities) > 0 && (p.Roots == "" || !p.IgnoreSCT)
}

// file reads a file that the policy names.
func (p Policy) file(name string) ([]byte, error) {
	if p.Files == nil {
		return os.ReadFile(name)
	}
	data, ok := p.Files[name]
	if !ok {
		return nil, fmt.Errorf("%q is not beside the policy, which has %s", name,
			strings.Join(slices.Sorted(maps.Keys(p.Files)), ", "))
	}
	return data, nil
}

// parse reads a VerifyPolicy.
func parse(data []byte, file string) (Policy, error) {
	var p policyFile
	text, err := yaml.YAMLToJSONStrict(data)
	if err == nil {
		err = krm.UnmarshalStrict(text, &p)
	}
	if err != nil {
		return Policy{}, fmt.Errorf("reading the policy %s: %w", file, err)
	}
	if p.APIVersion != keys.V1alpha1 || p.Kind != "VerifyPolicy" {
		return Policy{}, fmt.Errorf(
			"%s: %q %q is not a policy: write apiVersion: %s and kind: VerifyPolicy", file,
			p.APIVersion, p.Kind, keys.V1alpha1)
	}
	if err := p.Spec.Check(); err != nil {
		return Policy{}, fmt.Errorf("%s: %w", file, err)
	}
	p.Spec.Name, _ = p.Metadata["name"].(string)
	p.Spec.Digest = fmt.Sprintf("sha256:%x", sha256.Sum256(data))
	return p.Spec, nil
}
