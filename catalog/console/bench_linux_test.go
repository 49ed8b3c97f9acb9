package console_test

import (
	"fmt"
	"net/http"
	"net/http/httptrace"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/armature-dev/armature/catalog/store"
)

const (
	benchEntries = 10000
	benchStreams = 500
)

// BenchmarkConsole prints how long the first byte of pages takes among 10,000 agents and tool
// servers, and what 500 open pages cost. Run it once:
// go test -run '^$' -bench Console -benchtime 1x ./catalog/console
func BenchmarkConsole(b *testing.B) {
	for b.Loop() {
		benchmark(b)
	}
}

func report(what, figure, target string) { fmt.Printf("%-66s %16s   %s\n", what, figure, target) }

func benchmark(b *testing.B) {
	w := worldOf(b, filepath.Join(b.TempDir(), "catalog.db"), shared.Get(b).Admin.Config)
	w.pace = 0
	w.start()
	w.watches()
	health := []store.Health{store.Healthy, store.Healthy, store.Healthy, store.Failing, store.Degraded}
	for i := range benchEntries {
		e := catalog()[i%8]
		e.Namespace, e.Name, e.UID, e.Health = fmt.Sprintf("team-%02d", i%50),
			fmt.Sprintf("%s-%05d", e.Name, i), fmt.Sprintf("uid-%d", i), health[i%len(health)]
		w.put(e)
	}
	namespaces := []string{"team-03", "team-17"}
	for i := range 50 {
		w.namespace(fmt.Sprintf("team-%02d", i))
	}
	all, two := w.token("*"), w.token(namespaces...)
	fmt.Printf("\n%-66s %16s   %s\n", "console, 10,000 agents and tool servers in 50 namespaces",
		"p99", "target")
	for _, page := range []struct{ what, token, path string }{
		{"home, of all namespaces", all, "/"}, {"home, right after a change", all, "/"},
		{"home, of two namespaces", two, "/"}, {"agents, of all namespaces", all, "/agents"},
		{"agents, of two namespaces", two,
			"/agents"}, {"agents, page 60", all, "/agents?after=team-40%2Fz%2F" + cards},
		{"agents, filtered by tag and health", all, "/agents?tag=travel&health=Failing"},
		{"agents, filtered, right after a change", all, "/agents?tag=travel&health=Failing"},
		{"search for a word that a thousand have", all, "/agents?q=weather"},
		{"search for a word that a few have", all, "/agents?q=secretary-00043"},
		{"tool servers", all, "/tools"}, {"an agent", all, "/entries/" + cards + "/travel/weather"},
		{"a tool server", all, "/entries/" + remotes + "/office/booking"},
		{"a package", all, "/packages/travel/travel"},
	} {
		var took, worked []time.Duration
		for i := range 310 {
			// what is remembered of the store ends with it
			if e := catalog()[0]; strings.HasSuffix(page.what, "after a change") {
				e.Version = fmt.Sprint(page.what, i)
				w.put(e)
			}
			cpu := cpuTime(b)
			d := w.firstByte(b, page.token, page.path)
			if i >= 10 { // Kubernetes' answers are remembered from then on
				took, worked = append(took, d), append(worked, cpuTime(b)-cpu)
			}
		}
		slices.Sort(took)
		slices.Sort(worked)
		p99 := func(all []time.Duration) string {
			return all[len(all)*99/100].Round(100 * time.Microsecond).String()
		}
		report("first byte: "+page.what, p99(took), "<= 50ms")
		report("  CPU time of the page, server and reader together", p99(worked), "")
	}
	before := memory()
	var open atomic.Int64
	for i := range benchStreams {
		w.hold(b, all,
			[]string{"/", "/agents", "/tools", "/entries/" + cards + "/travel/weather"}[i%4], &open)
	}
	time.Sleep(10 * time.Second) // each is printed once
	if open.Load() != benchStreams {
		b.Errorf("%d pages are open", open.Load())
	}
	report(fmt.Sprintf("memory of %d open pages, server and reader together", benchStreams),
		fmt.Sprintf("%.0f MiB", (memory()-before)/(1<<20)), "<= 64 MiB")
}

// firstByte of a page.
func (w *world) firstByte(b *testing.B, token, path string) (took time.Duration) {
	began := time.Now()
	trace := &httptrace.ClientTrace{GotFirstResponseByte: func() { took = time.Since(began) }}
	request, err := http.NewRequestWithContext(httptrace.WithClientTrace(b.Context(), trace),
		http.MethodGet, w.url+path, nil)
	w.must(err)
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	w.must(err)
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		b.Fatalf("%s: %s", path, response.Status)
	}
	return took
}

// hold a page open, and read what its stream sends.
func (w *world) hold(b *testing.B, token, page string, open *atomic.Int64) {
	request, err := http.NewRequestWithContext(b.Context(), http.MethodGet,
		w.url+w.streamOf(token, page), nil)
	w.must(err)
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	w.must(err)
	open.Add(1)
	go func() {
		defer open.Add(-1)
		defer response.Body.Close()
		for part := make([]byte, 512); err == nil; {
			_, err = response.Body.Read(part)
		}
	}()
}

// cpuTime of this process: on a busy machine it says what a page costs.
func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// memory that is in use, after garbage is collected.
func memory() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapInuse + m.StackInuse)
}
