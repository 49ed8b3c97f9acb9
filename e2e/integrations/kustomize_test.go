package integrations

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/functions/krm"
)

func TestKustomizeSkipsFunctionsSilently(t *testing.T) {
	dir := examples(t, "weather-agent")
	kustomization(t, dir, "")
	out := must(t, dir, "", kustomize(t), "build", "--enable-alpha-plugins", dir)
	if strings.Contains(out, "proxy-init") {
		t.Fatal(
			"kustomize runs exec functions without --enable-exec by now: say so in the documents")
	}
	output := mustFail(t, dir, out, "armature", "verify", "-c", "armature.yaml", "-")
	for _, want := range []string{"opted in, but was not rendered", "--enable-exec"} {
		if !strings.Contains(output, want) {
			t.Errorf("verify does not say %q:\n%s", want, output)
		}
	}
	if output := mustFail(t, dir, "", "armature", "verify", "-"); !strings.Contains(output,
		"nothing on standard input") {
		t.Errorf("verify of nothing says %s", output)
	}
}

// kustomize compares what a validator returns with what it has in memory, line numbers and style
// included, so that even /bin/cat fails (kubernetes-sigs/kustomize#5036). The findings of verify
// are shown all the same.
func TestKustomizeValidators(t *testing.T) {
	dir := examples(t, "memory-agent")
	write(t, dir, "verify.yaml", verifyConfig)
	kustomization := "resources: [statefulset.yaml]\nvalidators: [verify.yaml]\n"
	write(t, dir, "kustomization.yaml", kustomization)
	if output := mustFail(t, dir, "", kustomize(t), buildArgs(dir)...); !strings.Contains(output,
		"opted in, but was not rendered") {
		t.Errorf("a validator of what is not rendered: %s", output)
	}
	write(t, dir, "verify.yaml",
		strings.NewReplacer("armature-fn", "/bin/cat", "[verify]", "[]").Replace(verifyConfig))
	if output := mustFail(t, dir, "", kustomize(t), buildArgs(dir)...); !strings.Contains(output,
		"validator shouldn't modify the resource map") {
		t.Errorf("kustomize takes validators by now: say so in docs/hosts.md\n%s", output)
	}
}

func TestKustomizeRenames(t *testing.T) {
	dir := examples(t, "weather-agent")
	kustomization(t, dir, "namePrefix: dev-\nnameSuffix: -v2\nnamespace: dev\n")
	out := must(t, dir, "", kustomize(t), buildArgs(dir)...)
	must(t, dir, out, "armature", "verify", "-c", "armature.yaml", "-")
	all := objects(t, out)
	for _, id := range []string{"Deployment dev/dev-weather-agent-v2",
		"ConfigMap dev/authbridge-config-dev-weather-agent-v2",
		"ConfigMap dev/dev-weather-agent-v2-trace"} {
		if all[id] == nil {
			t.Errorf("no %s", id)
		}
	}
	if !strings.Contains(out, "premium-api.partners.svc.cluster.local") {
		t.Error("the TokenExchange did not find its renamed workload")
	}
	for _, book := range []string{"kustomize.config.k8s.io/", "config.kubernetes.io/", "config.k8s.io/"} {
		if strings.Contains(out, book) {
			t.Errorf("kustomize's own annotations %s stayed in the output", book)
		}
	}

	// Two overlays of one base: each custom resource goes with its own workload.
	both := t.TempDir()
	for _, name := range []string{"base", "one", "two"} {
		if err := os.Mkdir(filepath.Join(both, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range manifests(t, dir) {
		write(t, both, "base/"+name, read(t, dir, name))
	}
	write(t, both, "base/kustomization.yaml",
		"resources: ["+strings.Join(manifests(t, dir), ", ")+"]\n")
	write(t, both, "one/kustomization.yaml", "resources: [../base]\nnamePrefix: one-\n")
	write(t, both, "two/kustomization.yaml", "resources: [../base]\nnamePrefix: two-\n")
	write(t, both, "armature.yaml", read(t, dir, "armature.yaml"))
	write(t, both, "kustomization.yaml", "resources: [one, two]\ntransformers: [armature.yaml]\n")
	out = must(t, both, "", kustomize(t), buildArgs(both)...)
	must(t, both, out, "armature", "verify", "-c", "armature.yaml", "-")
	if n := strings.Count(out, `- host: "premium-api.partners.svc.cluster.local"`); n != 2 {
		t.Errorf("%d of 2 routes are there", n)
	}
}

// A kustomization takes the lock under resources although its name does not end
// in .yaml, hands it to the functions, and leaves it out of what it writes.
func TestKustomizeLock(t *testing.T) {
	const image = "ghcr.io/example/node-agent:v1"
	pinned := image + "@sha256:" + strings.Repeat("5", 64)
	dir := t.TempDir()
	// Without quotes: an image is remembered with those of the file, which
	// kustomize drops on the way in.
	write(t, dir, "daemonset.yaml", strings.ReplaceAll(daemonSet, `"`+image+`"`, image))
	kustomization(t, dir, "- verify.yaml\n")
	write(t, dir, "verify.yaml", verifyConfig)
	without := must(t, dir, "", kustomize(t), buildArgs(dir)...)
	if strings.Contains(without, "@sha256:") {
		t.Fatalf("pinned without a lock:\n%s", without)
	}
	write(t, dir, "armature.lock",
		"apiVersion: armature.dev/v1alpha1\nkind: ImageLock\nmetadata:\n  name: images\n"+
			"  annotations:\n    config.kubernetes.io/local-config: \"true\"\n"+
			"spec:\n  images:\n  - {image: "+image+", digest: "+
			strings.TrimPrefix(pinned, image+"@")+"}\n")
	write(t, dir, "kustomization.yaml", strings.Replace(read(t, dir, "kustomization.yaml"),
		"resources:\n", "resources:\n- armature.lock\n", 1))
	out := must(t, dir, "", kustomize(t), buildArgs(dir)...)
	if !strings.Contains(out, "image: "+pinned+"\n") {
		t.Errorf("not pinned:\n%s", out)
	}
	if strings.Contains(out, "ImageLock") || strings.Contains(out, krm.LocalConfig) {
		t.Errorf("the lock leaves the package:\n%s", out)
	}
	// The folder's own render takes the same lock.
	want := objects(t, must(t, dir, "", "armature", "render", filepath.Join(dir, "daemonset.yaml")))
	if diff := cmp.Diff(want, objects(t, out)); diff != "" {
		t.Errorf("differs from the command line's (-command line +kustomize):\n%s", diff)
	}
	must(t, dir, out, "armature", "verify", "-c", "armature.yaml", "--lock", "armature.lock", "-")
}

func TestKustomizeExecPaths(t *testing.T) {
	dir := examples(t, "memory-agent")
	kustomization(t, dir, "")
	config := read(t, dir, "armature.yaml")
	if err := os.Symlink(filepath.Join(bin, "armature-fn"), filepath.Join(dir, "fn")); err != nil {
		t.Fatal(err)
	}
	want := must(t, dir, "", kustomize(t), buildArgs(dir)...)
	for _, path := range []string{"./fn", filepath.Join(bin, "armature-fn")} {
		write(t, dir, "armature.yaml", strings.Replace(config, "path: armature-fn", "path: "+path, 1))
		if got := must(t, "/", "", kustomize(t), buildArgs(dir)...); got != want {
			t.Errorf("path %s: %s", path, cmp.Diff(want, got))
		}
	}
}
