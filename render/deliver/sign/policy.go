// Package sign signs artifacts, attests their origin, and verifies both. It is interoperable with
// cosign: each verifies what the other signs.
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

// Policy specifies whose signature an artifact must carry. Any one of its keys and identities will
// do. The zero Policy is refused.
type Policy struct {
	// Keys are public keys: a file, k8s://namespace/secret, the URI of a KMS, or a URL.
	Keys []string `json:"keys,omitempty"`
	// Identities are the subjects of accepted certificates.
	Identities []Identity `json:"identities,omitempty"`
	// Roots is a PEM file of the authorities that issue certificates. "" is Sigstore's public
	// instance, which needs the network.
	Roots string `json:"roots,omitempty"`
	// TrustedRoot is a file with a trusted root of Sigstore (JSON): certificate authorities,
	// transparency logs and timestamp authorities. With it, only the registry is contacted. It
	// excludes Roots. "" means Roots, or Sigstore's public instance.
	TrustedRoot string `json:"trustedRoot,omitempty"`
	// Provenance requires an attestation, by the same keys or identities, of the sources of the
	// artifact.
	Provenance bool `json:"provenance,omitempty"`
	// Builds are the requirements for the build of an image; nil has none.
	Builds *Builds `json:"builds,omitempty"`
	// Exemptions are images and objects that pass without a signature.
	Exemptions []Exemption `json:"exemptions,omitempty"`
	// UnknownKinds selects the treatment of objects of kinds whose fields Armature does not know:
	// Guess, or Refuse. "" is Guess.
	UnknownKinds UnknownKinds `json:"unknownKinds,omitempty"`
	// IgnoreTlog accepts signatures without proof that they are in the transparency log.
	// Certificates must then be valid now.
	IgnoreTlog bool `json:"insecureIgnoreTlog,omitempty"`
	// IgnoreSCT accepts certificates without proof that they are in the certificate transparency
	// log. Private authorities issue none.
	IgnoreSCT bool `json:"insecureIgnoreSCT,omitempty"`

	File       `json:"-"`
	oci.Access `json:"-"`
	// Files contains the files that Keys, Roots and TrustedRoot name, if the policy does not come
	// from the file system. nil means that they are files, URLs and so on.
	Files map[string][]byte `json:"-"`
}

// File identifies the file of a policy, for a summary. It is empty without a file.
type File struct {
	// Name is metadata.name, and Digest "sha256:…" of the text. They are "" if there is none.
	Name, Digest string
	// Flags means that the settings come from flags, which messages then name.
	Flags bool
}

// UnknownKinds is the treatment of kinds that Armature does not know.
type UnknownKinds string

// Values of UnknownKinds.
const (
	// Guess treats a field as an image if its name and value look like an image.
	Guess UnknownKinds = "guess"
	// Refuse refuses objects of such kinds unless an exemption names the kind.
	Refuse UnknownKinds = "refuse"
)

// Exemption lets images pass that are refused or cannot be verified. It names either a kind of
// objects or files.
type Exemption struct {
	// Group and Kind of objects. The group of Kubernetes' core is "".
	Group string `json:"group,omitempty"`
	Kind  string `json:"kind,omitempty"`
	// Field is a path such as spec.steps.image, without indices. The field and all fields below it
	// are not verified. "" is the whole object.
	Field string `json:"field,omitempty"`
	// File is a path in the package, or a pattern as in path.Match. A folder covers the files below
	// it.
	File string `json:"file,omitempty"`
}

// Identity is the subject and the issuer of a certificate. One of each pair is set.
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

// called returns the name by which the user knows a field: the field, or its flag.
func (p Policy) called(field, flag string) string {
	if p.Flags {
		return "--" + flag
	}
	return field
}

// Check returns an error if the policy is invalid.
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
			if of.pattern != "" && !slices.ContainsFunc(unrelated,
				func(subject string) bool { return !all.MatchString(subject) }) {
				return fmt.Errorf("%s%s %q matches everybody: %w", at, named, of.pattern,
					ErrEmptyPolicy)
			}
		}
	}
	return nil
}

// unrelated are subjects that have nothing in common: a pattern that matches all of them restricts
// nothing.
var unrelated = []string{"x", "a@b.example", "https://c.example/d?e=f#g", "spiffe://h/i"}

// OfPackages returns the policy for rendered packages, without Builds, Exemptions and UnknownKinds,
// which apply to images.
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

// ReadPolicy reads a file with a VerifyPolicy (apiVersion armature.dev/v1alpha1), whose spec is a
// Policy. Unknown fields and an empty policy are errors. Files that it names are relative to its
// folder.
func ReadPolicy(file string) (Policy, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return Policy{}, fmt.Errorf("reading the policy: %w", err)
	}
	p, err := parse(data, file)
	if err != nil {
		return Policy{}, err
	}
	resolve := func(name string) string {
		if name == "" || strings.Contains(name, "://") || filepath.IsAbs(name) {
			return name
		}
		return filepath.Join(filepath.Dir(file), name)
	}
	for i, key := range p.Keys {
		p.Keys[i] = resolve(key)
	}
	p.Roots = resolve(p.Roots)
	p.TrustedRoot = resolve(p.TrustedRoot)
	return p, nil
}

// ParsePolicy parses a VerifyPolicy that is given to a controller. Keys, roots and the trusted root
// are names in files. Verifying with the policy must need no server other than the registry.
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

// public reports whether a policy without a trusted root needs the root of Sigstore's public
// instance.
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

// parse parses a VerifyPolicy.
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
