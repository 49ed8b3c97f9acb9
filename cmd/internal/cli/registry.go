package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/deliver/oci"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// Registry says how a registry is reached.
type Registry struct{ oci.Access }

func (r *Registry) Flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&r.PlainHTTP, "insecure-registry", false, "use plain http for the registry")
}

// Options returns options that show the progress of a transfer.
func (r *Registry) Options(activity *Activity, doing string) oci.Options {
	return oci.Options{Access: r.Access, Progress: activity.Transfer(doing)}
}

// ArtifactArgs accepts n arguments. The one at index at is a reference to an artifact.
func ArtifactArgs(n, at int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		err := Args(cobra.ExactArgs(n))(cmd, given)
		if err == nil {
			if _, err = (oci.Access{}).Parse(given[at]); err != nil {
				return Usage(err)
			}
		}
		return err
	}
}

// PrintArtifact prints the facts about an artifact. In the format text, it prints the reference,
// after a sentence, which may be "".
func PrintArtifact(cmd *cobra.Command, format, ref string, known any, sentence string) error {
	if format == "text" {
		fmt.Fprint(cmd.ErrOrStderr(), sentence)
	}
	return PrintAs(cmd, format, oci.Scheme+ref+"\n", known)
}

// Trust says whose signatures count. Its flags have the names of cosign's, if cosign has them.
type Trust struct {
	File     string
	policy   sign.Policy
	identity sign.Identity
}

// Flags adds the flags of a command that requires signatures: a key, or a file with all settings.
func (t *Trust) Flags(cmd *cobra.Command) {
	PolicyFlag(cmd, &t.File)
	cmd.Flags().StringSliceVar(&t.policy.Keys, "key", nil,
		"public key of accepted signatures: a file, k8s://namespace/secret, KMS URI or URL")
}

// PolicyFlag adds --verify-policy.
func PolicyFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVar(file, "verify-policy", "",
		"file with a VerifyPolicy: whose signature is required, and how images must be built")
}

// AllFlags adds flags for all that a policy file can set about signatures.
func (t *Trust) AllFlags(cmd *cobra.Command) {
	t.Flags(cmd)
	f := cmd.Flags()
	f.StringVar(&t.identity.Subject, "certificate-identity", "",
		"identity that the certificate was issued to")
	f.StringVar(&t.identity.SubjectRegExp, "certificate-identity-regexp", "",
		"the same as a regular expression, which must match the whole value")
	f.StringVar(&t.identity.Issuer, "certificate-oidc-issuer", "",
		"OpenID provider that authenticated the identity in the certificate")
	f.StringVar(&t.identity.IssuerRegExp, "certificate-oidc-issuer-regexp", "",
		"the same as a regular expression, which must match the whole value")
	f.StringVar(&t.policy.Roots, "ca-roots", "",
		"PEM file of the authorities that issue certificates (default: sigstore's)")
	f.StringVar(&t.policy.TrustedRoot, "trusted-root", "",
		"file with a trusted root of Sigstore, instead of the public one: authorities, "+
			"logs, timestamps")
	f.BoolVar(&t.policy.IgnoreTlog, "insecure-ignore-tlog", false,
		"accept signatures without proof that they are in the transparency log")
	f.BoolVar(&t.policy.IgnoreSCT, "insecure-ignore-sct", false,
		"accept certificates without proof that they are in the certificate log")
	f.BoolVar(&t.policy.Provenance, "provenance", false,
		"require provenance of the render by the same signer")
}

// Given reports whether a signature is required.
func (t *Trust) Given() bool {
	return t.File != "" || len(t.policy.Keys) > 0 || t.identity != sign.Identity{} ||
		t.policy.Roots != "" || t.policy.TrustedRoot != "" || t.policy.Provenance ||
		t.policy.IgnoreTlog || t.policy.IgnoreSCT
}

// Read returns the policy of the flags, or of the file.
func (t *Trust) Read(r *Registry) (p sign.Policy, err error) {
	p = t.policy
	p.Flags = true
	if t.identity != (sign.Identity{}) {
		p.Identities = []sign.Identity{t.identity}
	}
	if t.File != "" {
		flags := *t
		if flags.File = ""; flags.Given() {
			return p, Usagef("--verify-policy cannot be combined with other verification flags: " +
				"write their settings into the file")
		}
		if p, err = sign.ReadPolicy(t.File); err != nil {
			return p, err
		}
	} else if err := p.Check(); err != nil {
		return p, Usage(err)
	}
	p.Access = r.Access
	return p, nil
}

// Demanded returns the result of Read, or nil if no signature is required.
func (t *Trust) Demanded(r *Registry) (*sign.Policy, error) {
	if !t.Given() {
		return nil, nil
	}
	p, err := t.Read(r)
	return &p, err
}

// Check returns a function for oci.Options.Verify that verifies by a policy, or nil without a
// policy.
func Check(p *sign.Policy) func(context.Context, name.Digest) error {
	if p == nil {
		return nil
	}
	return func(ctx context.Context, artifact name.Digest) error {
		_, err := sign.Verify(ctx, artifact, *p)
		return err
	}
}

// CheckPackage returns Check for a rendered package, to which a policy about images does not apply.
func CheckPackage(p *sign.Policy) func(context.Context, name.Digest) error {
	if p == nil {
		return nil
	}
	return Check(new(p.OfPackages()))
}

// Signer says who signs. Its flags have cosign's names.
type Signer struct {
	signer sign.Signer
	tlog   bool
}

func (s *Signer) Flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.signer.Key, "key", "",
		"private key: a file, k8s://namespace/secret or KMS URI (default: keyless, with the "+
			"machine's identity)")
	f.StringVar(&s.signer.Certificate, "certificate", "", "certificate of the key, in PEM")
	f.StringVar(&s.signer.IdentityToken, "identity-token", "",
		"OpenID token, or a file with one, for keyless signing")
	f.StringVar(&s.signer.Fulcio, "fulcio-url", sign.FulcioURL, "authority for keyless signing")
	f.StringVar(&s.signer.Rekor, "rekor-url", sign.RekorURL, "transparency log")
	f.BoolVar(&s.tlog, "tlog-upload", true, "write the signature to the transparency log")
}

// With returns an error if a flag for signing is set and nothing is signed.
func (s *Signer) With(cmd *cobra.Command, signs bool, flag string) error {
	for _, name := range [...]string{"key", "certificate", "identity-token", "fulcio-url",
		"rekor-url", "tlog-upload"} {
		if !signs && cmd.Flags().Changed(name) {
			return Usagef("--%s requires %s", name, flag)
		}
	}
	return nil
}

// Session opens a session that signs.
func (s *Signer) Session(ctx context.Context, access oci.Access) (*sign.Session, error) {
	signer := s.signer
	signer.Access, signer.Password = access, func() ([]byte, error) { return password(ctx) }
	if !s.tlog {
		signer.Rekor = ""
	}
	return signer.Open(ctx)
}

// OpenKey opens a session that signs agent cards with a key.
func OpenKey(ctx context.Context, key string) (*sign.Session, error) {
	if key == "" {
		return nil, Usagef("name the key that signs with --key")
	}
	return sign.Signer{Key: key, Password: func() ([]byte, error) { return password(ctx) }}.Open(ctx)
}

// password returns $COSIGN_PASSWORD, or asks the user.
func password(ctx context.Context) ([]byte, error) {
	if given, ok := os.LookupEnv("COSIGN_PASSWORD"); ok {
		return []byte(given), nil
	}
	terminal := int(os.Stdin.Fd())
	if !term.IsTerminal(terminal) {
		return nil, errors.New("the key's password is missing: set COSIGN_PASSWORD, to an empty " +
			"value if the key has none")
	}
	state, err := term.GetState(terminal)
	if err != nil {
		return nil, fmt.Errorf("asking for the key's password: %w", err)
	}
	fmt.Fprint(os.Stderr, "Password of the key: ")
	defer fmt.Fprintln(os.Stderr)
	text, err := Interruptibly(ctx, func() ([]byte, error) { return term.ReadPassword(terminal) })
	if errors.Is(err, ErrInterrupted) {
		err = multi.Errors(err, term.Restore(terminal, state))
	}
	return text, err
}
