// Package catalog measures what the catalog costs, with real agents and real
// tool servers in a process of its own, and checks that a kill loses nothing.
package catalog

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/catalog/api/kagent"
	"github.com/armature-dev/armature/catalog/controller"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/catalog/store/database"
	"github.com/armature-dev/armature/e2e/catalog/peer"
	"github.com/armature-dev/armature/e2e/controlplane"
)

var _ = controlplane.Only

const (
	agents    = 1000
	toolHosts = 200
	toolsEach = 50
)

// BenchmarkCatalog prints one table. Run it once:
// go test -run '^$' -bench Catalog -benchtime 1x ./e2e/catalog
func BenchmarkCatalog(b *testing.B) {
	for b.Loop() {
		benchmark(b)
	}
}

func report(what, figure, target string) { fmt.Printf("%-66s %16s   %s\n", what, figure, target) }

func benchmark(b *testing.B) {
	ctrl.SetLogger(logr.Discard())
	program := filepath.Join(b.TempDir(), "armature-controller")
	if out, err := exec.Command("go", "build", "-o", program, "../../cmd/armature-controller").
		CombinedOutput(); err != nil {
		b.Fatalf("building the controller: %v\n%s", err, out)
	}
	plane := controlplane.Start(b)
	if err := plane.InstallCRDs("../../templates/crds/catalog"); err != nil {
		b.Fatal(err)
	}
	scheme, err := controller.Scheme()
	must(b, err)
	c, err := client.New(plane.Admin.Config, client.Options{Scheme: scheme})
	must(b, err)
	fleet(b, c)
	file := filepath.Join(b.TempDir(), "catalog.db")
	cmd := exec.Command(program, "--controllers=catalog", "--namespace=default",
		"--leader-elect=false", "--metrics-address=0", "--health-address=0",
		"--catalog-store="+file, "--catalog-address=0", "--catalog-allow-network=127.0.0.0/8",
		"--log-level=error")
	cmd.Env, cmd.Stderr = append(os.Environ(), "KUBECONFIG="+plane.Admin.Kubeconfig,
		"GOMEMLIMIT=256MiB"), os.Stderr
	began := time.Now()
	must(b, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	s, err := database.Open(b.Context(), file)
	must(b, err)
	defer func() { must(b, s.Close()) }()
	for healthy(b, s) < agents+toolHosts {
		if time.Since(began) > 5*time.Minute {
			b.Fatalf("%d of %d answered in five minutes", healthy(b, s), agents+toolHosts)
		}
		time.Sleep(500 * time.Millisecond)
	}
	fmt.Printf("\n%-66s %16s   %s\n", "catalog, 1,000 AgentCards, 200 MCP servers, 10,000 tools",
		"measured", "target")
	report("start until all have answered and are stored",
		time.Since(began).Round(100*time.Millisecond).String(), "")
	items, err := s.Items(b.Context())
	must(b, err)
	report("skills and tools in the store", strconv.Itoa(items), "12,000")
	time.Sleep(30 * time.Second) // the first writes of status end
	const rest = 2 * time.Minute
	cpu, writes := cpuSeconds(b, cmd.Process.Pid), versions(b, c)
	time.Sleep(rest)
	report("memory at rest, resident",
		fmt.Sprintf("%.0f MiB", statusMiB(b, cmd.Process.Pid, "VmRSS:")), "<= 200 MB (001)")
	report("  of that its own, the rest is the program file",
		fmt.Sprintf("%.0f MiB", statusMiB(b, cmd.Process.Pid, "RssAnon:")), "")
	report("CPU at rest (agents asked every 30s, servers every 2m)",
		fmt.Sprintf("%.0f m", 1000*(cpuSeconds(b, cmd.Process.Pid)-cpu)/rest.Seconds()), "< 200 m (001)")
	changed := 0
	for name, version := range versions(b, c) {
		if writes[name] != version {
			changed++
		}
	}
	report("objects written to the API server per minute at rest",
		fmt.Sprintf("%.1f", float64(changed)/rest.Minutes()), "0")
	info, err := os.Stat(file)
	must(b, err)
	report("store on disk", fmt.Sprintf("%.1f MiB", float64(info.Size())/(1<<20)), "")
	searches(b, s)
}

// searches prints how long they take, while the catalog works.
func searches(b *testing.B, s store.Store) {
	team := store.Scope{"remotemcpservers.kagent.dev": {Names: []string{"team3"}},
		"agentcards.kagenti.io": {Names: []string{"team3"}}}
	for _, c := range []struct {
		what  string
		texts []string
		scope store.Scope
	}{
		{"words that a few have", []string{"invoice 77", "hotel tools12", "agent0042",
			"mail export tools7"}, store.Everything()},
		{"words that a thousand have", []string{"weather", "invoice", "create hotel", "describe"},
			store.Everything()},
		{"words that all have", []string{"it can", "number", "for", "a"}, store.Everything()},
		{"a reader of one namespace of ten", []string{"weather", "it can", "agent", "invoice"},
			team},
	} {
		var took []time.Duration
		for i := range 1000 {
			began := time.Now()
			_, err := s.Search(b.Context(),
				store.Query{Scope: c.scope, Text: c.texts[i%len(c.texts)], Limit: 20})
			must(b, err)
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		if load, err := os.ReadFile("/proc/loadavg"); err == nil && c.texts[0] == "invoice 77" {
			report("load of the machine during the searches, "+strconv.Itoa(runtime.NumCPU())+
				" cores", strings.Fields(string(load))[0], "")
		}
		report("search, "+c.what+": p50", fmt.Sprintf("%.2f ms", ms(took[500])), "")
		report("search, "+c.what+": p99", fmt.Sprintf("%.2f ms", ms(took[990])), "< 10 ms")
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func healthy(t testing.TB, s store.Store) int {
	tally, err := store.Tally(t.Context(), s, store.Query{Scope: store.Everything()})
	must(t, err)
	return tally[store.Healthy]
}

// fleet makes agents with a pod each, on 127.1.x.y:8081, and tool servers behind
// one listener, in ten namespaces.
func fleet(b *testing.B, c client.Client) {
	for i := range 10 {
		must(b,
			c.Create(b.Context(),
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("team%d", i)}}))
	}
	// One listener on all of loopback: the address says which agent is meant.
	cards := make([]http.Handler, agents)
	for i := range cards {
		cards[i] = peer.Agent(peer.Card(fmt.Sprintf("agent%04d", i),
			"It answers questions about its subject", "1.0.0", "answer", "explain"))
	}
	serve(b, "0.0.0.0:8081", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.Host)
		ip := net.ParseIP(host).To4()
		if ip == nil {
			http.NotFound(w, r)
			return
		}
		cards[(int(ip[2])*250+int(ip[3])-1)%agents].ServeHTTP(w, r)
	}))
	tools := http.NewServeMux()
	for i := range toolHosts {
		tools.Handle(fmt.Sprintf("/%d", i),
			peer.Streamable(peer.Server(fmt.Sprintf("tools%d", i), 20,
				peer.Many(fmt.Sprintf("tools%d", i), toolsEach)...)))
	}
	serve(b, "127.0.0.1:8082", tools)
	parallel(b, agents, func(i int) error { return agent(b, c, i) })
	parallel(b, toolHosts, func(i int) error {
		s := &kagent.RemoteMCPServer{
			ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("team%d", i%10),
				Name: fmt.Sprintf("tools%d", i)}}
		s.Spec.URL = fmt.Sprintf("http://127.0.0.1:8082/%d", i)
		return c.Create(b.Context(), s)
	})
}

func agent(b *testing.B, c client.Client, i int) error {
	ns, name := fmt.Sprintf("team%d", i%10), fmt.Sprintf("agent%04d", i)
	labels := map[string]string{"app": name}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: labels},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: "agent"}}}}
	if err := c.Create(b.Context(), pod); err != nil {
		return err
	}
	pod.Status.PodIP = fmt.Sprintf("127.1.%d.%d", i/250, i%250+1)
	pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady,
		Status: corev1.ConditionTrue}}
	if err := c.Status().Update(b.Context(), pod); err != nil {
		return err
	}
	card := &api.AgentCard{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	card.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	return c.Create(b.Context(), card)
}

func serve(t testing.TB, address string, handler http.Handler) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	must(t, err)
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { must(t, server.Close()) })
}

func parallel(t testing.TB, n int, do func(i int) error) {
	t.Helper()
	var group sync.WaitGroup
	next := make(chan int)
	for range 8 {
		group.Go(func() {
			for i := range next {
				if err := do(i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	group.Wait()
}

// versions of all objects that the catalog may write.
func versions(t testing.TB, c client.Client) map[string]string {
	t.Helper()
	out := map[string]string{}
	var cards api.AgentCardList
	must(t, c.List(t.Context(), &cards))
	for _, o := range cards.Items {
		out["card/"+o.Namespace+"/"+o.Name] = o.ResourceVersion
	}
	var servers kagent.RemoteMCPServerList
	must(t, c.List(t.Context(), &servers))
	for _, o := range servers.Items {
		out["server/"+o.Namespace+"/"+o.Name] = o.ResourceVersion
	}
	return out
}

func statusMiB(t testing.TB, pid int, key string) float64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	for _, line := range strings.Split(string(data), "\n") {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == key {
			kib, err := strconv.ParseFloat(fields[1], 64)
			must(t, err)
			return kib / 1024
		}
	}
	t.Fatalf("no %s", key)
	return 0
}

// cpuSeconds that a process has used, user and system, at 100 ticks a second.
func cpuSeconds(t testing.TB, pid int) float64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	must(t, err)
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	user, err := strconv.ParseFloat(fields[11], 64)
	must(t, err)
	system, err := strconv.ParseFloat(fields[12], 64)
	must(t, err)
	return (user + system) / 100
}

// The writer is killed at 50 random moments. What it had acknowledged is there
// each time, whole; what it had not is there whole or not at all.
func TestKillLosesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute; run it without -short")
	}
	program := filepath.Join(t.TempDir(), "writer")
	if out, err := exec.Command("go", "build", "-o", program, "./writer").CombinedOutput(); err != nil {
		t.Fatalf("building the writer: %v\n%s", err, out)
	}
	file := filepath.Join(t.TempDir(), "catalog.db")
	total := 0
	for kill := range 50 {
		acknowledged := killed(t, program, file, kill)
		s, err := database.Open(t.Context(), file)
		must(t, err)
		for name, version := range acknowledged {
			e, err := s.Get(t.Context(),
				store.Key{Resource: "agentcards.kagenti.io", Namespace: "team1", Name: name})
			must(t, err)
			stored, err := strconv.Atoi(e.Version)
			must(t, err)
			// One more write may have reached the disk before its word got out.
			if stored < version || stored > version+1 {
				t.Fatalf("kill %d: %s is at version %d, acknowledged was %d", kill, name, stored, version)
			}
			if len(e.Items) != 20 {
				t.Fatalf("kill %d: %s has %d items, want 20", kill, name, len(e.Items))
			}
			for _, i := range e.Items {
				if !strings.HasSuffix(i.Name, "_v"+e.Version) {
					t.Fatalf("kill %d: %s at version %s has %s", kill, name, e.Version, i.Name)
				}
			}
		}
		total += len(acknowledged)
		must(t, s.Close())
	}
	if total < 50 {
		t.Errorf("only %d writes were acknowledged in all: nothing was tried", total)
	}
}

// killed runs the writer until a random moment, and returns the last version of each entry that it
// acknowledged.
func killed(t *testing.T, program, file string, round int) map[string]int {
	t.Helper()
	cmd := exec.Command(program, file, strconv.Itoa(round))
	out := &controlplane.Output{}
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	must(t, cmd.Start())
	for started := time.Now(); !strings.Contains(out.String(), "\n"); time.Sleep(time.Millisecond) {
		if time.Since(started) > time.Minute {
			t.Fatal("the writer wrote nothing")
		}
	}
	time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond)
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	acknowledged := map[string]int{}
	for _, line := range strings.SplitAfter(out.String(), "\n") {
		var name string
		var version int
		if n, _ := fmt.Sscanf(line, "%s %d\n", &name, &version); n == 2 &&
			strings.HasSuffix(line, "\n") {
			acknowledged[name] = version
		}
	}
	return acknowledged
}
