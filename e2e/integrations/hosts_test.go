// Package integrations runs the same packages through every host that calls Armature,
// and compares what comes out.
package integrations

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render/deliver/flux/build"
)

func TestSameObjectsThroughEveryHost(t *testing.T) {
	hosts := map[string]func(t *testing.T, dir string) string{
		"stdin": func(t *testing.T, dir string) string {
			return must(t, dir, stream(t, dir), "armature", "render", "-")
		},
		"folder": func(t *testing.T, dir string) string {
			must(t, dir, "", "armature", "render", dir, "-d", dir+"/out")
			must(t, dir, "", "armature", "verify", dir+"/out")
			return stream(t, dir+"/out")
		},
		"kustomize-pipe": func(t *testing.T, dir string) string {
			kustomization(t, dir, "")
			write(t, dir, "kustomization.yaml",
				"resources: ["+strings.Join(manifests(t, dir), ", ")+"]\n")
			return must(t, dir, must(t, dir, "", kustomize(t), "build", dir), "armature", "render", "-")
		},
		"kustomize": func(t *testing.T, dir string) string {
			kustomization(t, dir, "- verify.yaml\n")
			_, spec, _ := strings.Cut(read(t, dir, "armature.yaml"), "\nspec:\n")
			write(t, dir, "verify.yaml", verifyConfig+"spec:\n"+spec)
			out := must(t, dir, "", kustomize(t), buildArgs(dir)...)
			must(t, dir, out, "armature", "verify", "-c", "armature.yaml", "-")
			again := t.TempDir()
			write(t, again, "all.yaml", out)
			write(t, again, "armature.yaml", read(t, dir, "armature.yaml"))
			kustomization(t, again, "")
			if diff := cmp.Diff(out, must(t, again, "", kustomize(t), buildArgs(again)...)); diff != "" {
				t.Errorf("building what was built changes it (-first +second):\n%s", diff)
			}
			return out
		},
		"kpt-eval": func(t *testing.T, dir string) string {
			needKpt(t)
			args := []string{"fn", "eval", dir, "--exec", "armature-fn"}
			if configuration(t, dir) != "" {
				args = append(args, "--fn-config", dir+"/armature.yaml")
			}
			must(t, dir, "", "kpt", args...)
			return stream(t, dir)
		},
		"kpt-render": func(t *testing.T, dir string) string {
			needKpt(t)
			initFor(t, dir, "kpt")
			must(t, dir, "", "kpt", "fn", "render", "--allow-exec", dir)
			first := stream(t, dir)
			must(t, dir, "", "kpt", "fn", "render", "--allow-exec", dir)
			if diff := cmp.Diff(first, stream(t, dir)); diff != "" {
				t.Errorf("the second kpt fn render changes the package (-first +second):\n%s", diff)
			}
			must(t, dir, "", "armature", "verify", dir)
			return first
		},
		"list-v1": func(t *testing.T, dir string) string {
			return must(t, dir, resourceList(t, dir, "config.kubernetes.io/v1"), "armature-fn")
		},
		"list-v1beta1": func(t *testing.T, dir string) string {
			return must(t, dir, resourceList(t, dir, "config.kubernetes.io/v1beta1"), "armature-fn")
		},
		"list-json": func(t *testing.T, dir string) string {
			n, err := yaml.Parse(resourceList(t, dir, "config.kubernetes.io/v1"))
			if err != nil {
				t.Fatal(err)
			}
			data, err := n.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			return must(t, dir, string(data), "armature-fn")
		},
		"argocd": func(t *testing.T, dir string) string {
			initFor(t, dir, "")
			answer := ask(t, plugin(t), dir, dir)
			return strings.Join(answer.Manifests, "\n---\n")
		},
		"hydrate": func(t *testing.T, dir string) string {
			repository := t.TempDir()
			if err := os.CopyFS(filepath.Join(repository, "apps"), os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			for _, args := range [][]string{{"init", "-q"}, {"config", "user.name", "ci"},
				{"config", "user.email", "ci@example.com"}, {"add", "-A"},
				{"commit", "-qm", "The package"}} {
				must(t, repository, "", "git", args...)
			}
			must(t, repository, "", "armature", "hydrate", "apps", "--branch", "rendered", "--repo",
				"https://git.example/fleet")
			return must(t, repository, "", "git", "show", "rendered:apps/manifest.yaml")
		},
		"rendered-source": func(t *testing.T, dir string) string {
			files := make(map[string][]byte)
			for _, name := range manifests(t, dir) {
				files[name] = []byte(read(t, dir, name))
			}
			if config := configuration(t, dir); config != "" {
				files["armature.yaml"] = []byte(config)
			}
			r := build.Run(files, build.Options{})
			if finding.Failed(r.Findings) {
				t.Fatal(r.Findings)
			}
			var all []string
			for _, name := range slices.Sorted(maps.Keys(r.Files)) {
				all = append(all, string(r.Files[name]))
			}
			return strings.Join(all, "\n---\n")
		},
	}
	for _, name := range []string{"helm-3", "helm-4"} {
		hosts[name] = func(t *testing.T, dir string) string {
			manifest, _ := template(t, engines(t, configuration(t, dir))[name], chart(t, dir))
			return manifest
		}
	}
	for name := range packages(t) {
		t.Run(name, func(t *testing.T) {
			want := must(t, "", "", "armature", "render", packages(t)[name])
			table := []string{digest(t, want) + "  command line"}
			for host, through := range hosts {
				t.Run(host, func(t *testing.T) {
					got := through(t, packages(t)[name])
					table = append(table, digest(t, got)+"  "+host)
					if diff := cmp.Diff(objects(t, want), objects(t, got)); diff != "" {
						t.Errorf("differs from the command line's (-command line +%s):\n%s", host, diff)
					}
				})
			}
			slices.Sort(table)
			t.Logf("digests of the objects of %s:\n%s", name, strings.Join(table, "\n"))
		})
	}
}

// digest is that of the objects of a stream or ResourceList as JSON, sorted.
func digest(t *testing.T, text string) string {
	t.Helper()
	data, err := json.Marshal(objects(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256(data))
}

// Where no host reads and writes the YAML, the bytes are the same.
func TestSameBytesWithoutAHost(t *testing.T) {
	for name, dir := range packages(t) {
		want := must(t, dir, "", "armature", "render", dir)
		if got := must(t, dir, "", "armature-fn", "render", "."); got != want {
			t.Errorf("%s: armature-fn render: %s", name, cmp.Diff(want, got))
		}
		if got := must(t, dir, stream(t, dir), "armature", "render",
			"-"); objectsOf(got) != objectsOf(want) {
			t.Errorf("%s: standard input: %s", name, cmp.Diff(objectsOf(want), objectsOf(got)))
		}
		if strings.HasPrefix(name, "mixed") {
			continue // flow style stays unchanged in a file only
		}
		list := must(t, dir, resourceList(t, dir, "config.kubernetes.io/v1"), "armature-fn")
		for document := range strings.SplitSeq(objectsOf(want), "\n---\n") {
			if strings.HasPrefix(document, "# armature.dev/consumed") {
				continue
			}
			var item strings.Builder
			for line := range strings.Lines(document + "\n") {
				switch {
				case strings.HasPrefix(line, "#"):
				case line == "\n" || item.Len() == 0:
					item.WriteString(line)
				default:
					item.WriteString("  " + line)
				}
			}
			if text := strings.TrimSpace(item.String()); !strings.Contains(list, text) {
				t.Errorf("%s: the ResourceList does not have\n%s", name, text)
			}
		}
	}
}

func TestConfigurationThroughHosts(t *testing.T) {
	const configMap = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: armature\n" +
		"  annotations:\n    config.kubernetes.io/function: |\n      exec: {path: armature-fn}\n" +
		"data:\n  rollout: hash\n"
	hashed := func(t *testing.T, out string, want int) {
		t.Helper()
		set, ok := objects(t, out)["StatefulSet <nil>/memory-agent"].(map[string]any)
		if !ok {
			t.Fatalf("no StatefulSet:\n%s", out)
		}
		template := set["spec"].(map[string]any)["template"].(map[string]any)
		annotations, _ := template["metadata"].(map[string]any)["annotations"].(map[string]any)
		if annotations["armature.dev/config-hash"] == nil {
			t.Errorf("no hash with rollout: hash:\n%v", annotations)
		}
		if n := len(template["spec"].(map[string]any)["initContainers"].([]any)); n != want {
			t.Errorf("%d init containers; want %d", n, want)
		}
	}
	t.Run("kustomize-configMap", func(t *testing.T) {
		dir := examples(t, "memory-agent")
		kustomization(t, dir, "")
		write(t, dir, "armature.yaml", configMap)
		hashed(t, must(t, dir, "", kustomize(t), buildArgs(dir)...), 2)
	})
	t.Run("kpt-configMap", func(t *testing.T) {
		needKpt(t)
		dir := examples(t, "memory-agent")
		write(t, dir, "Kptfile",
			"apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: agents\npipeline:\n"+
				"  mutators:\n  - exec: armature-fn\n    configMap:\n      rollout: hash\n")
		must(t, dir, "", "kpt", "fn", "render", "--allow-exec", dir)
		hashed(t, stream(t, dir), 2)
	})
	t.Run("kpt-configPath", func(t *testing.T) {
		needKpt(t)
		dir := examples(t, "memory-agent")
		initFor(t, dir, "kpt")
		write(t, dir, "armature.yaml", read(t, dir, "armature.yaml")+"  rollout: hash\n")
		must(t, dir, "", "kpt", "fn", "render", "--allow-exec", dir)
		hashed(t, stream(t, dir), 2)
	})
	t.Run("argocd", func(t *testing.T) {
		dir := examples(t, "memory-agent")
		write(t, dir, "armature.yaml", read(t, root, "examples/weather-agent-prod/armature.yaml"))
		answer := ask(t, plugin(t), dir, dir, "rollout=hash", "profile=")
		// of the profile kagenti, which an empty parameter leaves
		hashed(t, strings.Join(answer.Manifests, "\n---\n"), 5)
	})
}

// An error in a manifest or in the configuration fails in every host, says
// what is wrong, and lets nothing out.
func TestErrorsThroughEveryHost(t *testing.T) {
	cases := map[string]struct {
		spoil func(t *testing.T, dir string)
		want  string
	}{
		"unknown field in the configuration": {func(t *testing.T, dir string) {
			write(t, dir, "armature.yaml", read(t, dir, "armature.yaml")+"  rolout: hash\n")
		}, "rolout"},
		"a target that is not there": {func(t *testing.T, dir string) {
			write(t, dir, "cr.yaml",
				"apiVersion: kagenti.io/v1alpha1\nkind: TokenExchange\nmetadata:\n  name: lost\n"+
					"spec:\n  targetRef: {kind: Deployment, name: nowhere}\n")
		}, "the package has no Deployment nowhere"},
	}
	hosts := map[string]func(t *testing.T, dir string) string{
		"render": func(t *testing.T, dir string) string {
			return mustFail(t, dir, "", "armature", "render", dir)
		},
		"kustomize": func(t *testing.T, dir string) string {
			return mustFail(t, dir, "", kustomize(t), buildArgs(dir)...)
		},
		"kpt": func(t *testing.T, dir string) string {
			needKpt(t)
			before := stream(t, dir)
			output := mustFail(t, dir, "", "kpt", "fn", "render", "--allow-exec", dir)
			if stream(t, dir) != before {
				t.Error("kpt wrote to the package all the same")
			}
			return output
		},
		"argocd": func(t *testing.T, dir string) string {
			return mustFail(t, dir, "", argocd(t), "ask", plugin(t), dir, dir)
		},
	}
	for name, c := range cases {
		for host, fail := range hosts {
			t.Run(name+"/"+host, func(t *testing.T) {
				dir := examples(t, "memory-agent")
				initFor(t, dir, "kpt")
				c.spoil(t, dir)
				if host != "argocd" { // whose plugin leaves a kustomization to Argo CD itself
					write(t, dir, "kustomization.yaml",
						"resources: ["+strings.Join(manifests(t, dir), ", ")+
							"]\ntransformers: [armature.yaml]\n")
				}
				output := fail(t, dir)
				if !strings.Contains(output, c.want) {
					t.Errorf("does not say %q:\n%s", c.want, output)
				}
				if strings.Contains(output, "proxy-init") {
					t.Errorf("something rendered got out:\n%s", output)
				}
			})
		}
	}
	t.Run("list", func(t *testing.T) {
		dir := examples(t, "memory-agent")
		list := resourceList(t, dir, "config.kubernetes.io/v1")
		r := command(dir,
			list+
				"functionConfig:\n  apiVersion: armature.dev/v1alpha1\n  kind: RenderConfig\n"+
				"  spec: {rolout: hash}\n", "armature-fn")
		if r.err == nil || !strings.HasPrefix(r.stdout, list) ||
			!strings.Contains(r.stdout, "severity: error") {
			t.Errorf("%v: want the input's items and an error among the results, have\n%s", r.err,
				r.stdout)
		}
	})
}

func TestKptKeepsThePackage(t *testing.T) {
	needKpt(t)
	dir := examples(t, "weather-agent")
	initFor(t, dir, "kpt")
	must(t, dir, "", "kpt", "fn", "render", "--allow-exec", dir)
	deployment := read(t, dir, "deployment.yaml")
	if !strings.Contains(deployment, "# or what your gateway offers") ||
		strings.Contains(deployment, "kind: ConfigMap") {
		t.Errorf("deployment.yaml is not the author's any more:\n%s", deployment)
	}
	if n := strings.Count(read(t, dir, "deployment.armature.yaml"), "kind: ConfigMap"); n != 2 {
		t.Errorf("deployment.armature.yaml has %d of 2 ConfigMaps", n)
	}
	for _, name := range []string{"token-exchange.yaml", "agent-trace.yaml", "agent-card.yaml"} {
		if text := read(t, dir, name); !strings.Contains(text, krm.LocalConfig+`: "true"`) {
			t.Errorf("%s is not marked as local configuration, so that it would be applied:\n%s",
				name, text)
		}
	}
	// A change of a custom resource reaches what was rendered before.
	write(t, dir, "token-exchange.yaml", strings.Replace(read(t, dir, "token-exchange.yaml"),
		"premium-api.partners.svc.cluster.local", "other.example.com", 1))
	if output := mustFail(t, dir, "", "armature", "verify", dir); !strings.Contains(output,
		"authbridge-config-weather-agent differs") {
		t.Errorf("verify says %s", output)
	}
	must(t, dir, "", "kpt", "fn", "render", "--allow-exec", dir)
	if text := read(t, dir, "deployment.armature.yaml"); !strings.Contains(text,
		"other.example.com") || strings.Contains(text, "premium-api.partners.svc.cluster.local") {
		t.Errorf("the change did not arrive:\n%s", text)
	}
	// And uninject takes all of it away again.
	must(t, dir, "", "armature", "uninject", dir, "-d", dir+"/back")
	if text := read(t, dir, "back/token-exchange.yaml"); strings.Contains(text, "annotations:") {
		t.Errorf("uninject leaves annotations behind:\n%s", text)
	}
	if diff := cmp.Diff(read(t, root, "examples/weather-agent/deployment.yaml"),
		read(t, dir, "back/deployment.yaml")); diff != "" {
		t.Errorf("uninject (-author +uninjected):\n%s", diff)
	}
}

func TestInitWiring(t *testing.T) {
	t.Run("ci", func(t *testing.T) {
		dir := t.TempDir()
		initFor(t, dir, "ci")
		// What init wrote is the configuration of what the script renders.
		config := strings.Replace(read(t, dir, "armature.yaml"), defaultProfile,
			defaultProfile+"  rollout: hash\n", 1)
		write(t, dir, "armature.yaml", config)
		if err := os.Mkdir(filepath.Join(dir, "apps"), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, dir, "apps/deployment.yaml",
			read(t, root, "examples/weather-agent/deployment.yaml"))
		mustFail(t, dir, "", "./render.sh") // nothing was rendered
		must(t, dir, "", "armature", "render", "apps", "-c", "armature.yaml", "-d", "rendered")
		if text := read(t, dir, "rendered/deployment.yaml"); !strings.Contains(text,
			"armature.dev/config-hash") {
			t.Errorf("render without the configuration:\n%s", text)
		}
		must(t, dir, "", "./render.sh")
		write(t, dir, "apps/more.yaml",
			strings.ReplaceAll(read(t, root, "examples/memory-agent/statefulset.yaml"),
				"memory-agent", "new-agent"))
		mustFail(t, dir, "", "./render.sh")
	})
	t.Run("kustomize", func(t *testing.T) {
		out := must(t, "", "", kustomize(t),
			buildArgs(filepath.Join(root, "examples/kustomize"))...)
		must(t, "", out, "armature", "verify", "-c",
			filepath.Join(root, "examples/kustomize/armature.yaml"), "-")
		if !strings.Contains(out, "name: authbridge-config-staging-travel-agent") ||
			!strings.Contains(out, `host: "booking"`) {
			t.Errorf("examples/kustomize:\n%s", out)
		}
	})
	t.Run("kpt", func(t *testing.T) {
		needKpt(t)
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(root, "examples/kpt"))); err != nil {
			t.Fatal(err)
		}
		must(t, dir, "", "kpt", "fn", "render", "--allow-exec")
		must(t, dir, "", "armature", "verify", dir)
	})
	t.Run("never overwrites", func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir, "Kptfile", "mine")
		mustFail(t, dir, "", "armature", "init", "--for", "kpt")
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 ||
			read(t, dir, "Kptfile") != "mine" {
			t.Errorf("init left %v, %v", entries, err)
		}
	})
	t.Run("examples are as init writes them", func(t *testing.T) {
		for _, pair := range [][2]string{
			{"templates/wiring/armature.yaml", "examples/kustomize/armature.yaml"},
			{"templates/wiring/armature.yaml", "examples/kpt/armature.yaml"},
			{"templates/wiring/argocd/plugin.yaml", "examples/argocd/plugin.yaml"},
		} {
			if diff := cmp.Diff(read(t, root, pair[0]), read(t, root, pair[1])); diff != "" {
				t.Errorf("%s: %s", pair[1], diff)
			}
		}
	})
}

func TestEveryExampleIsInTheReadme(t *testing.T) {
	readme := read(t, root, "examples/README.md")
	entries, err := os.ReadDir(filepath.Join(root, "examples"))
	if err != nil {
		t.Fatal(err)
	}
	var missing []string
	for _, e := range entries {
		if e.IsDir() && !strings.Contains(readme, "| `"+e.Name()+"`") {
			missing = append(missing, e.Name())
		}
	}
	if slices.Sort(missing); len(missing) > 0 {
		t.Errorf("examples/README.md lacks %v", missing)
	}
}
