package controller_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/e2e/bench/scale"
	"github.com/armature-dev/armature/e2e/programs"
	"github.com/armature-dev/armature/functions/api/keys"
)

// BenchmarkScaleAttest prints how long it takes until so many runs are attested that finished while
// no controller ran, as openshift-pipelines' signing-bigbang does for Tekton Chains, which then
// signs the same runs.
func BenchmarkScaleAttest(b *testing.B) {
	program := scale.Program(b, "armature-controller")
	for _, n := range scale.Sizes(b, 100, 500) {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w, s := newWorld(b), newShop(b, true)
			w.finished(s, n)
			limit := time.Minute + time.Duration(n)*time.Second
			ours := scale.Start(b, []string{"KUBECONFIG=" + shared.Get(b).Admin.Kubeconfig},
				program, "--namespace="+systemNamespace, "--watch-namespaces="+w.namespace,
				"--build-namespace="+w.options.Settings.BuildNamespace, "--leader-elect=false",
				"--metrics-address=0", "--health-address=0", "--log-level=error",
				"--git-allow-network=127.0.0.0/8")
			cost := scale.Measure(ours)
			took := cost(scale.Await(b, "builds are attested", n, limit,
				func() (have int, why string) {
					var all api.AgentBuildList
					w.must(w.List(w.Context(), &all, client.InNamespace(w.namespace)))
					for _, build := range all.Items {
						if build.Status.Attestation != nil &&
							build.Status.Phase == api.PhaseSucceeded {
							have++
						} else {
							why = fmt.Sprint(build.Name, " is ", build.Status.Phase, ": ",
								build.Status.Message)
						}
					}
					return have, why
				}))
			ours.Stop()
			for _, run := range w.runs()[:1] {
				name := run.Annotations[keys.AnnotationBuild]
				s.once(b, name,
					w.build(name).Status.Attestation.Image[len(s.host+"/"+name+":v1@"):])
			}
			what := fmt.Sprintf("finished runs until each has signature, provenance, SBOM and "+
				"test result, %.1f a second", float64(n)/took.Wall.Seconds())
			peer, theirs := "", scale.Cost{}
			if _, err := programs.Find("chains"); err != nil {
				scale.Progress("without its peer: %v", err)
			} else if theirs = w.signedByChains(s, n, limit); theirs.Wall > 0 {
				peer = fmt.Sprintf("Tekton Chains 0.24.0, provenance alone, %.1f a second",
					float64(n)/theirs.Wall.Seconds())
			}
			scale.Row(fmt.Sprint("attest:", n), what, n, took, peer, theirs)
		})
	}
}

// finished makes runs that have finished, and whose images are in a registry, while no controller
// runs.
func (w *world) finished(s *shop, n int) {
	w.Helper()
	stop := w.start()
	w.burst(0, n, s.sold)
	scale.Await(w, "runs exist", n, 10*time.Minute,
		func() (int, string) { return len(w.runs()), "" })
	scale.Await(w, "builds are under way", n, 10*time.Minute,
		func() (int, string) { return w.inPhase(api.PhaseBuilding), "" })
	stop()
	runs := w.runs()
	w.inParallel(users, n, func(i int) error {
		w.play(&runs[i], s.push(w, runs[i].Annotations[keys.AnnotationBuild]+":v1"))
		return nil
	})
	scale.Progress("%d runs have finished", n)
}

// signedByChains runs Tekton Chains with as many workers and requests as ours until it has signed
// all runs.
func (w *world) signedByChains(s *shop, n int, limit time.Duration) scale.Cost {
	w.Helper()
	const namespace = "tekton-chains"
	if out, err := exec.Command("unshare", "--mount", "true").CombinedOutput(); err != nil {
		scale.Progress("without Tekton Chains, whose key is below /etc: %v: %s", err, out)
		return scale.Cost{}
	}
	module := exec.CommandContext(w.Context(), "go", "list", "-m", "-f", "{{.Dir}}",
		"github.com/tektoncd/chains")
	module.Dir = filepath.Join("..", "..", "e2e", "chains")
	dir, err := module.Output()
	w.must(err)
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
			Name: "chains-config"}, Data: map[string]string{
			"artifacts.taskrun.storage": "", "artifacts.pipelinerun.format": "slsa/v2alpha4",
			"artifacts.pipelinerun.storage": "oci", "artifacts.oci.storage": "oci",
			"transparency.enabled": "false",
		}}} {
		w.must(client.IgnoreAlreadyExists(w.Client.Create(w.Context(), o)))
	}
	for _, name := range []string{"leader-election", "logging", "observability"} {
		text, err := os.ReadFile(filepath.Join(string(dir[:len(dir)-1]), "config",
			"config-"+name+".yaml"))
		w.must(err)
		var cm corev1.ConfigMap
		w.must(yaml.Unmarshal(text, &cm))
		w.must(client.IgnoreAlreadyExists(w.Client.Create(w.Context(), &cm)))
	}
	key := w.TempDir()
	for name, data := range attestKey.secret().Data {
		w.must(os.WriteFile(filepath.Join(key, name), data, 0o600))
	}
	// Chains reads its key from a path of its own, which only it sees.
	chains := scale.Start(w, []string{"KUBECONFIG=" + shared.Get(w.TB).Admin.Kubeconfig,
		"SYSTEM_NAMESPACE=" + namespace, "METRICS_DOMAIN=tekton.dev/chains",
		"CONFIG_OBSERVABILITY_NAME=tekton-chains-config-observability",
		"CONFIG_LEADERELECTION_NAME=tekton-chains-config-leader-election"},
		"unshare", "--mount", "sh", "-c",
		`key=$1; shift; mount -t tmpfs none /etc && mkdir /etc/signing-secrets && mount --bind "$key" /etc/signing-secrets && exec "$@"`, "sh", key, programs.Peer(w, "chains"), "--namespace="+w.options.Settings.BuildNamespace,
		fmt.Sprint("--threads-per-controller=", workers), "--kube-api-qps=500", "--kube-api-burst=1000")
	cost := scale.Measure(chains)
	end := scale.Await(w, "runs are signed by Tekton Chains", n, limit,
		func() (have int, why string) {
			var all metav1.PartialObjectMetadataList
			all.SetGroupVersionKind(tektonv1.SchemeGroupVersion.WithKind("PipelineRunList"))
			w.must(w.List(w.Context(), &all, client.InNamespace(w.options.Settings.BuildNamespace)))
			for _, run := range all.Items {
				if run.Annotations["chains.tekton.dev/signed"] == "true" {
					have++
				} else {
					why = fmt.Sprint(run.Name, " has ", run.Annotations["chains.tekton.dev/signed"],
						" ", chains.Log())
					why = why[max(0, len(why)-200):]
				}
			}
			return have, why
		})
	return cost(end)
}
