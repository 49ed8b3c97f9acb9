// Package managers has the options of the managers of all controllers.
package managers

import (
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/armature-dev/armature/render/process"
)

// Options returns the options of a manager whose leader holds a lease.
func Options(o process.Options, scheme *runtime.Scheme, lease string) ctrl.Options {
	out := ctrl.Options{
		Scheme:                        scheme,
		Logger:                        o.Log,
		Cache:                         cache.Options{DefaultTransform: process.Slim},
		Metrics:                       metricsserver.Options{BindAddress: o.MetricsAddress},
		HealthProbeBindAddress:        o.HealthAddress,
		LeaderElection:                o.LeaderElection,
		LeaderElectionID:              o.Shard.Lease(lease),
		LeaderElectionNamespace:       o.Namespace,
		LeaderElectionReleaseOnCancel: true,
	}
	if len(o.Namespaces) > 0 {
		out.Cache.DefaultNamespaces = map[string]cache.Config{}
		for _, n := range o.Namespaces {
			out.Cache.DefaultNamespaces[n] = cache.Config{}
		}
	}
	return out
}
