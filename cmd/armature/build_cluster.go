package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/dynamic"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // logins that a kubeconfig may name
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

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

// connection to a cluster. Its client is the dynamic one: a generated clientset, as
// well as controller-runtime, knows every kind of Kubernetes, and sets that up
// whenever any command starts.
type connection struct {
	dynamic.Interface
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
	c, err := dynamicClient(config)
	if err != nil {
		return nil, err
	}
	return &connection{c, config, namespace, group}, nil
}

// dynamicClient sends requests as fast as the API server's own fairness permits.
func dynamicClient(config *rest.Config) (dynamic.Interface, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	c, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	return c, nil
}

// The resources of builds, and of their runs.
func (c *connection) builds() schema.GroupVersionResource {
	return api.GroupVersion(c.group).WithResource("agentbuilds")
}

var (
	pipelineRuns = tektonv1.SchemeGroupVersion.WithResource("pipelineruns")
	taskRuns     = tektonv1.SchemeGroupVersion.WithResource("taskruns")
)

// read an object into one of its type.
func (c *connection) read(ctx context.Context, resource schema.GroupVersionResource, namespace, name string, into any) error {
	u, err := c.Resource(resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	return runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, into)
}

// listBuilds of a namespace, "" for all of them.
func (c *connection) listBuilds(ctx context.Context, namespace string) (list api.AgentBuildList, err error) {
	found, err := c.Resource(c.builds()).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return list, err
	}
	return list, runtime.DefaultUnstructuredConverter.FromUnstructured(found.UnstructuredContent(), &list)
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
	if err := c.read(ctx, c.builds(), c.namespace, name, b); err != nil {
		return nil, c.failed(fmt.Sprintf("reading AgentBuild %s/%s", c.namespace, name), err)
	}
	return b, nil
}

// podClient reads the logs of pods.
func podClient(config *rest.Config) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	scheme := runtime.NewScheme()
	core := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, core) // refusals
	config.APIPath, config.GroupVersion, config.QPS = "/api", &core, -1
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	return c, nil
}

// completeBuilds offers the names of AgentBuilds.
func (k *cluster) completeBuilds(cmd *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
	c, err := k.connect(cmd)
	if err != nil || len(given) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, err := c.listBuilds(cmd.Context(), c.namespace)
	if err != nil {
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
	if notServed(err) {
		return fmt.Errorf("%s: the cluster knows no AgentBuild of %s\n  hint: `armature install | kubectl apply --server-side -f -` brings it; --api-group names another group", attempt, c.group)
	}
	return fmt.Errorf("%s: %w", attempt, err)
}

// notServed reports whether an API server has no such resource, which is another
// answer than that it has no such object.
func notServed(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}
