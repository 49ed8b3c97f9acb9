package scale_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	catalog "github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/catalog/api/kagent"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/catalog/store/database"
	"github.com/armature-dev/armature/e2e/bench/scale"
	"github.com/armature-dev/armature/e2e/bench/workload"
	"github.com/armature-dev/armature/e2e/catalog/peer"
	"github.com/armature-dev/armature/e2e/catalog/postgres"
	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/archive"
	flux "github.com/armature-dev/armature/render/deliver/flux/api"
	sources "github.com/armature-dev/armature/render/deliver/flux/controller"
	"github.com/armature-dev/armature/templates"
)

const (
	// Of N builds, so many sources and agents are in a fleet, which is spread over namespaces.
	sourcesOf, agentsOf = 0.4, 4
	// Every so many of the agents is a server of tools.
	serverEvery = 20
	namespaces  = 50
	system      = "armature-system"
)

// BenchmarkScaleFleet prints how long controllers take until a fleet has converged, each held to a
// quarter of a core, against the number of shards: all builds have another commit and are built,
// all sources have another revision and are rendered, and all agents and servers are asked by a
// catalog whose store is empty. Runs finish by a stand-in for Tekton as soon as they exist. Before
// it measures, all has converged once, so that each round has the same to do.
func BenchmarkScaleFleet(b *testing.B) {
	program := scale.Program(b, "armature-controller")
	for _, n := range scale.Sizes(b, 2000) {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f := newFleet(b, n)
			f.converge(program, 4, false)
			rounds := []int{1, 2, 4}
			if n > 2000 {
				rounds = []int{4} // fewer have too much to do for 256 MiB
			}
			for _, shards := range rounds {
				f.converge(program, shards, true)
			}
		})
	}
}

type fleet struct {
	testing.TB
	client.Client
	plane                     *controlplane.ControlPlane
	postgres                  *postgres.Server
	builds, sources, agents   int
	host                      string // that serves archives of sources, and tools
	archive                   atomic.Value
	round                     atomic.Int64
	built, rendered, asked    sync.Map // the round in which each was seen, by its name
	nBuilt, nRendered, nAsked atomic.Int64
}

func newFleet(b *testing.B, n int) *fleet {
	f := &fleet{TB: b, plane: controlplane.Start(b), postgres: postgres.Own(b), builds: n,
		sources: int(sourcesOf * float64(n)), agents: agentsOf * n}
	crds := []string{"../../../templates/crds", "../../../templates/crds/catalog",
		"../../../templates/crds/sources"}
	for module, folder := range map[string][2]string{
		"github.com/tektoncd/pipeline":        {"../../tekton", "config/300-crds"},
		"github.com/fluxcd/source-controller": {"../../flux", "config/crd/bases"},
	} {
		crds = append(crds,
			filepath.Join(moduleDir(b, folder[0], module), filepath.FromSlash(folder[1])))
	}
	must(b, f.plane.InstallCRDs(crds...))
	scheme, err := sources.Scheme()
	must(b, err)
	must(b, multi.Errors(clientgoscheme.AddToScheme(scheme), tektonv1.AddToScheme(scheme),
		catalog.AddToScheme(scheme), kagent.AddToScheme(scheme)))
	api.AddToScheme(scheme, api.DefaultGroup)
	config := f.plane.Admin.Config
	config.QPS, config.Burst = 2000, 2000
	f.Client, err = client.New(config, client.Options{Scheme: scheme})
	must(b, err)
	f.serve()
	f.create()
	all, err := cache.New(config,
		cache.Options{Scheme: scheme, DefaultTransform: func(o any) (any, error) {
			o.(client.Object).SetManagedFields(nil)
			return o, nil
		}})
	must(b, err)
	runs := &metav1.PartialObjectMetadata{}
	runs.SetGroupVersionKind(tektonv1.SchemeGroupVersion.WithKind("PipelineRun"))
	played := make(chan struct{}, 16) // runs at once
	f.watch(all, runs, func(o client.Object) {
		if f.begins(o) {
			go func() {
				played <- struct{}{}
				f.play(o)
				<-played
			}()
		}
	})
	f.watch(all, &api.AgentBuild{}, func(o client.Object) {
		if s := o.(*api.AgentBuild).Status; s.Phase == api.PhaseSucceeded &&
			s.ObservedGeneration == o.GetGeneration() &&
			o.(*api.AgentBuild).Spec.Source.SourceRevision == f.commit() {
			f.see(&f.built, &f.nBuilt, o.GetNamespace()+"/"+o.GetName())
		}
	})
	f.watch(all, &flux.RenderedSource{}, func(o client.Object) {
		if a := o.(*flux.RenderedSource).Status.Artifact; a != nil &&
			a.OriginRevision == f.revision() {
			f.see(&f.rendered, &f.nRendered, o.GetNamespace()+"/"+o.GetName())
		}
	})
	go func() { _ = all.Start(b.Context()) }()
	all.WaitForCacheSync(b.Context())
	return f
}

// see counts a name once a round.
func (f *fleet) see(all *sync.Map, n *atomic.Int64, name string) {
	round := f.round.Load()
	if before, seen := all.Swap(name, round); !seen || before != round {
		n.Add(1)
	}
}

// commit and revision are those of a round.
func (f *fleet) commit() string   { return fmt.Sprintf("%040x", f.round.Load()) }
func (f *fleet) revision() string { return "main@sha1:" + f.commit() }

func (f *fleet) watch(all cache.Cache, o client.Object, see func(client.Object)) {
	informer, err := all.GetInformer(f.Context(), o, cache.BlockUntilSynced(false))
	must(f, err)
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { see(o.(client.Object)) },
		UpdateFunc: func(_, o any) { see(o.(client.Object)) },
	})
	must(f, err)
}

// begins reports whether a run has not been played.
func (f *fleet) begins(o client.Object) bool {
	_, begun := f.built.LoadOrStore(o.GetUID(), true)
	return !begun && o.GetDeletionTimestamp() == nil &&
		o.GetLabels()[compose.LabelManagedBy] == compose.ManagedBy
}

// play a run to its end as Tekton does: it begins, and then it has succeeded.
func (f *fleet) play(o client.Object) {
	now := time.Now().UTC().Format(time.RFC3339)
	for _, condition := range []map[string]string{
		{"type": "Succeeded", "status": "Unknown", "reason": "Running",
			"message": "Tasks Completed: 0", "lastTransitionTime": now},
		{"type": "Succeeded", "status": "True", "reason": "Succeeded",
			"message": "Tasks Completed: 4", "lastTransitionTime": now},
	} {
		status := map[string]any{"startTime": now, "conditions": []any{condition}}
		if condition["status"] == "True" {
			status["completionTime"] = now
			status["results"] = []any{map[string]string{"name": "IMAGE_DIGEST", "type": "string",
				"value": "sha256:" + strings.Repeat("a", 64)},
				map[string]string{"name": "CHAINS-GIT_COMMIT", "type": "string",
					"value": o.GetAnnotations()[keys.AnnotationCommit]}}
		}
		patch, err := json.Marshal(map[string]any{"status": status})
		if err == nil {
			run := &tektonv1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: o.GetNamespace(),
				Name: o.GetName()}}
			err = f.Status().Patch(f.Context(), run,
				client.RawPatch("application/merge-patch+json", patch))
		}
		if err != nil && f.Context().Err() == nil {
			f.Errorf("playing run %s: %v", o.GetName(), err)
		}
	}
}

// serve archives of sources, cards of agents and servers of tools.
func (f *fleet) serve() {
	mux := http.NewServeMux()
	mux.HandleFunc("/gitrepository/", func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(f.archive.Load().([]byte))
	})
	tools := peer.Streamable(peer.Server("tools", 20, peer.Many("tools", 10)...))
	mux.HandleFunc("/tools/", func(w http.ResponseWriter, r *http.Request) {
		f.see(&f.asked, &f.nAsked, r.URL.Path)
		tools.ServeHTTP(w, r)
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(f, err)
	f.host = l.Addr().String()
	// all of loopback: the address is that of an agent
	agents, err := net.Listen("tcp", "0.0.0.0:8081")
	must(f, err)
	card, err := json.Marshal(peer.Card("agent", "It answers questions about its subject", "1.0.0",
		"answer", "explain"))
	must(f, err)
	for _, s := range []struct {
		l net.Listener
		h http.Handler
	}{{l, mux}, {agents, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.see(&f.asked, &f.nAsked, r.Host)
		_, _ = w.Write(card)
	})}} {
		server := &http.Server{Handler: s.h, ReadHeaderTimeout: time.Minute}
		go func() { _ = server.Serve(s.l) }()
		f.Cleanup(func() { _ = server.Close() })
	}
}

func namespace(i int) string { return fmt.Sprintf("team-%02d", i%namespaces) }

// meta of an object that is in one of 1, 2 and 4 shards.
func meta(kind string, i int) metav1.ObjectMeta {
	k := i / namespaces
	return metav1.ObjectMeta{Namespace: namespace(i), Name: fmt.Sprintf("%s-%05d", kind, i),
		Labels: map[string]string{"shards-1": "0", "shards-2": fmt.Sprint(k % 2),
			"shards-4": fmt.Sprint(k % 4)}}
}

func (f *fleet) create() {
	for _, name := range append([]string{system}, func() (all []string) {
		for i := range namespaces {
			all = append(all, namespace(i))
		}
		return all
	}()...) {
		must(f, f.Create(f.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	must(f, fs.WalkDir(templates.Files, ".", func(file string, d fs.DirEntry, err error) error {
		if folder := path.Dir(file); err != nil || d.IsDir() ||
			folder != "modes" && folder != "steps" || path.Base(file) == "kustomization.yaml" {
			return err
		}
		text, err := templates.Files.ReadFile(file)
		cm := &corev1.ConfigMap{}
		if err = multi.Errors(err, yaml.Unmarshal(text, cm)); err != nil {
			return err
		}
		cm.Namespace = system
		return f.Create(f.Context(), cm)
	}))
	for i := range namespaces {
		must(f, f.Create(f.Context(), f.repository(i)))
	}
	f.parallel("builds exist", f.builds, func(i int) error {
		o := &api.AgentBuild{ObjectMeta: meta("build", i)}
		o.Spec.Source = api.SourceSpec{SourceRepository: "github.com/org/" + o.Name + ".git",
			SourceRevision: f.commit()}
		o.Spec.BuildOutput = &api.BuildOutput{Image: o.Name, ImageTag: "v1",
			ImageRegistry: "registry.local:5000"}
		return f.Create(f.Context(), o)
	})
	f.parallel("sources exist", f.sources, func(i int) error {
		o := &flux.RenderedSource{ObjectMeta: meta("source", i)}
		o.Spec.SourceRef, o.Spec.Path, o.Spec.Interval =
			flux.SourceReference{Kind: "GitRepository", Name: "fleet"}, fmt.Sprintf("apps/%02d",
				i%packages), "1h"
		return f.Create(f.Context(), o)
	})
	f.parallel("agents and servers exist", f.agents, func(i int) error {
		if i%serverEvery == 0 {
			o := &kagent.RemoteMCPServer{ObjectMeta: meta("server", i)}
			o.Spec.URL = fmt.Sprintf("http://%s/tools/%d", f.host, i)
			return f.Create(f.Context(), o)
		}
		card := &catalog.AgentCard{ObjectMeta: meta("agent", i)}
		labels := map[string]string{"app": card.Name}
		card.Spec.Selector, card.Spec.SyncPeriod = &metav1.LabelSelector{MatchLabels: labels}, "1h"
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: card.Namespace, Name: card.Name,
			Labels: labels},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: "agent"}}}}
		err := f.Create(f.Context(), pod)
		pod.Status.PodIP = fmt.Sprintf("127.%d.%d.%d", 1+i/(250*250), i/250%250, i%250+1)
		pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady,
			Status: corev1.ConditionTrue}}
		if err == nil {
			err = f.Status().Update(f.Context(), pod)
		}
		if err == nil {
			err = f.Create(f.Context(), card)
		}
		return err
	})
}

// packages of the one repository that each namespace has.
const packages = 40

func (f *fleet) repository(i int) *unstructured.Unstructured {
	o := &unstructured.Unstructured{
		Object: map[string]any{"spec": map[string]any{"url": "https://git.example/fleet",
			"interval": "1h"}}}
	o.SetGroupVersionKind(sources.FluxSources.WithKind("GitRepository"))
	o.SetNamespace(namespace(i))
	o.SetName("fleet")
	return o
}

// change all builds and the revision of all sources, while no controller runs.
func (f *fleet) change() {
	f.round.Add(1)
	for _, n := range []*atomic.Int64{&f.nBuilt, &f.nRendered, &f.nAsked} {
		n.Store(0)
	}
	f.push()
	f.parallel("builds have another commit", f.builds, func(i int) error {
		patch := fmt.Sprintf(`{"spec":{"source":{"sourceRevision":%q}}}`, f.commit())
		return f.Patch(f.Context(), &api.AgentBuild{ObjectMeta: meta("build", i)},
			client.RawPatch("application/merge-patch+json", []byte(patch)))
	})
}

// push another revision to the repositories of the sources.
func (f *fleet) push() {
	files := map[string][]byte{}
	for i := range packages {
		var text strings.Builder
		must(f, workload.Write(&text, i))
		files[fmt.Sprintf("apps/%02d/agent.yaml", i)] = []byte(strings.Replace(text.String(),
			"gitops", fmt.Sprint("gitops-", f.round.Load()), 1))
	}
	data, err := archive.Write(files)
	must(f, err)
	f.archive.Store(data)
	for i := range namespaces {
		status, err := json.Marshal(
			map[string]any{"status": map[string]any{"artifact": map[string]any{
				"digest": archive.Digest(data),
				"path":   "gitrepository/" + namespace(i) + "/fleet/a.tar.gz",
				"url": "http://" + f.host + "/gitrepository/" + namespace(i) +
					"/fleet/a.tar.gz",
				"revision": f.revision(), "lastUpdateTime": "2026-11-22T20:00:00Z",
				"size": len(data),
			}}})
		must(f, err)
		must(f, f.Status().Patch(f.Context(), f.repository(i),
			client.RawPatch("application/merge-patch+json", status)))
	}
}

// converge once, with what it costs in a row if that is measured.
func (f *fleet) converge(program string, shards int, measured bool) {
	f.Helper()
	f.change()
	var all []*scale.Process
	folder := f.TempDir()
	address, err := f.postgres.Database()
	must(f, err)
	must(f, os.WriteFile(filepath.Join(folder, "store"), []byte(address), 0o600))
	for i := range shards {
		p := scale.Start(f, []string{"KUBECONFIG=" + f.plane.Admin.Kubeconfig, "GOMEMLIMIT=256MiB"},
			program, "--controllers=builds,sources,catalog", "--namespace="+system,
			fmt.Sprintf("--shard=shards-%d=%d", shards, i), "--leader-elect=false",
			"--metrics-address=0", "--health-address=0", "--log-level=error",
			"--artifact-dir="+filepath.Join(folder, fmt.Sprint(i)),
			"--artifact-address=127.0.0.1:0", "--source-hosts=127.0.0.1",
			"--catalog-store-file="+filepath.Join(folder, "store"), "--catalog-address=0",
			"--catalog-allow-network=127.0.0.0/8", "--catalog-server-period=1h")
		if measured {
			p.Hold()
		}
		all = append(all, p)
	}
	cost := scale.Measure(all...)
	limit := time.Minute + time.Duration(f.builds)*200*time.Millisecond
	total := f.builds + f.sources + f.agents
	end := scale.Await(f, fmt.Sprintf("%d shards: builds, sources and agents converged", shards),
		total, limit, func() (int, string) {
			b, s, a := int(f.nBuilt.Load()), int(f.nRendered.Load()), int(f.nAsked.Load())
			return b + s + a, fmt.Sprintf("%d builds, %d sources, %d agents and servers are done",
				b, s, a)
		})
	scale.Await(f, "agents and servers are stored", f.agents, time.Minute, func() (int, string) {
		end = time.Now()
		return healthy(f, address), ""
	})
	if measured {
		what := fmt.Sprintf("a fleet of as many builds, %d sources, %d agents and servers, %d "+
			"shards, each held to a quarter of a core and 256 MiB; memory of the largest",
			f.sources, f.agents, shards)
		scale.Row(fmt.Sprint("fleet:", f.builds), what, f.builds, cost(end), "", scale.Cost{})
	}
	for _, p := range all {
		p.Stop()
	}
}

func healthy(t testing.TB, address string) int {
	t.Helper()
	s, err := database.Open(t.Context(), address)
	must(t, err)
	defer s.Close()
	tally, err := store.Tally(t.Context(), s, store.Query{Scope: store.Everything()})
	must(t, err)
	return tally[store.Healthy]
}

// parallel does something n times, several at once.
func (f *fleet) parallel(what string, n int, do func(i int) error) {
	f.Helper()
	var done atomic.Int64
	ctx, cancel := context.WithCancelCause(f.Context())
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for i := int(done.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(done.Add(1)) - 1 {
				if err := do(i); err != nil {
					cancel(fmt.Errorf("%s: %d of %d: %w", what, i, n, err))
				}
			}
		})
	}
	go func() { group.Wait(); cancel(context.Canceled) }()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Second):
			scale.Progress("%s: %d of %d", what, done.Load(), n)
		}
	}
	group.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		f.Fatal(err)
	}
	scale.Progress("%s: %d", what, n)
}
