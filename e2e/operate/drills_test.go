package operate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

// The commands of docs/operate.md rotate the key, restore the catalog, etcd and a whole cluster:
// images stay verified, and no build runs twice.
func TestDrills(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "gitAllowNetwork: [127.0.0.0/8]\ncatalog: {enabled: true}\n")
	w.install()
	w.agent()
	w.listed()
	w.order("team1", "first")
	w.built("team1", "first")

	w.Log("rotate the attestation key")
	w.follow("cosign public-key --key k8s://armature-system/armature-attest-key")
	w.order("team1", "second")
	w.built("team1", "second")
	verify := func(name string, keys ...string) bool {
		t.Helper()
		policy := "apiVersion: armature.dev/v1alpha1\nkind: VerifyPolicy\nmetadata: {name: test}\n" +
			"spec: {keys: [" + strings.Join(keys, ", ") + "], insecureIgnoreTlog: true}\n"
		must(t, os.WriteFile(filepath.Join(w.dir, "policy.yaml"), []byte(policy), 0o600))
		image := w.phase("team1", name, api.PhaseSucceeded).Status.BuiltImage
		return w.sh("armature artifact verify oci://"+image+
			" --verify-policy policy.yaml --insecure-registry >&2 && echo yes || echo no") == "yes\n"
	}
	for _, c := range []struct {
		image string
		keys  []string
		want  bool
	}{
		{"first", []string{"former.pub", "cosign.pub"}, true},
		{"second", []string{"former.pub", "cosign.pub"}, true},
		{"first", []string{"cosign.pub"}, false}, {"second", []string{"former.pub"}, false},
	} {
		if got := verify(c.image, c.keys...); got != c.want {
			t.Errorf("%s is verified by %v: %t, want %t", c.image, c.keys, got, c.want)
		}
	}

	w.Log("the catalog loses its store")
	w.followLine("kubectl rollout restart deployment armature-catalog -n armature-system")
	w.listed()

	w.Log("an inventory is lost")
	must(t, os.Mkdir(filepath.Join(w.dir, "app"), 0o700))
	must(t,
		os.WriteFile(filepath.Join(w.dir, "app", "map.yaml"),
			[]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {a: b}\n"), 0o600))
	w.sh("armature apply app -n team1 --yes; kubectl delete configmap armature-app -n team1; " +
		"armature apply app -n team1 --yes")
	w.sh("kubectl get configmap armature-app settings -n team1; armature delete app -n team1 --yes")
	if out := w.sh("kubectl get configmap settings -n team1 --ignore-not-found"); out != "" {
		t.Errorf("the new inventory lacks what was there: %s", out)
	}

	w.Log("etcd is restored from a backup")
	w.order("team1", "hold")
	w.held.Store(true)
	w.phase("team1", "hold", api.PhaseBuilding)
	w.scale("0")
	data, err := w.plane.StopEtcd()
	must(t, err)
	backup := t.TempDir()
	must(t, os.CopyFS(backup, os.DirFS(data)))
	must(t, w.plane.StartEtcd())
	w.scale("1")
	w.held.Store(false)
	w.order("team1", "late")
	w.built("team1", "hold", "late")
	w.held.Store(true)
	w.scale("0")
	_, err = w.plane.StopEtcd()
	must(t, err)
	must(t, os.RemoveAll(data))
	must(t, os.CopyFS(data, os.DirFS(backup)))
	must(t, w.plane.StartEtcd())
	w.scale("1")
	w.held.Store(false)
	w.order("team1", "late") // as Git has it
	w.built("team1", "first", "second", "hold", "late")
	w.listed()

	w.Log("a new cluster is restored from files")
	w.follow("kubectl get secret armature-attest-key")
	before := w.status()
	other := newWorld(t, "")
	for _, file := range []string{"attest-key.yaml", "agentbuilds.yaml"} {
		text, err := os.ReadFile(filepath.Join(w.dir, file))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(other.dir, file), text, 0o600))
	}
	other.follow("kubectl apply -f attest-key.yaml -f agentbuilds.yaml")
	other.registry = w.registry
	// the controller works
	other.order("team1", "mark", func(b *api.AgentBuild) { b.Spec.Mode = "dev" })
	other.built("team1", "mark")
	after := other.status()
	delete(after, "mark")
	for name, image := range before {
		if after[name] != image {
			t.Errorf("build %s has %q, want %q", name, after[name], image)
		}
	}
	var runs tektonv1.PipelineRunList
	must(t, other.List(t.Context(), &runs))
	for _, run := range runs.Items {
		if !strings.HasPrefix(run.Name, "mark") {
			t.Errorf("run %s was started", run.Name)
		}
	}
}

// status has the image, phase and number of the run of each build in team1.
func (w *world) status() map[string]string {
	w.Helper()
	var list api.AgentBuildList
	must(w.T, w.List(w.Context(), &list, client.InNamespace("team1")))
	out := make(map[string]string)
	for _, b := range list.Items {
		out[b.Name] = strings.Join([]string{string(b.Status.Phase), b.Status.BuiltImage,
			b.Status.PipelineRunName}, " ")
	}
	return out
}
