// Package commit decides whether a Git commit may be built. A policy names the branches and tags
// that the commit must be reachable from, and the keys that may sign it. The package is pure: it
// reads packs and objects that its callers fetched, computes the hash of each object itself, and
// uses no clock, network or cluster.
package commit

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/api/keys"
)

// Policy is spec.source of a VerifyPolicy (apiVersion armature.dev/v1alpha1). A policy
// that demands nothing is refused.
type Policy struct {
	// Branches that the commit may be reachable from, such as main. In a pattern, '*'
	// and '?' do not match '/', and "[a-z]" is a range.
	Branches []string `json:"branches,omitempty"`
	// Tags that the commit may be reachable from, such as v*, in the same form.
	Tags []string `json:"tags,omitempty"`
	// AllowedSigners are files in the format of ssh-keygen ("ALLOWED SIGNERS"), and
	// OpenPGPKeys are files with armored public keys. If any of them is set, the commit must be
	// signed by a key of any of them. If none is set, no signature is required.
	AllowedSigners []string `json:"allowedSigners,omitempty"`
	OpenPGPKeys    []string `json:"openPGPKeys,omitempty"`

	ssh     []allowedSigner
	openPGP openpgp.EntityList
}

// policyFile is a VerifyPolicy about commits.
type policyFile struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata,omitempty"`
	Spec       struct {
		Source *Policy `json:"source"`
	} `json:"spec"`
}

// maxPatterns bounds the patterns of a policy, and maxPattern the bytes of each, since each is
// compared with each branch and tag of a repository.
const maxPatterns, maxPattern = 100, 256

// PolicyKey is the name of the file with the policy. The policy names the other files.
const PolicyKey = "policy.yaml"

// ParsePolicy parses a policy and the files that it names. files is by name. Unknown fields are
// errors, including those of policies for images and packages.
func ParsePolicy(files map[string][]byte) (*Policy, error) {
	text, ok := files[PolicyKey]
	if !ok {
		return nil, fmt.Errorf("it has no key %s with a VerifyPolicy", PolicyKey)
	}
	var file policyFile
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", PolicyKey, err)
	}
	if file.APIVersion != keys.V1alpha1 || file.Kind != "VerifyPolicy" {
		return nil, fmt.Errorf(
			"%s: %q %q is not a policy: write apiVersion: %s and kind: VerifyPolicy",
			PolicyKey, file.APIVersion, file.Kind, keys.V1alpha1)
	}
	p := file.Spec.Source
	if p == nil || len(p.Branches)+len(p.Tags) == 0 {
		return nil, fmt.Errorf(
			"%s: spec.source names neither a branch nor a tag, so any commit would be accepted: "+
				"name branches or tags", PolicyKey)
	}
	if len(p.Branches)+len(p.Tags) > maxPatterns {
		return nil, fmt.Errorf("%s: spec.source names more than %d branches and tags: "+
			"use patterns, such as release/*", PolicyKey, maxPatterns)
	}
	for field, patterns := range map[string][]string{"branches": p.Branches, "tags": p.Tags} {
		for _, pattern := range patterns {
			if len(pattern) > maxPattern {
				return nil, fmt.Errorf("%s: spec.source.%s: %.40q… has more than %d bytes: shorten it",
					PolicyKey, field, pattern, maxPattern)
			}
			if _, err := path.Match(pattern, ""); err != nil || pattern == "" ||
				strings.HasPrefix(pattern, "refs/") {
				return nil, fmt.Errorf("%s: spec.source.%s: %q is not a name or a pattern: "+
					"write it as in main, release/* or v1.?", PolicyKey, field, pattern)
			}
		}
	}
	if err := p.readSigners(files); err != nil {
		return nil, err
	}
	return p, nil
}

// Digest returns the digest of a policy and its files: "sha256:" and 64 hexadecimal digits.
func Digest(files map[string][]byte) string {
	all, err := json.Marshal(files)
	if err != nil {
		panic(err) // bytes can always be encoded
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256(all))
}

// readSigners reads the keys from the files that the policy names.
func (p *Policy) readSigners(files map[string][]byte) error {
	read := func(field string, names []string, parse func([]byte) error) error {
		if names != nil && len(names) == 0 {
			return fmt.Errorf("%s: spec.source.%s is an empty list: name a file, or remove it",
				PolicyKey, field)
		}
		for _, name := range names {
			data, ok := files[name]
			if !ok {
				have := strings.Join(slices.Sorted(maps.Keys(files)), ", ")
				return fmt.Errorf("%q is not beside the policy, which has %s", name, have)
			}
			if err := parse(data); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	}
	if err := read("allowedSigners", p.AllowedSigners, func(data []byte) error {
		signers, err := parseAllowedSigners(data)
		p.ssh = append(p.ssh, signers...)
		return err
	}); err != nil {
		return err
	}
	seen := map[string]bool{}
	return read("openPGPKeys", p.OpenPGPKeys, func(data []byte) error {
		keys, err := parseOpenPGPKeys(data, seen)
		p.openPGP = append(p.openPGP, keys...)
		return err
	})
}

// Covers reports whether the full name of a reference matches a branch or tag of the policy.
func (p *Policy) Covers(ref string) bool {
	patterns := p.Branches
	name, is := strings.CutPrefix(ref, "refs/heads/")
	if !is {
		if name, is = strings.CutPrefix(ref, "refs/tags/"); !is {
			return false
		}
		patterns = p.Tags
	}
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		match, _ := path.Match(pattern, name) // ParsePolicy has checked the pattern
		return match
	})
}

// DemandsSignature reports whether the policy requires a signature.
func (p *Policy) DemandsSignature() bool { return len(p.AllowedSigners)+len(p.OpenPGPKeys) > 0 }

// Signer verifies the signature of a commit, given as Git stores the object, and returns the
// principals or the user ID that the policy has for the key, with its fingerprint. Keys must be
// valid now, since the author of a commit chooses its dates. The error says why no allowed signer
// was found.
func (p *Policy) Signer(object []byte, now time.Time) (string, error) {
	signature, payload, err := split(object)
	if err != nil {
		return "", err
	}
	switch kind, _, _ := strings.Cut(signature, "\n"); strings.TrimSpace(kind) {
	case "":
		return "", errors.New("it is not signed")
	case "-----BEGIN SSH SIGNATURE-----":
		return p.sshSigner(signature, payload, now)
	case "-----BEGIN SIGNED MESSAGE-----":
		return "", errors.New(
			"it is signed with a certificate (gitsign, S/MIME), which this cannot check: " +
				"sign with SSH or OpenPGP")
	case "-----BEGIN PGP SIGNATURE-----":
		return p.openPGPSigner(signature, payload, now)
	}
	return "", errors.New("its signature is of an unknown kind")
}

// split splits a commit into its signature, "" for an unsigned one, and the signed payload: all
// bytes except the header with the signature. More than one signature is an error, since
// programs differ about which one counts.
func split(object []byte) (signature string, payload []byte, err error) {
	var text strings.Builder
	inside, found := false, 0
	for rest := object; len(rest) > 0; {
		end := bytes.IndexByte(rest, '\n') + 1
		if end == 0 {
			end = len(rest)
		}
		line := rest[:end]
		if len(line) == 1 && line[0] == '\n' { // the message begins
			payload = append(payload, rest...)
			break
		}
		rest = rest[end:]
		if line[0] == ' ' { // continues the previous header
			if inside {
				text.Write(line[1:])
				continue
			}
			payload = append(payload, line...)
			continue
		}
		key, value, _ := strings.Cut(string(line), " ")
		if inside = key == "gpgsig" || key == "gpgsig-sha256"; inside {
			found++
			text.WriteString(value)
			continue
		}
		payload = append(payload, line...)
	}
	if found > 1 {
		return "", nil, fmt.Errorf("it has %d headers with a signature, and only one is allowed", found)
	}
	return text.String(), payload, nil
}
