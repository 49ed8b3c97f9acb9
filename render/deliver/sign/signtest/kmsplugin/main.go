// Command kmsplugin is a KMS for tests in the form of sigstore's plugins: the key NAME://FILE is
// the ECDSA key in a PEM file.
package main

import (
	"context"
	"crypto"
	"errors"
	"os"

	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/kms/cliplugin/common"
	"github.com/sigstore/sigstore/pkg/signature/kms/cliplugin/handler"
)

// key implements the interface that the protocol's handler calls.
type key struct{ signature.SignerVerifier }

func (key) CreateKey(context.Context, string) (crypto.PublicKey, error) {
	return nil, errors.New("keys are not made")
}

func (key) CryptoSigner(context.Context, func(error)) (crypto.Signer, crypto.SignerOpts, error) {
	return nil, nil, errors.New("it is not of the protocol")
}
func (key) SupportedAlgorithms() []string { return []string{"ecdsa-p256"} }
func (key) DefaultAlgorithm() string      { return "ecdsa-p256" }

func main() {
	if err := serve(); err != nil {
		_ = handler.WriteErrorResponse(os.Stdout, err)
		os.Exit(1)
	}
}

func serve() error {
	arguments, err := handler.GetPluginArgs(os.Args)
	if err != nil {
		return err
	}
	if arguments.InitOptions.ProtocolVersion != common.ProtocolVersion ||
		arguments.InitOptions.HashFunc != crypto.SHA256 {
		return errors.New("another version of the protocol, or another hash")
	}
	text, err := os.ReadFile(arguments.InitOptions.KeyResourceID)
	if err != nil {
		return err
	}
	private, err := cryptoutils.UnmarshalPEMToPrivateKey(text, cryptoutils.SkipPassword)
	if err != nil {
		return err
	}
	signer, err := signature.LoadSignerVerifier(private, crypto.SHA256)
	if err != nil {
		return err
	}
	_, err = handler.Dispatch(os.Stdout, os.Stdin, arguments, key{signer})
	return err
}
