package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // logins that a kubeconfig may name
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/armature-dev/armature/catalog/ask"
	"github.com/armature-dev/armature/render/deliver/apply"
	"github.com/armature-dev/armature/render/version"
)

// ErrNoKubeconfig reports that nothing names a cluster.
var ErrNoKubeconfig = errors.New("there is no kubeconfig")

// Cluster selects the cluster that a command uses, with kubectl's flags.
type Cluster struct {
	Kubeconfig string
	Context    string
	Namespace  string
	All        bool
}

// Flags adds the flags of a command that works in one namespace.
func (k *Cluster) Flags(cmd *cobra.Command) {
	k.LoginFlags(cmd)
	cmd.Flags().StringVarP(&k.Namespace, "namespace", "n", "", "namespace (default: the context's)")
}

// LoginFlags adds the flags of a command that needs no namespace.
func (k *Cluster) LoginFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&k.Kubeconfig, "kubeconfig", "", "kubeconfig file (default: as kubectl)")
	cmd.Flags().StringVar(&k.Context, "context", "",
		"context of the kubeconfig (default: its current one)")
}

// AllFlag adds -A to a command that works in one namespace or in all.
func (k *Cluster) AllFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&k.All, "all-namespaces", "A", false, "all namespaces")
}

// Loader reads the kubeconfig as kubectl does.
func (k *Cluster) Loader() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = k.Kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{CurrentContext: k.Context})
}

// Rest returns how to reach the cluster, and the selected namespace; "" means all namespaces.
func (k *Cluster) Rest() (config *rest.Config, namespace string, err error) {
	config, err = k.Loader().ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		err = ErrNoKubeconfig // client-go would speak of KUBERNETES_MASTER
	}
	if err != nil {
		return nil, "", fmt.Errorf(
			"finding the cluster: %w\n  hint: name a kubeconfig with --kubeconfig or KUBECONFIG", err)
	}
	config.UserAgent = version.UserAgent("armature")
	config.WarningHandler = rest.NewWarningWriter(os.Stderr,
		rest.WarningWriterOptions{Deduplicate: true})
	namespace, err = k.InNamespace()
	return config, namespace, err
}

// InNamespace returns the selected namespace; "" means all namespaces.
func (k *Cluster) InNamespace() (string, error) {
	switch {
	case k.All:
		return "", nil
	case k.Namespace != "":
		return k.Namespace, nil
	}
	namespace, _, err := k.Loader().Namespace()
	if clientcmd.IsEmptyConfig(err) {
		return "default", nil
	}
	if err != nil {
		return "", fmt.Errorf("finding the namespace: %w", err)
	}
	return namespace, nil
}

// Applier connects to the cluster, and returns the selected namespace.
func (k *Cluster) Applier() (c *apply.Cluster, namespace string, err error) {
	config, namespace, err := k.Rest()
	if err != nil {
		return nil, "", err
	}
	c, err = apply.Connect(config)
	return c, namespace, err
}

// CompletePackages offers the names of applied packages.
func (k *Cluster) CompletePackages(cmd *cobra.Command, given []string,
	_ string) (names []string, _ cobra.ShellCompDirective) {
	if c, namespace, err := k.Applier(); err == nil && len(given) == 0 {
		inventories, _ := c.Inventories(cmd.Context(), namespace) // none if it fails
		for _, v := range inventories {
			names = append(names, v.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// Catalog has the address of a catalog's server, and the token for it.
type Catalog struct {
	Address                 string
	flag, tokenFile, caFile string
}

// Flags adds the flags of a command that may query a catalog. The flag of the address has the given
// name, and Address as its default.
func (c *Catalog) Flags(f *pflag.FlagSet, name, usage string) {
	c.flag = name
	f.StringVar(&c.Address, name, c.Address, usage)
	f.StringVar(&c.tokenFile, "token-file", "",
		"file with a Kubernetes token; empty uses the kubeconfig's")
	f.StringVar(&c.caFile, "certificate-authority", "",
		"PEM file of the authority that signed the catalog's certificate")
}

// Connect returns a client of the server. Its warnings are printed.
func (c *Catalog) Connect(cmd *cobra.Command,
	kubeconfig func() (*rest.Config, error)) (*ask.CatalogClient, error) {
	server := ask.Catalog{Address: c.Address, CA: c.caFile, TokenFile: c.tokenFile,
		Kubeconfig: kubeconfig}
	s, err := server.Connect(func(warning string) {
		fmt.Fprintln(cmd.ErrOrStderr(), "Warning:", OneLine(warning))
	})
	if errors.Is(err, ask.ErrCatalogAddress) {
		err = Usagef("--%s %q: %w", c.flag, c.Address, err)
	}
	return s, err
}
