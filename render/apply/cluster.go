package apply

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// Cluster is where packages are applied.
type Cluster struct {
	dynamic  dynamic.Interface
	metadata metadata.Interface
	kinds    *kinds

	config        *rest.Config
	client        *http.Client
	outage        *outage
	leaseDuration time.Duration
}

// parallel is how many requests are under way at once. More do not make an API
// server faster.
const parallel = 24

// Connect to a cluster. Nothing is sent before the first call.
func Connect(config *rest.Config) (*Cluster, error) {
	config = rest.CopyConfig(config)
	if config.QPS == 0 {
		config.QPS = -1 // the API server's own fairness is enough
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	c := &Cluster{config: config, client: client, outage: &outage{}, leaseDuration: leaseDuration}
	if c, err = c.session(nil, nil); err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	if c.kinds, err = newKinds(config, c.steady(nil, nil)); err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	return c, nil
}

// session is the same cluster for one apply: tell receives reports of outages, and
// with a lease nothing is written without it.
func (c *Cluster) session(tell func(string), l *lease) (*Cluster, error) {
	s, client := *c, c.steady(tell, l)
	var err error
	if s.dynamic, err = dynamic.NewForConfigAndClient(c.config, client); err != nil {
		return nil, err
	}
	if s.metadata, err = metadata.NewForConfigAndClient(c.config, client); err != nil {
		return nil, err
	}
	return &s, nil
}

func (c *Cluster) steady(tell func(string), l *lease) *http.Client {
	next := c.client.Transport
	if next == nil {
		next = http.DefaultTransport
	}
	return &http.Client{Transport: &steady{next: next, outage: c.outage, lease: l, tell: tell}, CheckRedirect: c.client.CheckRedirect, Timeout: c.client.Timeout}
}

// resource finds where a kind is served, in the given version.
func (c *Cluster) resource(kind schema.GroupKind, version string) (*meta.RESTMapping, error) {
	return c.kinds.find(kind.WithVersion(version))
}

// anyVersion is resource for an object whose version may have gone.
func (c *Cluster) anyVersion(kind schema.GroupKind, version string) (*meta.RESTMapping, error) {
	m, err := c.resource(kind, version)
	if errors.Is(err, errNotServed) {
		return c.kinds.findAny(kind)
	}
	return m, err
}

// at gives the client of a kind in a namespace.
func (c *Cluster) at(m *meta.RESTMapping, namespace string) dynamic.ResourceInterface {
	if m.Scope.Name() == meta.RESTScopeNameRoot {
		return c.dynamic.Resource(m.Resource)
	}
	return c.dynamic.Resource(m.Resource).Namespace(namespace)
}

func (c *Cluster) live(ctx context.Context, m *meta.RESTMapping, id ID) (liveObject, error) {
	u, err := c.at(m, id.Namespace).Get(ctx, id.Name, getOptions)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", title(id), plain(err))
	}
	return u, nil
}

// title names an object for people.
func title(id ID) string {
	if id.Namespace == "" {
		return id.GroupKind.Kind + " " + id.Name
	}
	return id.GroupKind.Kind + " " + id.Namespace + "/" + id.Name
}
