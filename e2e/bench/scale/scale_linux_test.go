package scale_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/armature-dev/armature/e2e/bench/scale"
	"github.com/armature-dev/armature/e2e/bench/workload"
	"github.com/armature-dev/armature/e2e/programs"
	"github.com/armature-dev/armature/functions/api/keys"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, folder, name, text string) {
	t.Helper()
	file := filepath.Join(folder, filepath.FromSlash(name))
	must(t, os.MkdirAll(filepath.Dir(file), 0o755))
	must(t, os.WriteFile(file, []byte(text), 0o644))
}

// BenchmarkScaleKustomize prints what kustomize takes for many resources, with our function by
// exec, and beside that with cat by exec and with none. Of 4,000 resources, which have 1.4 MB, 40
// are workloads that opt in.
func BenchmarkScaleKustomize(b *testing.B) {
	sizes := scale.Sizes(b, 1000, 4000)
	kustomize := programs.Peer(b, "kustomize")
	function := scale.Program(b, "armature-fn")
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			folder := b.TempDir()
			var resources bytes.Buffer
			for i := range n {
				if i%100 == 0 {
					must(b, workload.Write(&resources, i))
				} else {
					fmt.Fprintf(&resources,
						"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: settings-%05d\n"+
							"  namespace: team-%03d\n  labels:\n    app.kubernetes.io/part-of: "+
							"team-%[2]d\n"+
							"    app.kubernetes.io/managed-by: gitops\ndata:\n  model: gpt-4\n"+
							"  endpoint: http://llm-gateway.platform.svc.cluster.local:8080/v1\n"+
							"  number: \"%[1]d\"\n  prompt: answer what the team asks\n", i, i/100)
				}
				resources.WriteString("---\n")
			}
			build := func(name, program string) (scale.Cost, []byte) {
				text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n" +
					"resources:\n- resources.yaml\n"
				if program != "" {
					text += fmt.Sprintf("transformers:\n- |-\n  apiVersion: %s\n"+
						"  kind: RenderConfig\n  metadata:\n    name: bench\n    annotations:\n"+
						"      config.kubernetes.io/function: |\n        exec: {path: %q}\n",
						keys.V1alpha1, program)
				}
				write(b, folder, name+"/resources.yaml", resources.String())
				write(b, folder, name+"/kustomization.yaml", text)
				c, out := scale.Run(b, nil, kustomize, "build", "--enable-alpha-plugins",
					"--enable-exec", filepath.Join(folder, name))
				scale.Progress("kustomize build of %d resources of %d KiB, %s: %s", n,
					resources.Len()>>10, name, c)
				return c, out
			}
			ours, rendered := build("ours", function)
			cat, _ := build("cat", "/bin/cat")
			alone, _ := build("alone", "")
			if got := bytes.Count(rendered, []byte("name: authbridge-proxy\n")); got != (n+99)/100 {
				b.Fatalf("%d workloads are injected, want %d", got, (n+99)/100)
			}
			what := fmt.Sprintf("`kustomize build` of resources of %.1f MB with `armature-fn`",
				float64(resources.Len())/1e6)
			scale.Row(fmt.Sprint("kustomize:", n), what, n, ours, "with `cat` as the function", cat)
			scale.Row(fmt.Sprint("kustomize:", n), what, n, ours, "without a function", alone)
		})
	}
}

// moduleDir is the folder of a module that the module in a folder requires.
func moduleDir(t testing.TB, folder, module string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module)
	cmd.Dir = folder
	out, err := cmd.Output()
	must(t, err)
	var found struct{ Dir string }
	must(t, json.Unmarshal(out, &found))
	return found.Dir
}
