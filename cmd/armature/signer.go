package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/armature-dev/armature/render/sign"
)

// signerFlags say who signs. They are named as cosign's are, but for the key's where
// a command has another key.
type signerFlags struct {
	signer sign.Signer
	tlog   bool
	names  []string
}

func (s *signerFlags) flags(cmd *cobra.Command, key string) {
	f := cmd.Flags()
	f.StringVar(&s.signer.Key, key, "", "private key: a file, k8s://namespace/secret or KMS URI (default: keyless, by the machine's identity)")
	f.StringVar(&s.signer.Certificate, "certificate", "", "certificate of the key, in PEM")
	f.StringVar(&s.signer.Chain, "certificate-chain", "", "certificates above it, in PEM, the root last")
	f.StringVar(&s.signer.IdentityToken, "identity-token", "", "OpenID token, or a file with one, for keyless signing")
	f.StringVar(&s.signer.Fulcio, "fulcio-url", sign.FulcioURL, "authority for keyless signing")
	f.StringVar(&s.signer.Rekor, "rekor-url", sign.RekorURL, "transparency log")
	f.BoolVar(&s.tlog, "tlog-upload", true, "write the signature to the transparency log")
	s.names = []string{key, "certificate", "certificate-chain", "identity-token", "fulcio-url", "rekor-url", "tlog-upload"}
}

// with fails where a flag is set and nothing is signed.
func (s *signerFlags) with(cmd *cobra.Command, signs bool, flag string) error {
	for _, name := range s.names {
		if !signs && cmd.Flags().Changed(name) {
			return usageError{fmt.Errorf("--%s goes with %s", name, flag)}
		}
	}
	return nil
}

// session makes ready to sign.
func (s *signerFlags) session(ctx context.Context, plainHTTP bool) (*sign.Session, error) {
	signer := s.signer
	signer.PlainHTTP, signer.Password = plainHTTP, func() ([]byte, error) { return password(ctx) }
	if !s.tlog {
		signer.Rekor = ""
	}
	return signer.Open(ctx)
}

// password is $COSIGN_PASSWORD, or what the user types.
func password(ctx context.Context) ([]byte, error) {
	if given, ok := os.LookupEnv("COSIGN_PASSWORD"); ok {
		return []byte(given), nil
	}
	terminal := int(os.Stdin.Fd())
	if !term.IsTerminal(terminal) {
		return nil, errors.New("the key's password is not known: set COSIGN_PASSWORD, to nothing where it has none")
	}
	shown, err := term.GetState(terminal)
	if err != nil {
		return nil, fmt.Errorf("asking for the key's password: %w", err)
	}
	fmt.Fprint(os.Stderr, "Password of the key: ")
	defer fmt.Fprintln(os.Stderr)
	type result struct {
		text []byte
		err  error
	}
	typed := make(chan result, 1)
	go func() {
		text, err := term.ReadPassword(terminal)
		typed <- result{text, err}
	}()
	select {
	case got := <-typed:
		return got.text, got.err
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("interrupted: %w", ctx.Err()), term.Restore(terminal, shown))
	}
}
