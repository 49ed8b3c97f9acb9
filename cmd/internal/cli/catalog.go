package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/armature-dev/armature/catalog/ask"
)

// Catalog says where the server of a catalog is, and with which token it is asked.
type Catalog struct {
	Address                 string
	flag, tokenFile, caFile string
}

// Flags of a command that may ask a catalog. The address has a flag of the given name, whose
// default it has already.
func (c *Catalog) Flags(f *pflag.FlagSet, name, usage string) {
	c.flag = name
	f.StringVar(&c.Address, name, c.Address, usage)
	f.StringVar(&c.tokenFile, "token-file", "",
		"file with a Kubernetes token; empty uses the kubeconfig's")
	f.StringVar(&c.caFile, "certificate-authority", "",
		"PEM file of the authority that signed the catalog's certificate")
}

// Connect to the server. Its warnings are printed.
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
