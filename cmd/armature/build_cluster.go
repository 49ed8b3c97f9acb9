package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/render/version"
)

// cluster says which one a command talks to, as kubectl's flags do.
type cluster struct {
	kubeconfig string
	context    string
	namespace  string
}

func (k *cluster) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&k.kubeconfig, "kubeconfig", "", "kubeconfig file; empty is kubectl's choice")
	f.StringVar(&k.context, "context", "", "context of the kubeconfig; empty is its current one")
	f.StringVarP(&k.namespace, "namespace", "n", "", "namespace; empty is the context's")
}

// connection to a cluster.
type connection struct {
	client.WithWatch
	config    *rest.Config
	namespace string
	group     string
}

func (k *cluster) connect(cmd *cobra.Command) (*connection, error) {
	group, err := cmd.Flags().GetString("api-group")
	if err != nil {
		return nil, err
	}
	config, namespace, err := k.rest()
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := tektonv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("building the scheme: %w", err)
	}
	api.AddToScheme(scheme, group)
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	return &connection{c, config, namespace, group}, nil
}

// rest says how to reach the cluster, and which namespace is meant.
func (k *cluster) rest() (config *rest.Config, namespace string, err error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = k.kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: k.context})
	config, err = loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		err = errors.New("there is no kubeconfig") // client-go would speak of KUBERNETES_MASTER
	}
	if err != nil {
		return nil, "", fmt.Errorf("finding the cluster: %w (name a kubeconfig with --kubeconfig or KUBECONFIG)", err)
	}
	config.UserAgent = version.UserAgent("armature")
	config.WarningHandler = rest.NewWarningWriter(os.Stderr, rest.WarningWriterOptions{Deduplicate: true})
	if namespace = k.namespace; namespace == "" {
		if namespace, _, err = loader.Namespace(); err != nil {
			return nil, "", fmt.Errorf("finding the namespace: %w", err)
		}
	}
	return config, namespace, nil
}

// named runs a command on the AgentBuild that its only argument names.
func (k *cluster) named(do func(cmd *cobra.Command, c *connection, b *api.AgentBuild) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, a []string) error {
		c, err := k.connect(cmd)
		if err != nil {
			return err
		}
		b, err := c.build(cmd.Context(), a[0])
		if err != nil {
			return err
		}
		return do(cmd, c, b)
	}
}

func (c *connection) build(ctx context.Context, name string) (*api.AgentBuild, error) {
	b := &api.AgentBuild{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: name}, b); err != nil {
		return nil, c.failed(fmt.Sprintf("reading AgentBuild %s/%s", c.namespace, name), err)
	}
	return b, nil
}

func (c *connection) pods() (*kubernetes.Clientset, error) {
	set, err := kubernetes.NewForConfig(c.config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	return set, nil
}

// completeBuilds offers the names of AgentBuilds.
func (k *cluster) completeBuilds(cmd *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
	c, err := k.connect(cmd)
	if err != nil || len(given) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var list api.AgentBuildList
	if err := c.List(cmd.Context(), &list, client.InNamespace(c.namespace)); err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, b := range list.Items {
		names = append(names, b.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// failed says what was attempted, and what to do where AgentBuild is not installed.
func (c *connection) failed(attempt string, err error) error {
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("%s: the cluster knows no AgentBuild of %s\n  hint: `armature install | kubectl apply --server-side -f -` brings it; --api-group names another group", attempt, c.group)
	}
	return fmt.Errorf("%s: %w", attempt, err)
}
