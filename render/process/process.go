// Package process is what the processes of all controllers share: their options, their
// client, and what their caches leave out. Its manager is a package of its own, which commands
// do not link.
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

// Options of a controller's process.
type Options struct {
	// Namespace of the controller, for the leader's lease.
	Namespace string
	// Namespaces to look after; empty means all, which needs cluster-wide rights.
	Namespaces []string
	// Shard of the objects to look after.
	Shard Shard
	// UnclaimedAfter is how long a shard may have no leader before its objects say so; zero means 2
	// minutes.
	UnclaimedAfter time.Duration
	// LeaderElection lets one replica of several work, in each shard.
	LeaderElection bool
	// MetricsAddress and HealthAddress to listen on; "0" listens nowhere.
	MetricsAddress, HealthAddress string
	// QPS of requests to the API server, which guards itself by priority and fairness; zero
	// means the default of the controller.
	QPS float32
	Log logr.Logger
}

// Client is cfg for the requests of a program, with a default of QPS.
func (o Options) Client(cfg *rest.Config, program string, qps float32) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = cmp.Or(o.QPS, qps)
	cfg.Burst = int(2 * cfg.QPS)
	cfg.UserAgent = version.UserAgent(program)
	return cfg
}

// RESTClient returns a client of a group at a path of the API server, such as /apis, for answers that
// are read as they come. It decodes metadata and refusals alone.
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

// MetadataOf is an object of a kind of which metadata alone is read.
func MetadataOf(apiVersion, kind string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: kind}}
}

// Slim drops what no controller reads from an object that enters a cache.
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

// Bounded accepts at most so many connections of a listener at the same time; others wait until one
// of these ends. All servers of ours that others reach listen so: what a connection takes counts
// as many times as there are of them.
func Bounded(l net.Listener, most int) net.Listener { return netutil.LimitListener(l, most) }

// Guard calls ask and returns a panic as an error. Code that answers in a goroutine of its own has to
// call it: there, a panic over what a server or a tenant sent would end the process.
func Guard[T any](ctx context.Context,
	ask func(context.Context) (T, error)) (answer T, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
		}
	}()
	return ask(ctx)
}

// Register metrics beside those of controller-runtime. Where a controller was started before
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
