// Kueue runs Kueue's controllers and its scheduler, without the integrations of jobs, webhooks and
// certificates in fixed folders of its own program. The same code admits the tests' Workloads as in
// a cluster.
package main

import (
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	config "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	queue "sigs.k8s.io/kueue/pkg/cache/queue"
	cache "sigs.k8s.io/kueue/pkg/cache/scheduler"
	"sigs.k8s.io/kueue/pkg/controller/core"
	"sigs.k8s.io/kueue/pkg/controller/core/indexer"
	"sigs.k8s.io/kueue/pkg/features"
	"sigs.k8s.io/kueue/pkg/scheduler"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	ctrl.SetLogger(zap.New())
	// Without nodes there is no topology.
	if err := features.SetEnable(features.TopologyAwareScheduling, false); err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return err
	}
	if err := kueue.AddToScheme(scheme); err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(),
		ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	if err := indexer.Setup(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	configuration := &config.Configuration{}
	config.SetDefaults_Configuration(configuration)
	admitted := cache.New(mgr.GetClient())
	pending := queue.NewManager(mgr.GetClient(), admitted)
	if name, err := core.SetupControllers(mgr, pending, admitted, configuration, nil); err != nil {
		return fmt.Errorf("setting up the controller of %s: %w", name, err)
	}
	if err := mgr.Add(scheduler.New(pending, admitted, mgr.GetClient(),
		mgr.GetEventRecorderFor("kueue"))); err != nil {
		return err
	}
	go pending.CleanUpOnContext(ctx)
	go admitted.CleanUpOnContext(ctx)
	return mgr.Start(ctx)
}
