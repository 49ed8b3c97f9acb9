package integrations

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/source"
)

// crds are the custom resources that actors generate, in the Go modules of the
// projects that define them.
var crds = []struct {
	module string
	files  []string
}{
	{"github.com/kedacore/keda/v2@v2.20.2", []string{"config/crd/bases/keda.sh_scaledobjects.yaml",
		"config/crd/bases/keda.sh_triggerauthentications.yaml"}},
	{"github.com/rabbitmq/messaging-topology-operator@v1.20.1", []string{
		"config/crd/bases/rabbitmq.com_queues.yaml", "config/crd/bases/rabbitmq.com_bindings.yaml",
		"config/crd/bases/rabbitmq.com_policies.yaml",
	}},
}

// moduleFolder returns the folder of a Go module, which the proxy may have to send.
func moduleFolder(t *testing.T, module string) string {
	t.Helper()
	cmd := exec.Command("go", "mod", "download", "-json", module)
	cmd.Dir = t.TempDir()
	write(t, cmd.Dir, "go.mod", "module none\n")
	out, err := cmd.Output()
	var answer struct{ Dir, Error string }
	if json.Unmarshal(out, &answer) != nil || err != nil || answer.Error != "" {
		t.Fatalf("%s: %v %s", module, err, answer.Error)
	}
	return answer.Dir
}

// TestAPIServerTakesActors creates what the cases of async-actor, agent and kagent
// and the examples become on a real API server, with strict validation.
func TestAPIServerTakesActors(t *testing.T) {
	plane := controlplane.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	plain, err := client.New(plane.Admin.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	install := func(file string) {
		for _, o := range decoded(t, []byte(read(t, file))) {
			if err := plain.Create(ctx, o); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
		}
	}
	for _, c := range crds {
		for _, file := range c.files {
			install(filepath.Join(moduleFolder(t, c.module), file))
		}
	}
	install("testdata/sqs-queue.yaml")

	var objects []*unstructured.Unstructured
	for _, name := range []string{
		"async-actor", "async-actor-sqs", "async-actor-dead-letters", "async-actor-short",
		"async-actor-generation-next", "async-actor-stores", "agent", "agent-generation", "kagent",
		"kagent-010", "kagent-fields",
	} {
		archive, err := txtar.ParseFile(filepath.Join(root, "render/testdata", name+".txtar"))
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, renderedArchive(t, archive)...)
	}
	objects = append(objects, rendered(t, "overcommit")...)
	dir := t.TempDir()
	for _, file := range []string{"armature.yaml", "text-processor.yaml", "happy-end.yaml"} {
		write(t, dir, file, read(t, root, "examples/async-actor", file))
	}
	objects = append(objects, decoded(t, []byte(must(t, "", "", "armature", "render", dir)))...)

	kinds := make(map[string]int)
	c := client.WithFieldValidation(plain, metav1.FieldValidationStrict)
	for _, o := range objects {
		if strings.HasPrefix(o.GetAPIVersion(), "kagent.dev/") ||
			strings.HasPrefix(o.GetAPIVersion(), "kagenti.io/") {
			continue // not generated: the author's, which stays
		}
		if o.GetNamespace() == "" {
			o.SetNamespace("default")
		}
		namespace := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1",
			"kind": "Namespace", "metadata": map[string]any{"name": o.GetNamespace()}}}
		if err := plain.Create(ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		err := c.Create(ctx, o, client.DryRunAll)
		for ctx.Err() == nil && apierrors.IsNotFound(err) { // the definition takes a moment
			time.Sleep(100 * time.Millisecond)
			err = c.Create(ctx, o, client.DryRunAll)
		}
		if err != nil {
			t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
		kinds[o.GetAPIVersion()+" "+o.GetKind()]++
	}
	for _, kind := range []string{"apps/v1 Deployment", "apps/v1 StatefulSet", "v1 ConfigMap",
		"v1 ServiceAccount", "keda.sh/v1alpha1 ScaledObject", "v1 Service",
		"keda.sh/v1alpha1 TriggerAuthentication", "rabbitmq.com/v1beta1 Queue",
		"rabbitmq.com/v1beta1 Binding", "rabbitmq.com/v1beta1 Policy",
		"sqs.services.k8s.aws/v1alpha1 Queue"} {
		if kinds[kind] == 0 {
			t.Errorf("no %s was rendered: %v", kind, kinds)
		}
	}
}

// renderedArchive returns the objects that a render makes of a case.
func renderedArchive(t *testing.T, archive *txtar.Archive) []*unstructured.Unstructured {
	t.Helper()
	var src render.Source
	var opt render.Options
	for _, f := range archive.Files {
		switch {
		case f.Name == "armature.yaml":
			opt.Config, _ = render.ReadConfig(f.Data, f.Name)
		case !strings.HasPrefix(f.Name, "want/") && f.Name != "findings":
			src.Files = append(src.Files, render.File{Path: f.Name, Data: f.Data})
		}
	}
	opt.ObjectsOnly, opt.Workers = true, 1
	var spool source.Spool
	findings, _, err := render.Stream(src, opt, spool.Write)
	if err != nil || finding.Failed(findings) {
		t.Fatal(err, findings)
	}
	var stream bytes.Buffer
	if _, err := spool.WriteTo(&stream); err != nil {
		t.Fatal(err)
	}
	return decoded(t, stream.Bytes())
}

// others are beside the example of AsyncActors in one package: an Agent, a
// TokenExchange for an actor that opts in, and workloads that overcommit changes.
const others = `apiVersion: agent.kagenti.dev/v1alpha1
kind: Agent
metadata:
  name: research
  namespace: pipeline
  labels: {kagenti.io/inject: enabled}
spec:
  imageSource: {image: "ghcr.io/example/research:v1"}
  podTemplateSpec:
    spec:
      containers:
      - name: agent
        ports: [{containerPort: 8081}]
        resources: {limits: {cpu: 1, memory: 1Gi}}
---
apiVersion: asya.sh/v1alpha1
kind: AsyncActor
metadata:
  name: model
  namespace: pipeline
  labels: {kagenti.io/inject: enabled}
spec:
  transport: rabbitmq
  workload:
    kind: StatefulSet
    template:
      spec:
        containers:
        - name: asya-runtime
          image: ghcr.io/example/model:v1
          ports: [{containerPort: 8081}]
          resources: {limits: {cpu: 2, memory: 4Gi}}
---
apiVersion: kagenti.io/v1alpha1
kind: TokenExchange
metadata:
  name: model
  namespace: pipeline
spec:
  targetRef: {apiVersion: apps/v1, kind: StatefulSet, name: model}
  spiffe: {audience: models}
---
apiVersion: v1
kind: Namespace
metadata:
  name: pipeline
  labels:
    inditex.com/overcommit-class: steady
`

// TestActorsThroughEveryHost renders the example of AsyncActors, whose transports
// are in the configuration, in a package of all kinds, through the command line,
// kustomize, kpt and a plain ResourceList.
func TestActorsThroughEveryHost(t *testing.T) {
	example := func(t *testing.T) string {
		dir := t.TempDir()
		for _, file := range []string{"text-processor.yaml", "happy-end.yaml"} {
			write(t, dir, file, read(t, root, "examples/async-actor", file))
		}
		for _, file := range []string{"overcommit.yaml", "search-agent.yaml", "index.yaml"} {
			write(t, dir, file, read(t, root, "examples/overcommit", file))
		}
		write(t, dir, "others.yaml", others)
		config := strings.Replace(read(t, root, "examples/async-actor/armature.yaml"),
			"  name: armature\n", `  name: armature
  annotations:
    config.kubernetes.io/local-config: "true"
    config.kubernetes.io/function: |
      exec: {path: armature-fn}
`, 1)
		write(t, dir, "armature.yaml", config)
		return dir
	}
	want := remembering(t, must(t, "", "", "armature", "render", example(t)))
	for _, id := range []string{"Deployment pipeline/research", "StatefulSet pipeline/model",
		"Deployment pipeline/text-processor", "Deployment <nil>/search-agent",
		"ConfigMap pipeline/asya-runtime"} {
		if want[id] == nil {
			t.Fatalf("no %s among %d objects", id, len(want))
		}
	}
	hosts := map[string]func(t *testing.T, dir string) string{
		"folder": func(t *testing.T, dir string) string {
			must(t, dir, "", "armature", "render", dir, "-d", dir+"/out")
			must(t, dir, "", "armature", "verify", dir+"/out")
			return stream(t, dir+"/out")
		},
		"kustomize": func(t *testing.T, dir string) string {
			write(t, dir, "kustomization.yaml",
				"resources: ["+strings.Join(manifests(t, dir), ", ")+
					"]\ntransformers: [armature.yaml]\n")
			out := must(t, dir, "", kustomize(t), buildArgs(dir)...)
			must(t, dir, out, "armature", "verify", "-c", "armature.yaml", "-")
			again := t.TempDir()
			write(t, again, "all.yaml", out)
			write(t, again, "armature.yaml", read(t, dir, "armature.yaml"))
			write(t, again, "kustomization.yaml",
				"resources: [all.yaml]\ntransformers: [armature.yaml]\n")
			if diff := cmp.Diff(out, must(t, again, "", kustomize(t), buildArgs(again)...)); diff != "" {
				t.Errorf("building what was built changes it (-first +second):\n%s", diff)
			}
			return out
		},
		"kpt-eval": func(t *testing.T, dir string) string {
			needKpt(t)
			must(t, dir, "", "kpt", "fn", "eval", dir, "--exec", "armature-fn", "--fn-config",
				dir+"/armature.yaml")
			return stream(t, dir)
		},
		"list": func(t *testing.T, dir string) string {
			return must(t, dir, resourceList(t, dir, "config.kubernetes.io/v1"), "armature-fn")
		},
	}
	for host, through := range hosts {
		t.Run(host, func(t *testing.T) {
			if diff := cmp.Diff(want, remembering(t, through(t, example(t)))); diff != "" {
				t.Errorf("differs from the command line's (-command line +%s):\n%s", host, diff)
			}
		})
	}
}

// remembering reads objects and what they remember, whose fields kustomize sorts.
func remembering(t *testing.T, text string) map[string]any {
	t.Helper()
	all := objects(t, text)
	for id, o := range all {
		annotations, _ :=
			o.(map[string]any)["metadata"].(map[string]any)["annotations"].(map[string]any)
		if source, ok := annotations[keys.Source].(string); ok {
			var value any
			if err := json.Unmarshal([]byte(source), &value); err != nil {
				t.Errorf("%s: %v", id, err)
			}
			annotations[keys.Source] = value
		}
	}
	return all
}

// runtimeScript is the file of the script that speaks HTTP, as actors get it.
func runtimeScript(t *testing.T) string {
	t.Helper()
	var texts [2]string
	for i, name := range []string{"runtime_http.py", "runtime_common.py"} {
		text, err := os.ReadFile(filepath.Join(root, "functions/asyncactor", name))
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = string(text)
	}
	file := filepath.Join(t.TempDir(), "runtime.py")
	if err := os.WriteFile(file,
		[]byte(strings.Replace(texts[0], "# What both scripts share.\n", texts[1], 1)),
		0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestRuntimeScript has the default script of actors answer for handlers of every
// kind.
func TestRuntimeScript(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not on the PATH")
	}
	script := runtimeScript(t)
	const handlers = `
def one(payload): return {"x": payload["x"] + 1}
def many(payload):
    yield 1
    yield 2
class Model:
    def predict(self, payload): return payload
async def later(payload): return "later"
def nothing(payload): return None
def envelope(message): return dict(message, seen=True)
`
	const message = `{"id": "1", "route": {"prev": ["a"], "curr": "b", "next": ["c", "d"]}, "payload": {"x": 1}, "headers": {"t": "1"}}`
	const rest = `"route": {"prev": ["a", "b"], "curr": "c", "next": ["d"]}, "headers": {"t": "1"}}`
	for _, c := range []struct{ handler, body, want string }{
		{"handlers.one", message, `{"frames": [{"payload": {"x": 2}, ` + rest + `]} 200`},
		{"handlers.many", message,
			`{"frames": [{"payload": 1, ` + rest + `, {"payload": 2, ` + rest + `]} 200`},
		{"handlers.Model.predict", message, `{"frames": [{"payload": {"x": 1}, ` + rest + `]} 200`},
		{"handlers.later", message, `{"frames": [{"payload": "later", ` + rest + `]} 200`},
		{"handlers.nothing", message, ` 204`},
		{"handlers.one", `{`, `{"error": "msg_parsing_error"`},
		{"handlers.one", `{"route": {}}`, `{"error": "msg_parsing_error"`},
		{"handlers.one", `{"payload": {}}`,
			`{"error": "processing_error", "details": {"message": "'x'", "type": "builtins.KeyError"`},
	} {
		dir, err := os.MkdirTemp("", "a") // a socket's path has to be short
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		write(t, dir, "handlers.py", handlers)
		actor := exec.Command("python3", script)
		actor.Env = append(os.Environ(), "PYTHONPATH="+dir, "ASYA_SOCKET_DIR="+dir,
			"ASYA_HANDLER="+c.handler)
		var log bytes.Buffer
		actor.Stderr = &log
		if err := actor.Start(); err != nil {
			t.Fatal(err)
		}
		for until := time.Now().Add(20 * time.Second); time.Now().Before(until); time.Sleep(
			20 * time.Millisecond) {
			if _, err := os.Stat(filepath.Join(dir, "runtime-ready")); err == nil {
				break
			}
		}
		have := post(dir+"/asya-runtime.sock", c.body)
		actor.Process.Kill()
		actor.Wait()
		if !strings.HasPrefix(have, c.want) {
			t.Errorf("%s of %s:\n%s\nwant\n%s\n%s", c.handler, c.body, have, c.want, log.String())
		}
	}
}

// post sends a message to an actor, and returns the answer and its status.
func post(socket, body string) string {
	c := http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			}}}
	answer, err := c.Post("http://actor/invoke", "application/json", strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s %d", data, answer.StatusCode)
}
