package controller_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/e2e/bench/scale"
	"github.com/armature-dev/armature/e2e/bench/workload"
	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/e2e/programs"
	"github.com/armature-dev/armature/render/deliver/flux/api"
)

// perRepository is how many packages a repository of BenchmarkScaleSources has.
const perRepository = 50

// BenchmarkScaleSources prints how long packages take from a new revision of their repositories
// to Ready: as RenderedSources, and beside them as plain Kustomizations of Flux's own
// kustomize-controller; and to be applied: by Kustomizations of what RenderedSources publish, and
// beside them by plain ones. Both take what Flux's source-controller fetches by Git.
func BenchmarkScaleSources(b *testing.B) {
	sizes := scale.Sizes(b, 100, 500, 1000)
	for _, name := range []string{"source-controller", "kustomize-controller"} {
		programs.Peer(b, name)
	}
	plane := controlplane.Start(b)
	folders, err := crdFolders()
	if err != nil {
		b.Fatal(err)
	}
	kustomizations, err := fluxCRDs("github.com/fluxcd/kustomize-controller@v1.9.5")
	if err != nil {
		b.Fatal(err)
	}
	if err := plane.InstallCRDs(append(folders, kustomizations)...); err != nil {
		b.Fatal(err)
	}
	program := scale.Program(b, "armature-controller")
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) { newFleet(b, plane, n).measure(program) })
	}
}

// fleet is so many packages of an agent's workload each, in repositories.
type fleet struct {
	*world
	n            int
	repositories []*remote
	commits      []string
}

func newFleet(b *testing.B, plane *controlplane.ControlPlane, n int) *fleet {
	f := &fleet{world: newWorld(b, plane), n: n}
	for range (n + perRepository - 1) / perRepository {
		f.repositories = append(f.repositories, f.serveGit())
	}
	f.commits = make([]string, len(f.repositories))
	return f
}

func (f *fleet) measure(program string) {
	f.commit(0)
	for i, r := range f.repositories {
		o := f.object("GitRepository", fmt.Sprint("fleet-", i))
		o.Object["spec"] = map[string]any{"url": r.url, "interval": "1h",
			"ref": map[string]any{"branch": "main"}}
		f.must(f.Create(f.Context(), o))
	}
	f.flux("source-controller", append(storage(f, f.TempDir()), "--concurrent=4")...)
	ours := f.ours(program)
	for i := range f.n {
		f.rendered(fmt.Sprintf("app-%04d", i), fmt.Sprint("fleet-", i/perRepository),
			at(fmt.Sprintf("apps/%04d", i)))
	}
	f.await("RenderedSources are Ready", f.published)
	rendered := f.revision(1, "RenderedSources are Ready", f.published, ours)
	ours.Stop()

	flux := f.kustomize()
	for i := range f.n {
		f.must(f.Create(f.Context(), f.kustomization(i, "GitRepository",
			fmt.Sprint("fleet-", i/perRepository), fmt.Sprintf("./apps/%04d", i))))
	}
	f.await("Kustomizations are applied", f.applied)
	plain := f.revision(2, "Kustomizations are applied", f.applied, flux)
	peer := "kustomize-controller, plain Kustomizations, applied"
	scale.Row(fmt.Sprint("sources:", f.n), "RenderedSources, new revision to Ready", f.n, rendered,
		peer, plain)

	ours = f.ours(program)
	f.await("RenderedSources are Ready", f.published)
	for i := range f.n {
		want := f.kustomization(i, "ExternalArtifact", fmt.Sprintf("app-%04d", i), "./")
		f.must(f.Apply(f.Context(), client.ApplyConfigurationFromUnstructured(want),
			client.FieldOwner("bench"), client.ForceOwnership))
	}
	f.await("Kustomizations are applied", f.applied)
	scale.Row(fmt.Sprint("sources:", f.n),
		"RenderedSources and Kustomizations of them, new revision to applied", f.n,
		f.revision(3, "Kustomizations are applied", f.applied, ours, flux), peer, plain)
	flux.Stop()
}

// ours starts this repository's controller with its defaults.
func (f *fleet) ours(program string) *scale.Process {
	return scale.Start(f, []string{"KUBECONFIG=" + f.plane.Admin.Kubeconfig}, program,
		"--controllers=sources", "--namespace="+f.namespace, "--watch-namespaces="+f.namespace,
		"--leader-elect=false", "--metrics-address=0", "--health-address=0", "--log-level=error",
		"--artifact-dir="+f.dir, "--artifact-address=127.0.0.1:0", "--source-hosts=127.0.0.1")
}

// kustomize starts Flux's controller with what its guide for large clusters sets.
func (f *fleet) kustomize() *scale.Process {
	return f.flux("kustomize-controller", "--feature-gates=ExternalArtifact=true",
		"--concurrent=20", "--kube-api-qps=500", "--kube-api-burst=1000", "--requeue-dependency=5s")
}

func (f *fleet) flux(name string, args ...string) *scale.Process {
	dir := f.TempDir()
	variables := []string{"KUBECONFIG=" + f.plane.Admin.Kubeconfig,
		"RUNTIME_NAMESPACE=" + f.namespace, "HOME=" + dir, "TMPDIR=" + dir}
	return scale.Start(f, variables, programs.Peer(f, name),
		append(args, "--watch-all-namespaces=false", "--metrics-addr=0",
			"--health-addr=127.0.0.1:0", "--log-level=error")...)
}

// commit the next version of all packages.
func (f *fleet) commit(version int) {
	f.Helper()
	for r := range f.repositories {
		files := map[string]string{}
		for i := r * perRepository; i < min(f.n, (r+1)*perRepository); i++ {
			var text bytes.Buffer
			f.must(workload.Write(&text, i))
			agent := strings.Replace(text.String(), "managed-by: gitops",
				fmt.Sprintf("managed-by: gitops-%d", version), 1)
			agent = strings.Replace(agent, fmt.Sprintf("  namespace: team-%03d\n", i/100), "", 1)
			files[fmt.Sprintf("apps/%04d/agent.yaml", i)] = agent
			files[fmt.Sprintf("apps/%04d/prompts.yaml", i)] = configMap(fmt.Sprintf("prompts-%04d",
				i), fmt.Sprint("v", version))
		}
		f.commits[r] = f.repositories[r].commit(files)
	}
}

// revision commits a change of all packages, has Flux fetch it as a webhook would, and measures
// until all are done with it.
func (f *fleet) revision(version int, what string, done func() (int, string),
	all ...*scale.Process) scale.Cost {
	f.Helper()
	f.commit(version)
	cost := scale.Measure(all...)
	for i := range f.repositories {
		o := f.object("GitRepository", fmt.Sprint("fleet-", i))
		patch := fmt.Sprintf(
			`{"metadata":{"annotations":{"reconcile.fluxcd.io/requestedAt":"%d"}}}`, version)
		f.must(f.Patch(f.Context(), o,
			client.RawPatch("application/merge-patch+json", []byte(patch))))
	}
	return cost(f.await(fmt.Sprintf("revision %d: %s", version, what), done))
}

func (f *fleet) await(what string, done func() (int, string)) time.Time {
	f.Helper()
	return scale.Await(f, fmt.Sprintf("%d packages: %s", f.n, what), f.n, 10*time.Minute, done)
}

// commit of a package that is in the repositories.
func (f *fleet) head(i int) string { return "main@sha1:" + f.commits[i/perRepository] }

// published counts the RenderedSources that are Ready with the last commit.
func (f *fleet) published() (n int, why string) {
	var all api.RenderedSourceList
	f.must(f.List(f.Context(), &all, client.InNamespace(f.namespace)))
	for i, s := range all.Items { // in the order of their names
		if a := s.Status.Artifact; a != nil && a.OriginRevision == f.head(i) && a.Workloads == 1 &&
			meta.IsStatusConditionTrue(s.Status.Conditions, "Ready") {
			n++
		} else {
			why = fmt.Sprintf("%s is %+v %+v", s.Name, a, s.Status.Conditions)
		}
	}
	return n, why
}

// applied counts the Kustomizations that have applied the last commit.
func (f *fleet) applied() (n int, why string) {
	all := &unstructured.UnstructuredList{}
	all.SetGroupVersionKind(schema.GroupVersionKind{Group: "kustomize.toolkit.fluxcd.io",
		Version: "v1", Kind: "KustomizationList"})
	f.must(f.List(f.Context(), all, client.InNamespace(f.namespace)))
	for i, k := range all.Items {
		kind, _, _ := unstructured.NestedString(k.Object, "spec", "sourceRef", "kind")
		want := f.head(i)
		revision, _, _ := unstructured.NestedString(k.Object, "status", "lastAppliedRevision")
		if revision == want || kind == "ExternalArtifact" && strings.HasPrefix(revision, want+"+") {
			n++
		} else {
			why = fmt.Sprintf("%s is %v", k.GetName(), k.Object["status"])
		}
	}
	return n, why
}

func (f *fleet) kustomization(i int, kind, source, path string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization",
		"metadata": map[string]any{"namespace": f.namespace, "name": fmt.Sprintf("app-%04d", i)},
		"spec": map[string]any{"interval": "1h", "prune": true, "targetNamespace": f.namespace,
			"path":      filepath.ToSlash(path),
			"sourceRef": map[string]any{"kind": kind, "name": source}},
	}}
}
