// Package kubeconfig writes the configuration of a client as a kubeconfig file.
package kubeconfig

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Write writes a kubeconfig that only its owner may read, with the address, certificates and token
// of config.
func Write(path string, config *rest.Config) error {
	file := api.Config{
		Clusters: map[string]*api.Cluster{"test": {
			Server: config.Host, CertificateAuthorityData: config.CAData,
		}},
		AuthInfos: map[string]*api.AuthInfo{"test": {
			ClientCertificateData: config.CertData, ClientKeyData: config.KeyData,
			Token: config.BearerToken,
		}},
		Contexts:       map[string]*api.Context{"test": {Cluster: "test", AuthInfo: "test"}},
		CurrentContext: "test",
	}
	if err := clientcmd.WriteToFile(file, path); err != nil {
		return fmt.Errorf("writing kubeconfig %s: %w", path, err)
	}
	return nil
}
