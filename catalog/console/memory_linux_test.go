package console_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/armature-dev/armature/catalog/access"
	"github.com/armature-dev/armature/catalog/console"
	"github.com/armature-dev/armature/catalog/serve"
	"github.com/armature-dev/armature/catalog/store/database"
	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/functions/api/keys"
)

// asConsole makes the test binary a console, whose memory a test measures. It prints its address.
const asConsole = "ARMATURE_TEST_CONSOLE"

func runAsConsole(folder string) error {
	ctrl.SetLogger(logr.Discard())
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	cfg.QPS = -1
	s, err := database.Open(context.Background(), folder+"/catalog.db")
	if err != nil {
		return err
	}
	guard, err := serve.Kubernetes(cfg)
	if err != nil {
		return err
	}
	guard.Login = &access.Login{Store: s}
	cluster, err := console.NewCluster(cfg, console.ClusterOptions{})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	var group errgroup.Group
	group.Go(func() error { return cluster.Run(context.Background()) })
	group.Go(func() error {
		pages := &console.Console{Store: s, Access: guard, Cluster: cluster, Log: logr.Discard()}
		return http.Serve(l,
			(&serve.Server{Store: s, Access: guard, Pages: pages.Handler(),
				Log: logr.Discard()}).Handler())
	})
	return group.Wait()
}

// process runs a console in a process of its own, with the memory of the installation.
func (w *world) process(limit int64) (pid int, address string) {
	w.Helper()
	self, err := os.Executable()
	w.must(err)
	var log strings.Builder
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), asConsole+"="+w.TempDir(),
		"KUBECONFIG="+shared.Get(w).Admin.Kubeconfig, fmt.Sprintf("GOMEMLIMIT=%d", limit), "GOGC=100")
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	w.must(err)
	w.must(cmd.Start())
	w.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if w.Failed() {
			w.Log(log.String())
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	w.must(err)
	return cmd.Process.Pid, "http://" + strings.TrimSpace(line)
}

// follow opens as many watches of the API as the account of a token gets of n, until the test ends.
func (w *world) follow(token string, n int) {
	w.Helper()
	opened := 0
	for range n {
		request, err := http.NewRequestWithContext(w.Context(), http.MethodGet,
			w.url+"/api/v1/watch", nil)
		w.must(err)
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := http.DefaultClient.Do(request)
		w.must(err)
		w.Cleanup(func() { _ = response.Body.Close() })
		if response.StatusCode == http.StatusOK {
			opened++
		}
	}
	if opened == 0 || opened == n {
		w.Errorf("an account has %d watches of %d", opened, n)
	}
}

// What tenants put into a cluster keeps the console below half of its memory limit, and pages of
// other tenants stay right. The figures:
//
//	go test -run TestMemoryOfHostileTenants -v ./catalog/console
func TestMemoryOfHostileTenants(t *testing.T) {
	limit := controlplane.MemoryLimit(t, "../../templates/install/catalog/base/deployment.yaml")
	const many = "hostile tenant with "
	// each object has as many fields as it can have
	fields := func(w *world, ns string) (lines []string) {
		data := map[string]string{}
		for i := range 30_000 {
			data[fmt.Sprintf("k%x", i)] = ""
		}
		var group errgroup.Group
		group.SetLimit(2)
		for i := range 60 {
			name := fmt.Sprintf("a-%d", i)
			lines = append(lines, "v1 ConfigMap "+ns+" "+name+" - -")
			group.Go(func() error {
				_, err := w.kube.CoreV1().ConfigMaps(ns).Create(t.Context(),
					&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name,
						Labels: map[string]string{keys.LabelName: "a", keys.LabelNamespace: ns}},
						Data: data}, metav1.CreateOptions{FieldManager: "kubectl-edit"})
				return err
			})
		}
		w.must(group.Wait())
		return lines
	}
	tenants := map[string]func(w *world, ns string) (inventories [][]string){
		"large objects": func(w *world, ns string) [][]string { return [][]string{fields(w, ns)} },
		"invented kinds": func(_ *world, ns string) [][]string {
			lines := []string{"apps/v9 Deployment " + ns + " a - -",
				"v9 ConfigMap " + ns + " a - -"}
			for i := range 40_000 {
				lines = append(lines, fmt.Sprintf("g%x.example/v1 K%x n%x a - -", i, i, i))
			}
			return slices.Collect(slices.Chunk(lines, 8_000))
		},
		"large inventories": func(_ *world, ns string) (all [][]string) {
			for i := range 30 {
				var lines []string
				for j := range 48_000 {
					lines = append(lines, fmt.Sprintf("v1 ConfigMap %s a%d-%x - -", ns, i, j))
				}
				all = append(all, lines)
			}
			return all
		},
		"large records": func(w *world, ns string) [][]string {
			var lines []string
			for i := range 20 {
				d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("a-%d", i),
					Labels: map[string]string{keys.LabelName: "p-0", keys.LabelNamespace: ns},
					Annotations: map[string]string{keys.Injected: `{"initContainers":["a"` +
						strings.Repeat(`,"a"`, 15_000) + `]}`}}}
				d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}
				d.Spec.Template.Labels = d.Spec.Selector.MatchLabels
				d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "a", Image: "a",
					Args: []string{strings.Repeat("x", 200<<10)}}}
				_, err := w.kube.AppsV1().Deployments(ns).Create(t.Context(), d, metav1.CreateOptions{})
				w.must(err)
				lines = append(lines, "apps/v1 Deployment "+ns+" "+d.Name+" - -")
			}
			return [][]string{lines}
		},
	}
	cases := map[string][]string{"everything, and watches": slices.Sorted(maps.Keys(tenants))}
	for name := range tenants {
		cases[name] = []string{name}
	}
	for name, kinds := range cases {
		t.Run(many+name, func(t *testing.T) {
			w := worldOf(t, t.TempDir()+"/catalog.db", nil)
			w.server.Close()
			t.Cleanup(func() { w.must(w.store.Close()) })
			id := fmt.Sprint("memory-", accounts.Add(1))
			good := id + "-good"
			w.namespace(good)
			var hostile []string
			for i := range kinds {
				hostile = append(hostile, fmt.Sprint(id, "-hostile-", i))
				w.namespace(hostile[i])
			}
			t.Cleanup(func() { // other tests count packages
				for _, ns := range append(hostile, good) {
					w.must(w.kube.CoreV1().ConfigMaps(ns).DeleteCollection(context.Background(),
						metav1.DeleteOptions{},
						metav1.ListOptions{LabelSelector: keys.LabelInventory}))
				}
			})
			inventory := func(ns, name string, lines []string) {
				var packed bytes.Buffer
				z := gzip.NewWriter(&packed)
				_, err := io.WriteString(z, strings.Join(lines, "\n")+"\n")
				w.must(err)
				w.must(z.Close())
				_, err = w.kube.CoreV1().ConfigMaps(ns).Create(t.Context(),
					&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "armature-" + name,
						Labels: map[string]string{keys.LabelInventory: name}},
						Data:       map[string]string{"format": "1", "state": "applied"},
						BinaryData: map[string][]byte{"objects.gz": packed.Bytes()}},
					metav1.CreateOptions{})
				w.must(err)
			}
			for k, kind := range kinds {
				for i, lines := range tenants[kind](w, hostile[k]) {
					inventory(hostile[k], fmt.Sprint("p-", i), lines)
				}
			}
			_, err := w.kube.CoreV1().ConfigMaps(good).Create(t.Context(),
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings",
					Labels: map[string]string{keys.LabelName: "good", keys.LabelNamespace: good}}},
				metav1.CreateOptions{})
			w.must(err)
			_, err = w.kube.AppsV1().Deployments(good).Create(t.Context(),
				&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "a",
					Labels: map[string]string{keys.LabelName: "good", keys.LabelNamespace: good}},
					Spec: appsv1.DeploymentSpec{Replicas: new(int32),
						Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}},
						Template: corev1.PodTemplateSpec{
							ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a"}},
							Spec: corev1.PodSpec{
								Containers: []corev1.Container{{Name: "a", Image: "a"}}}}}},
				metav1.CreateOptions{})
			w.must(err)
			inventory(good, "good", []string{"v1 ConfigMap " + good + " settings - -",
				"apps/v1 Deployment " + good + " a - -"})
			mine, theirs := w.token(good), w.token(hostile...)
			pid, address := w.process(limit)
			w.url = address
			measured := controlplane.PeakMemory(pid)
			if len(kinds) > 1 {
				w.follow(theirs, 500)
			}
			shown := func(token, path string) string {
				status, _, body := w.get(token, path)
				if status != http.StatusOK {
					return http.StatusText(status)
				}
				return words(body)
			}
			page := "/packages/" + good + "/good"
			for _, step := range []struct {
				what, want string
				do         func() error
			}{
				{"the package of another tenant is read", "ConfigMap settings " + good + " Healthy",
					func() error { return nil }},
				{"a change of another tenant is seen", "ConfigMap settings " + good + " Missing",
					func() error {
						return w.kube.CoreV1().ConfigMaps(good).Delete(t.Context(), "settings",
							metav1.DeleteOptions{})
					}},
			} {
				w.must(step.do())
				last := ""
				for deadline := time.Now().Add(2 * time.Minute); !strings.Contains(last,
					step.want); time.Sleep(100 * time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatalf("%s: not within two minutes: %s", step.what, last)
					}
					for _, path := range []string{"/", "/packages"} {
						shown(theirs, path)
					}
					for _, ns := range hostile {
						shown(theirs, "/packages/"+ns+"/p-0")
					}
					last = shown(mine, page)
				}
				if strings.Contains(last, "Deployment a "+good+" Not read") {
					t.Errorf("%s: the kinds of others are not read: %s", step.what, last)
				}
			}
			peak := measured()
			t.Logf("%d MiB of %d", peak>>20, limit>>20)
			if peak > limit/2 {
				t.Errorf("the console had %d MiB, more than half of its %d MiB", peak>>20, limit>>20)
			}
		})
	}
}
