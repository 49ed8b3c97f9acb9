package sign

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/sigstore/cosign/v2/pkg/blob"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/armature-dev/armature/render/version"
)

// A key is named as for cosign: a file, a URL, env://VARIABLE, k8s://namespace/secret or the URI of
// a KMS. cosign's pkg/signature is not used, because it links the clients of Kubernetes, GitLab and
// GitHub with all their kinds.

// inSecret is the prefix of a key pair that `cosign generate-key-pair k8s://…` created.
const inSecret = "k8s://"

// privateKey loads a key to sign with.
func privateKey(ctx context.Context, name string,
	password func() ([]byte, error)) (signature.SignerVerifier, error) {
	if KMSProgram(name) != "" {
		return OpenKMS(ctx, name)
	}
	text, stored, err := keyText(ctx, name, "cosign.key")
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(name, inSecret) {
		password = func() ([]byte, error) { return stored, nil }
	}
	return readKey(text, password)
}

// readKey parses a private key in PEM, as `cosign generate-key-pair` creates it. password may be
// nil if the key has none.
func readKey(text []byte, password func() ([]byte, error)) (signature.SignerVerifier, error) {
	key, err := cryptoutils.UnmarshalPEMToPrivateKey(text, func(bool) ([]byte, error) {
		if password == nil {
			return nil, nil
		}
		return password()
	})
	if err != nil {
		return nil, err
	}
	signer, err := signature.LoadSignerVerifier(key, crypto.SHA256)
	if p, ok := key.(*ecdsa.PrivateKey); ok && err == nil {
		return repeatable{signer, p}, nil
	}
	return signer, err
}

// OpenedKey is a decrypted private key. Decrypting takes 64 MiB and a tenth of a second.
type OpenedKey struct {
	signature.SignerVerifier
	from [2][]byte
}

// OpenKey decrypts a private key in PEM. It returns before if that has the same bytes and password.
func OpenKey(text, password []byte, before *OpenedKey) (*OpenedKey, error) {
	if before != nil && bytes.Equal(before.from[0], text) && bytes.Equal(before.from[1], password) {
		return before, nil
	}
	key, err := readKey(text, func() ([]byte, error) { return password, nil })
	if err != nil {
		return nil, &KeyError{fmt.Errorf("reading the private key: %w", err)}
	}
	return &OpenedKey{key, [2][]byte{text, password}}, nil
}

// repeatable signs deterministically (RFC 6979): a message has one signature.
type repeatable struct {
	signature.SignerVerifier
	key *ecdsa.PrivateKey
}

func (r repeatable) SignMessage(message io.Reader, _ ...signature.SignOption) ([]byte, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, message); err != nil {
		return nil, err
	}
	return r.key.Sign(nil, sum.Sum(nil), crypto.SHA256)
}

// publicKey loads a key to verify with.
func (p Policy) publicKey(ctx context.Context, name string) (signature.Verifier, error) {
	var text []byte
	var err error
	if p.Files != nil {
		text, err = p.file(name)
	} else if KMSProgram(name) != "" {
		return OpenKMS(ctx, name)
	} else {
		text, _, err = keyText(ctx, name, "cosign.pub")
	}
	if err != nil {
		return nil, err
	}
	key, err := cryptoutils.UnmarshalPEMToPublicKey(text)
	if err != nil {
		return nil, fmt.Errorf("it is not a public key in PEM: %w", err)
	}
	return signature.LoadVerifier(key, crypto.SHA256)
}

// keyText reads a key from a file, a URL, a variable or a field of a Secret. The password of a
// Secret's key is in the same Secret. The cluster is that of the kubeconfig, or the one that this
// process runs in.
func keyText(ctx context.Context, name, field string) (text, password []byte, err error) {
	if !strings.HasPrefix(name, inSecret) {
		text, err = blob.LoadFileOrURL(name)
		return text, nil, err
	}
	namespace, secret, ok := strings.Cut(strings.TrimPrefix(name, inSecret), "/")
	if !ok || strings.Contains(secret, "/") {
		return nil, nil, errors.New("write it as k8s://namespace/secret")
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("finding the cluster: %w", err)
	}
	config.UserAgent = version.UserAgent("armature")
	client, err := corev1.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	pair, err := client.Secrets(namespace).Get(ctx, secret, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("reading the Secret: %w", err)
	}
	if len(pair.Data) == 0 {
		return nil, nil, errors.New("the Secret is empty")
	}
	return pair.Data[field], pair.Data["cosign.password"], nil
}
