// Package process has what the processes of all controllers share: options, clients, and what their
// caches leave out. Package managers has their manager, so that commands do not link it.
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/armature-dev/armature/render/version"
)

// Options are the options of a controller's process.
type Options struct {
	// Namespace is the namespace of the controller, for the leader's lease.
	Namespace string
	// Namespaces are the watched namespaces; empty means all, which needs cluster-wide rights.
	Namespaces []string
	// Shard selects the watched objects.
	Shard Shard
	// UnclaimedAfter is how long a shard may have no leader before the status of its objects says
	// so; zero means 2 minutes.
	UnclaimedAfter time.Duration
	// LeaderElection elects one of several replicas in each shard.
	LeaderElection bool
	// MetricsAddress and HealthAddress are the addresses to listen on; "0" disables them.
	MetricsAddress, HealthAddress string
	// QPS limits the requests to the API server, which protects itself by priority and fairness;
	// zero means the default of the controller.
	QPS float32
	Log logr.Logger
}

// Client returns a copy of cfg for the requests of a program. qps is the default of o.QPS.
func (o Options) Client(cfg *rest.Config, program string, qps float32) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = cmp.Or(o.QPS, qps)
	cfg.Burst = int(2 * cfg.QPS)
	cfg.UserAgent = version.UserAgent(program)
	return cfg
}

// RESTClient returns a client of a group at a path of the API server, for example /apis, for
// answers that the caller decodes. It decodes only metadata and errors.
func RESTClient(cfg *rest.Config, path string, group schema.GroupVersion) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		return nil, fmt.Errorf("building the scheme: %w", err)
	}
	cfg = rest.CopyConfig(cfg)
	cfg.APIPath, cfg.GroupVersion = path, &group
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	return rest.RESTClientFor(cfg)
}

// MetadataOf returns an empty object of a kind, of which only the metadata is read.
func MetadataOf(apiVersion, kind string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: kind}}
}

// Slim removes what no controller reads from an object that enters a cache.
func Slim(in any) (any, error) {
	if o, ok := in.(client.Object); ok {
		o.SetManagedFields(nil)
		if a := o.GetAnnotations(); a[corev1.LastAppliedConfigAnnotation] != "" {
			delete(a, corev1.LastAppliedConfigAnnotation)
			o.SetAnnotations(a)
		}
	}
	return in, nil
}

// Bounded limits the number of connections of a listener at the same time; others wait. All servers
// of Armature use it, because it bounds the memory of their connections.
func Bounded(l net.Listener, most int) net.Listener { return netutil.LimitListener(l, most) }

// Guard calls ask and returns a panic as an error. Code that answers in a goroutine of its own has
// to call it: there, a panic over what a server or a tenant sent would end the process.
func Guard[T any](ctx context.Context,
	ask func(context.Context) (T, error)) (answer T, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
		}
	}()
	return ask(ctx)
}

// Register registers metrics with those of controller-runtime. If a controller was started before
// in this process, its metrics stay.
func Register(collectors ...prometheus.Collector) error {
	for _, c := range collectors {
		if err := metrics.Registry.Register(c); err != nil &&
			!errors.As(err, new(prometheus.AlreadyRegisteredError)) {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}
	return nil
}
