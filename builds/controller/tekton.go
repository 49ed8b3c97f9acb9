package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/process"
	"github.com/armature-dev/armature/render/process/metrics"
)

// tektonPoll is how often the controller looks for Tekton's CRDs.
const tektonPoll = 5 * time.Second

// awaitTekton waits until Tekton's CRDs are installed or ctx ends. Without them there are no runs,
// and no watch of runs can begin. Until then nothing is built, the readiness probe says why, and
// deleted builds lose their finalizers: without Tekton they and their namespaces would stay.
func awaitTekton(ctx context.Context, cfg *rest.Config, options ctrl.Options, group string) error {
	live, err := client.New(cfg, client.Options{Scheme: options.Scheme})
	if err != nil {
		return fmt.Errorf("setting up the client: %w", err)
	}
	missing := func() bool {
		_, err := live.RESTMapper().RESTMapping(
			schema.GroupKind{Group: tektonv1.SchemeGroupVersion.Group, Kind: "PipelineRun"},
			tektonv1.SchemeGroupVersion.Version)
		return meta.IsNoMatchError(err)
	}
	installed := new(metrics.Set).Gauge("armature_tekton_installed")
	if err := process.Register(installed); err != nil {
		return err
	}
	defer installed.WithLabelValues().Set(1)
	if !missing() {
		return nil
	}
	installed.WithLabelValues().Set(0)
	namespaces := slices.Sorted(maps.Keys(options.Cache.DefaultNamespaces))
	// Each replica waits, without caches, which could not start.
	options.LeaderElection, options.Cache = false, cache.Options{}
	mgr, err := ctrl.NewManager(cfg, options)
	if err != nil {
		return fmt.Errorf("setting up the wait for Tekton: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	err = multi.Errors(
		mgr.AddHealthzCheck("ping", healthz.Ping),
		mgr.AddReadyzCheck("tekton", func(*http.Request) error {
			return errors.New("Tekton's CRDs are not installed")
		}),
		mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
			options.Logger.Info("Tekton's CRDs are not installed: nothing is built until they are")
			for missing() && ctx.Err() == nil {
				if err := releaseAll(ctx, live, namespaces, group); err != nil {
					options.Logger.Error(err, "letting deleted builds go")
				}
				select {
				case <-ctx.Done():
				case <-time.After(tektonPoll):
				}
			}
			stop()
			return nil
		})),
	)
	if err != nil {
		return fmt.Errorf("setting up the wait for Tekton: %w", err)
	}
	return mgr.Start(ctx)
}

// releaseAll releases the deleted builds of the namespaces; no namespaces means all.
func releaseAll(ctx context.Context, live client.Client, namespaces []string, group string) error {
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	var errs []error
	for _, n := range namespaces {
		var list api.AgentBuildList
		if err := live.List(ctx, &list, client.InNamespace(n)); err != nil {
			errs = append(errs, fmt.Errorf("listing AgentBuilds: %w", err))
			continue
		}
		for i := range list.Items {
			if !list.Items[i].DeletionTimestamp.IsZero() {
				errs = append(errs, release(ctx, live, &list.Items[i], group))
			}
		}
	}
	return multi.Errors(errs...)
}

// release removes the finalizer of a build.
func release(ctx context.Context, c client.Writer, b *api.AgentBuild, group string) error {
	before := b.DeepCopy()
	if !controllerutil.RemoveFinalizer(b, api.Finalizer(group)) {
		return nil
	}
	if err := c.Patch(ctx, b, client.MergeFromWithOptions(before,
		client.MergeFromWithOptimisticLock{})); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("releasing AgentBuild %s/%s: %w", b.Namespace, b.Name, err)
	}
	return nil
}
