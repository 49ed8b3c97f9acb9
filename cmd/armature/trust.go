package main

import (
	"context"
	"errors"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/render/sign"
)

// trustFlags say whose signature counts. Those that cosign has are named as
// there.
type trustFlags struct {
	file     string
	policy   sign.Policy
	identity sign.Identity
}

func (t *trustFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&t.file, "verify-policy", "", "file with a VerifyPolicy: whose signature is demanded, and how images must have been built")
	f.StringSliceVar(&t.policy.Keys, "key", nil, "public key of accepted signatures: a file, k8s://namespace/secret, KMS URI or URL")
	f.StringVar(&t.identity.Subject, "certificate-identity", "", "identity that the certificate was issued to")
	f.StringVar(&t.identity.SubjectRegExp, "certificate-identity-regexp", "", "the same as a regular expression, which has to match all of it")
	f.StringVar(&t.identity.Issuer, "certificate-oidc-issuer", "", "OpenID provider by whose word the certificate was issued")
	f.StringVar(&t.identity.IssuerRegExp, "certificate-oidc-issuer-regexp", "", "the same as a regular expression, which has to match all of it")
	f.StringVar(&t.policy.Roots, "ca-roots", "", "PEM file of the authorities that issue certificates (default: sigstore's)")
	f.StringVar(&t.policy.TrustedRoot, "trusted-root", "", "file with a trusted root of Sigstore, in place of the public one: authorities, logs, timestamps")
	f.BoolVar(&t.policy.IgnoreTlog, "insecure-ignore-tlog", false, "accept signatures without proof that they are in the transparency log")
	f.BoolVar(&t.policy.IgnoreSCT, "insecure-ignore-sct", false, "accept certificates without proof that they are in the certificate log")
	f.BoolVar(&t.policy.Provenance, "provenance", false, "require provenance of the render by the same signer")
}

// given reports whether anything demands a signature.
func (t *trustFlags) given() bool {
	return t.file != "" || len(t.policy.Keys) > 0 || t.identity != sign.Identity{} || t.policy.Roots != "" || t.policy.TrustedRoot != "" || t.policy.Provenance ||
		t.policy.IgnoreTlog || t.policy.IgnoreSCT
}

// read gives the policy that the flags make up, or the file's.
func (t *trustFlags) read(r *registryFlags) (p sign.Policy, err error) {
	p = t.policy
	if t.identity != (sign.Identity{}) {
		p.Identities = []sign.Identity{t.identity}
	}
	if t.file != "" {
		flags := *t
		if flags.file = ""; flags.given() {
			return p, usageError{errors.New("--verify-policy cannot be combined with other verification flags: write their settings into the file")}
		}
		if p, err = sign.ReadPolicy(t.file); err != nil {
			return p, err
		}
	} else if err := p.Check(); err != nil {
		return p, usageError{err}
	}
	p.PlainHTTP = r.plainHTTP
	return p, nil
}

// check is the judgement of a policy as oci.Options.Verify has it.
func check(p sign.Policy) func(context.Context, name.Digest) error {
	return func(ctx context.Context, artifact name.Digest) error {
		_, err := sign.Verify(ctx, artifact, p)
		return err
	}
}
