package apply_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/fluxcd/pkg/ssa"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/e2e/controlplane"
)

// benchObjects is how many objects the benchmark applies: a quarter each of
// Deployments, Services, ConfigMaps and ServiceAccounts.
const benchObjects = 1000

// benchRounds is how often each tool is measured. They take turns, each on a
// namespace of its own, and the fastest round counts, because a busy machine
// only ever makes a round slower.
const benchRounds = 3

// BenchmarkApply prints how long a first and a no-op apply take: as the whole
// program `armature apply`, as the whole program `kubectl apply --server-side`,
// and as Flux's ApplyAllStaged with its defaults, which has no start-up to pay.
func BenchmarkApply(b *testing.B) {
	root, err := filepath.Abs(filepath.Join("..", "..", ".."))
	if err != nil {
		b.Fatal(err)
	}
	kubectl := filepath.Join(root, ".cache", "bin", "kubectl-alone", "kubectl")
	if _, err := os.Stat(kubectl); err != nil {
		b.Fatalf("%v: run `make bench-apply`, which builds it", err)
	}
	armature := filepath.Join(b.TempDir(), "armature")
	if out, err := exec.Command("go", "build", "-o", armature,
		filepath.Join(root, "cmd", "armature")).CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	ctrl.SetLogger(logr.Discard()) // of Flux's client
	plane := controlplane.Start(b)
	program := func(name string, args ...string) {
		cmd := exec.Command(name, append(args, "--kubeconfig", plane.Admin.Kubeconfig)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Run(); err != nil {
			b.Fatalf("%s: %v\n%s", filepath.Base(name), err, stderr.String())
		}
	}
	tools := []struct {
		name  string
		apply func(namespace, folder string)
	}{
		{"armature apply", func(namespace, folder string) {
			program(armature, "apply", folder, "-n", namespace, "--name", "bench", "--timeout", "0")
		}},
		{"kubectl apply --server-side", func(namespace, folder string) {
			program(kubectl, "apply", "--server-side", "-n", namespace, "-f", folder)
		}},
		{"flux ApplyAllStaged", func(namespace, folder string) {
			if err := flux(plane, namespace, folder); err != nil {
				b.Fatal(err)
			}
		}},
	}
	admin, err := dynamic.NewForConfig(plane.Admin.Config)
	if err != nil {
		b.Fatal(err)
	}
	first, noop := make([]float64, len(tools)), make([]float64, len(tools))
	for i := range tools {
		first[i], noop[i] = math.Inf(1), math.Inf(1)
	}
	for range b.N {
		for round := range benchRounds {
			for i, tool := range tools {
				namespace := fmt.Sprintf("bench-%d-%d", i, round)
				if err := makeNamespace(admin, namespace); err != nil {
					b.Fatal(err)
				}
				folder := benchFolder(b)
				first[i] = min(first[i], seconds(func() { tool.apply(namespace, folder) }))
				for range 2 {
					noop[i] = min(noop[i], seconds(func() { tool.apply(namespace, folder) }))
				}
			}
		}
	}
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\n%d objects\tfirst apply, s\tratio\tno-op apply, s\tratio\t\n", benchObjects)
	for i, tool := range tools {
		fmt.Fprintf(w, "%s\t%.2f\t%.1f\t%.2f\t%.1f\t\n", tool.name, first[i], first[i]/first[0],
			noop[i], noop[i]/noop[0])
	}
	w.Flush()
	fmt.Println(table.String())
	fmt.Printf("targets: Flux takes at least as long at first (%s), and kubectl 5 times as long "+
		"for a no-op (%s)\n", met(first[2]/first[0], 1), met(noop[1]/noop[0], 5))
	b.ReportMetric(noop[1]/noop[0], "kubectl/noop")
	b.ReportMetric(first[2]/first[0], "flux/first")
}

func met(ratio, target float64) string {
	if ratio >= target {
		return "met"
	}
	return "NOT met"
}

func seconds(do func()) float64 {
	began := time.Now()
	do()
	return time.Since(began).Seconds()
}

func makeNamespace(c dynamic.Interface, name string) error {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": name}}}
	_, err := c.Resource(resourceOf("v1", "Namespace")).Create(context.Background(), u,
		metav1.CreateOptions{})
	return err
}

// benchFolder writes the objects, ten to a file.
func benchFolder(b *testing.B) string {
	folder := b.TempDir()
	var file strings.Builder
	for i := range benchObjects / 4 {
		name := fmt.Sprintf("agent-%03d", i)
		fmt.Fprintf(&file, benchText, name)
		if i%10 == 9 {
			if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("part-%03d.yaml", i/10)),
				[]byte(file.String()), 0o600); err != nil {
				b.Fatal(err)
			}
			file.Reset()
		}
	}
	return folder
}

const benchText = `---
apiVersion: v1
kind: ServiceAccount
metadata: {name: %[1]s, labels: {app.kubernetes.io/name: %[1]s}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: %[1]s, labels: {app.kubernetes.io/name: %[1]s}}
data:
  settings.yaml: |
    log: {level: info}
    model: {name: small, temperature: 0.2, endpoint: "http://models.svc/%[1]s"}
---
apiVersion: v1
kind: Service
metadata: {name: %[1]s, labels: {app.kubernetes.io/name: %[1]s}}
spec:
  clusterIP: None
  selector: {app: %[1]s}
  ports: [{name: http, port: 80, targetPort: http}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, labels: {app.kubernetes.io/name: %[1]s}}
spec:
  replicas: 1
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      serviceAccountName: %[1]s
      containers:
        - name: agent
          image: registry.local/agent:v1
          ports: [{name: http, containerPort: 8000}]
          env:
            - {name: HOST, value: 0.0.0.0}
            - {name: PORT, value: "8000"}
            - {name: TOKEN, valueFrom: {secretKeyRef: {name: token, key: token}}}
          resources: {requests: {cpu: 100m, memory: 128Mi}, limits: {cpu: 500m, memory: 1Gi}}
          readinessProbe: {httpGet: {path: /healthz, port: http}}
          volumeMounts: [{name: settings, mountPath: /etc/agent}, {name: cache, mountPath: /app/.cache}]
      volumes:
        - {name: settings, configMap: {name: %[1]s}}
        - {name: cache, emptyDir: {}}
`

func flux(plane *controlplane.ControlPlane, namespace, folder string) error {
	c, err := client.New(plane.Admin.Config, client.Options{})
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil {
		return err
	}
	var objects []*unstructured.Unstructured
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		read, err := ssautil.ReadObjects(f)
		f.Close()
		if err != nil {
			return err
		}
		objects = append(objects, read...)
	}
	for _, o := range objects {
		o.SetNamespace(namespace)
	}
	_, err = ssa.NewResourceManager(c, nil, ssa.Owner{Field: "flux", Group: "toolkit.fluxcd.io"}).
		ApplyAllStaged(context.Background(), objects, ssa.DefaultApplyOptions())
	return err
}
