package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/armature-dev/armature/render/deliver/apply/fields"
)

type liveObject = *unstructured.Unstructured

// Cluster is a connection to the cluster to which packages are applied.
type Cluster struct {
	config        *rest.Config
	http          *http.Client
	discovery     *discovery.DiscoveryClient
	client        client.Client
	requests      *requests
	leaseDuration time.Duration
}

// parallel is the number of requests that are sent in parallel. More do not make an API server
// faster.
const parallel = 24

// Connect returns a connection to a cluster. It sends no request.
func Connect(config *rest.Config) (*Cluster, error) {
	config = rest.CopyConfig(config)
	if config.QPS == 0 {
		config.QPS = -1 // the API server's own fairness is enough
	}
	c := &Cluster{config: config, leaseDuration: leaseDuration,
		requests: &requests{reached: &atomic.Bool{}}}
	var err error
	if c.http, err = rest.HTTPClientFor(config); err == nil {
		c, err = c.session(context.Background(), nil)
	}
	if err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	return c, nil
}

// session returns a copy of the cluster for one command. It discovers the served kinds again and
// reports outages to tell. Discovery requests end with ctx, which is the context of the command.
func (c *Cluster) session(ctx context.Context, tell func(string)) (*Cluster, error) {
	s := *c
	next := cmp.Or(c.http.Transport, http.DefaultTransport)
	s.requests = &requests{RoundTripper: next, timeout: requestTimeout, tell: tell,
		reached: c.requests.reached}
	kinds := *s.requests
	kinds.timeout, kinds.command = discoveryTimeout, ctx // the mapper has no context
	asking := &http.Client{Transport: &kinds}
	mapper, err := apiutil.NewDynamicRESTMapper(c.config, asking)
	if err != nil {
		return nil, err
	}
	s.discovery, err = discovery.NewDiscoveryClientForConfigAndClient(c.config, asking)
	direct, err2 := client.New(c.config, client.Options{
		HTTPClient: &http.Client{Transport: s.requests}, Mapper: mapper,
		Log: logr.FromSlogHandler(slog.DiscardHandler),
	})
	if err := cmp.Or(err, err2); err != nil {
		return nil, err
	}
	s.client = client.WithFieldValidation(client.WithFieldOwner(direct, fields.Manager),
		metav1.FieldValidationStrict)
	return &s, nil
}

// errNotServed means that the cluster does not serve the kind.
var errNotServed = errors.New("the cluster does not serve this kind")

// served returns the mapping of a kind in the given version, or in another version if that is not
// served. The error is errNotServed only if the API server currently reports that. Aggregated
// discovery omits a group whose server is down, and to take that for deleted would lose objects.
func (c *Cluster) served(gvk schema.GroupVersionKind) (m *meta.RESTMapping, err error) {
	m, err = c.client.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if meta.IsNoMatchError(err) {
		_, err = c.discovery.ServerResourcesForGroupVersion(gvk.GroupVersion().String())
		if err == nil || apierrors.IsNotFound(err) {
			m, err = c.client.RESTMapper().RESTMapping(gvk.GroupKind())
		}
	}
	if meta.IsNoMatchError(err) {
		return nil, errNotServed
	}
	if err != nil {
		return nil, fmt.Errorf("asking for the kinds of %s: %w", gvk.GroupVersion(), err)
	}
	return m, nil
}

// get reads an object. It returns nil if the object does not exist.
func (c *Cluster) get(ctx context.Context, gvk schema.GroupVersionKind, id ID) (liveObject, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	err := c.client.Get(ctx, types.NamespacedName{Namespace: id.Namespace, Name: id.Name}, u)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", title(id), err)
	}
	return u, nil
}

// list returns the objects of a kind in some namespaces, with one request if that is allowed, or
// else with one request per namespace.
func (c *Cluster) list(ctx context.Context, gvk schema.GroupVersionKind, namespaces []string,
	options ...client.ListOption) (items []unstructured.Unstructured, err error) {
	in := func(namespace string) error {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(gvk)
		if err := c.client.List(ctx, list, append(options[:len(options):len(options)],
			client.InNamespace(namespace))...); err != nil {
			return fmt.Errorf("listing %s: %w",
				strings.TrimSuffix(gvk.Kind+" in "+namespace, " in "), err)
		}
		items = append(items, list.Items...)
		return nil
	}
	if len(namespaces) != 1 {
		if err := in(metav1.NamespaceAll); !apierrors.IsForbidden(err) {
			return items, err
		}
	}
	for _, n := range namespaces {
		if err := in(n); err != nil {
			return nil, err
		}
	}
	return items, nil
}

// title returns the kind, namespace and name of an object for people.
func title(id ID) string {
	if id.Namespace == "" {
		return id.GroupKind.Kind + " " + id.Name
	}
	return id.GroupKind.Kind + " " + id.Namespace + "/" + id.Name
}
