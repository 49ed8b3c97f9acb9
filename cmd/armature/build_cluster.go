package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"sync"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/client"
	"github.com/armature-dev/armature/builds/compose/manifest"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/text"
)

// connect returns a client for the AgentBuilds of a cluster.
func connect(cmd *cobra.Command, k *cli.Cluster) (*client.Client, error) {
	group := cmd.Flag("api-group").Value.String()
	config, namespace, err := k.Rest()
	if err != nil {
		return nil, err
	}
	return client.Connect(config, namespace, group)
}

// doorUsage describes the flag with a catalog's address, whose default is in ARMATURE_CATALOG.
const doorUsage = "address of the catalog, whose console shows runs that you may not read " +
	"yourself, such as https://localhost:8443"

func knownCatalog() *cli.Catalog { return &cli.Catalog{Address: os.Getenv("ARMATURE_CATALOG")} }

// doorAt returns a function that connects to the console of a catalog, or nil if its address is not
// known.
func doorAt(cmd *cobra.Command, k *cli.Cluster, at *cli.Catalog) func() (client.Door, error) {
	if at.Address == "" {
		return nil
	}
	return sync.OnceValues(func() (client.Door, error) {
		console, err := at.Connect(cmd, k.Loader().ClientConfig)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, path string,
			parameters url.Values) (io.ReadCloser, error) {
			body, err := console.Open(ctx, path, parameters)
			if errors.Is(err, store.ErrNotFound) {
				err = apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, path)
			}
			return body, err
		}, nil
	})
}

// readBuilds reads the AgentBuilds of files.
func readBuilds(cmd *cobra.Command, group string, files ...string) (all []manifest.Build, err error) {
	for _, file := range files {
		data, err := cli.ReadFile(cmd, "the build", file)
		if err != nil {
			return nil, err
		}
		found, err := manifest.Builds(file, data, group)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// named runs a command on the AgentBuild that its only argument names.
func named(k *cli.Cluster, do func(cmd *cobra.Command, c *client.Client,
	b *api.AgentBuild) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, given []string) error {
		c, err := connect(cmd, k)
		if err != nil {
			return err
		}
		b, err := c.Get(cmd.Context(), given[0])
		if err != nil {
			return missing(cmd.Context(), c, given[0], err)
		}
		return do(cmd, c, b)
	}
}

// missing adds to a not-found error which builds exist.
func missing(ctx context.Context, c *client.Client, name string, err error) error {
	if !apierrors.IsNotFound(err) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return err
	}
	list, listErr := c.List(ctx)
	if listErr != nil {
		return err
	}
	var names []string
	for _, b := range list.Items {
		names = append(names, b.Name)
	}
	if near := text.Nearest(name, names); near != "" {
		return fmt.Errorf("%w\n  hint: did you mean %s?", err, near)
	}
	return fmt.Errorf("%w\n  hint: it may have been deleted, with its runs; namespace %s has %s: "+
		"`armature build list -A` shows all", err, c.Namespace,
		text.Count(len(names), "other build"))
}

// completeBuilds offers the names of AgentBuilds.
func completeBuilds(k *cli.Cluster) cobra.CompletionFunc {
	return func(cmd *cobra.Command, given []string,
		_ string) (names []string, _ cobra.ShellCompDirective) {
		if c, err := connect(cmd, k); err == nil && len(given) == 0 {
			list, _ := c.List(cmd.Context()) // none if it fails
			for _, b := range list.Items {
				names = append(names, b.Name)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
