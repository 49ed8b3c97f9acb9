//go:build linux

package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"

	"github.com/armature-dev/armature/e2e/kubeconfig"
	"github.com/armature-dev/armature/functions/multi"
)

const pki = state + "/pki"

// makeCertificates writes the certificates of all servers and clients, and the kubeconfig of each
// component. hostAPI is where the admin reaches the API from the machine's own network.
func makeCertificates(hostAPI string) error {
	if err := os.Mkdir(pki, 0o700); err != nil {
		return err
	}
	ca, err := authority("ca")
	if err != nil {
		return err
	}
	front, err := authority("front-proxy-ca")
	if err != nil {
		return err
	}
	servers := []struct {
		name  string
		names []string
		ips   []string
	}{
		{"etcd", []string{"localhost"}, []string{"127.0.0.1"}},
		{"apiserver", []string{"localhost", "kubernetes", "kubernetes.default",
			"kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
			[]string{"127.0.0.1", nodeIP, apiIP}},
		{"kubelet", []string{node}, []string{nodeIP}},
	}
	for _, s := range servers {
		template := &x509.Certificate{
			Subject: pkix.Name{CommonName: s.name}, DNSNames: s.names,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}
		for _, ip := range s.ips {
			template.IPAddresses = append(template.IPAddresses, net.ParseIP(ip))
		}
		if _, err := ca.issue(s.name, template); err != nil {
			return err
		}
	}
	clients := []struct {
		ca         *certificate
		name, user string
		groups     []string
		kubeconfig string
	}{
		{ca, "admin", "admin", []string{"system:masters"}, pki + "/admin.kubeconfig"},
		{ca, "kube-controller-manager", "system:kube-controller-manager", nil,
			pki + "/kube-controller-manager.kubeconfig"},
		{ca, "kube-scheduler", "system:kube-scheduler", nil, pki + "/kube-scheduler.kubeconfig"},
		{ca, "kubelet-client", "system:node:" + node, []string{"system:nodes"},
			pki + "/kubelet.kubeconfig"},
		{ca, "kube-proxy", "system:kube-proxy", nil, pki + "/kube-proxy.kubeconfig"},
		{ca, "apiserver-kubelet-client", "apiserver-kubelet-client", []string{"system:masters"},
			""},
		{ca, "spire-agent", "spire-agent", nil, ""},
		{ca, "etcd-client", "apiserver-etcd-client", nil, ""},
		{front, "front-proxy-client", "front-proxy-client", nil, ""},
	}
	for _, c := range clients {
		cert, err := c.ca.issue(c.name, &x509.Certificate{
			Subject:     pkix.Name{CommonName: c.user, Organization: c.groups},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		})
		if err != nil {
			return err
		}
		if c.kubeconfig == "" {
			continue
		}
		config := &rest.Config{Host: "https://" + nodeIP + ":6443",
			TLSClientConfig: rest.TLSClientConfig{
				CAData: ca.pem, CertData: cert.pem, KeyData: cert.keyPEM,
			}}
		if err := kubeconfig.Write(c.kubeconfig, config); err != nil {
			return err
		}
		if c.name == "admin" {
			config.Host = "https://" + hostAPI
			if err := kubeconfig.Write(state+"/kubeconfig", config); err != nil {
				return err
			}
		}
	}
	return serviceAccountKeys()
}

// certificate is a certificate with its key, parsed and as PEM.
type certificate struct {
	*x509.Certificate
	key         crypto.Signer
	pem, keyPEM []byte
}

func authority(name string) (*certificate, error) {
	return (*certificate)(nil).issue(name, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	})
}

// issue writes NAME.crt and NAME.key for the template. With a nil issuer, the certificate signs
// itself.
func (issuer *certificate) issue(name string, template *x509.Certificate) (*certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().AddDate(1, 0, 0)
	template.KeyUsage |= x509.KeyUsageDigitalSignature
	parent, signer := template, crypto.Signer(key)
	if issuer != nil {
		parent, signer = issuer.Certificate, issuer.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, fmt.Errorf("signing certificate %s: %w", name, err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading certificate %s back: %w", name, err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding key %s: %w", name, err)
	}
	cert := &certificate{
		Certificate: parsed, key: key,
		pem:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		keyPEM: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}
	return cert, multi.Errors(
		os.WriteFile(filepath.Join(pki, name+".crt"), cert.pem, 0o600),
		os.WriteFile(filepath.Join(pki, name+".key"), cert.keyPEM, 0o600))
}

// serviceAccountKeys writes the pair that signs and checks ServiceAccount tokens.
func serviceAccountKeys() error {
	pair, err := authority("sa")
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(pair.key.Public())
	if err != nil {
		return err
	}
	return os.WriteFile(pki+"/sa.pub",
		pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o600)
}
