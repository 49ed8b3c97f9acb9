package sign

import (
	"context"
	"crypto"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/sigstore/cosign/v2/pkg/blob"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/armature-dev/armature/render/version"
)

// A key is named as for cosign: a file, a URL, env://VARIABLE, k8s://namespace/secret
// or the URI of a KMS. This is not cosign's pkg/signature, because that brings the
// clients of Kubernetes, GitLab and GitHub with all their kinds into the program.

// inSecret begins the name of a key pair that `cosign generate-key-pair k8s://…` made.
const inSecret = "k8s://"

// privateKey loads a key to sign with.
func privateKey(ctx context.Context, name string, password func() ([]byte, error)) (signature.SignerVerifier, error) {
	if strings.HasPrefix(name, inSecret) {
		pair, err := keySecret(ctx, name)
		if err != nil {
			return nil, err
		}
		return cosign.LoadPrivateKey(pair["cosign.key"], pair["cosign.password"], nil)
	}
	if KMSProgram(name) != "" {
		return OpenKMS(ctx, name)
	}
	text, err := blob.LoadFileOrURL(name)
	if err != nil {
		return nil, err
	}
	secret := []byte{}
	if password != nil {
		if secret, err = password(); err != nil {
			return nil, err
		}
	}
	return cosign.LoadPrivateKey(text, secret, nil)
}

// publicKey loads a key to verify with.
func (p Policy) publicKey(ctx context.Context, name string) (signature.Verifier, error) {
	var text []byte
	if p.Files != nil {
		var err error
		if text, err = p.file(name); err != nil {
			return nil, err
		}
	} else if strings.HasPrefix(name, inSecret) {
		pair, err := keySecret(ctx, name)
		if err != nil {
			return nil, err
		}
		text = pair["cosign.pub"]
	} else if KMSProgram(name) != "" {
		return OpenKMS(ctx, name)
	} else {
		var err error
		if text, err = blob.LoadFileOrURL(name); err != nil {
			return nil, err
		}
	}
	key, err := cryptoutils.UnmarshalPEMToPublicKey(text)
	if err != nil {
		return nil, fmt.Errorf("it is not a public key in PEM: %w", err)
	}
	return signature.LoadVerifier(key, crypto.SHA256)
}

// keySecret reads the key pair in a Secret of the cluster of the kubeconfig, or of the
// one that this runs in.
func keySecret(ctx context.Context, name string) (map[string][]byte, error) {
	namespace, secret, ok := strings.Cut(strings.TrimPrefix(name, inSecret), "/")
	if !ok || strings.Contains(secret, "/") {
		return nil, errors.New("write it as k8s://namespace/secret")
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		config, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("finding the cluster: %w", err)
	}
	config.UserAgent = version.UserAgent("armature")
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	u, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}).Namespace(namespace).Get(ctx, secret, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the Secret: %w", err)
	}
	encoded, _, err := unstructured.NestedStringMap(u.Object, "data")
	if err != nil || len(encoded) == 0 {
		return nil, errors.New("the Secret is empty")
	}
	pair := make(map[string][]byte, len(encoded))
	for key, value := range encoded {
		if pair[key], err = base64.StdEncoding.DecodeString(value); err != nil {
			return nil, fmt.Errorf("reading %s of the Secret: it is not base64", key)
		}
	}
	return pair, nil
}
