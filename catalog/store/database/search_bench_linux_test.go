package database_test

import (
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/armature-dev/armature/catalog/store"
)

// BenchmarkSearch prints how long searches take among 1,000 agents and 200
// servers with 10,000 tools.
func BenchmarkSearch(b *testing.B) {
	s := open(b, filepath.Join(b.TempDir(), "catalog.db"))
	subjects := []string{"invoice", "weather", "hotel", "flight", "calendar", "ticket", "database",
		"cluster", "mail", "document"}
	for i := range 1200 {
		e := agent(fmt.Sprintf("team%d", i%10), fmt.Sprintf("agent%04d", i), 1)
		if i >= 1000 {
			e.Resource, e.Type, e.Items = servers, store.Server, nil
			for n := range 50 {
				subject := subjects[n%len(subjects)]
				e.Items = append(e.Items,
					store.Item{Kind: store.Tool,
						Name:        fmt.Sprintf("create_%s_%d_%d", subject, i, n),
						Description: fmt.Sprintf("It can create a %s number %d", subject, n)})
			}
		}
		if _, err := s.Put(b.Context(), e, true); err != nil {
			b.Fatal(err)
		}
	}
	one := store.Scope{cards: {Names: []string{"team3"}}, servers: {Names: []string{"team3"}}}
	for name, c := range map[string]struct {
		scope store.Scope
		texts []string
	}{
		"few":      {store.Everything(), []string{"invoice 1077", "agent0042", "climate agent"}},
		"thousand": {store.Everything(), []string{"weather", "invoice", "create hotel"}},
		"all":      {store.Everything(), []string{"it can", "number", "create", "a"}},
		"team":     {one, []string{"weather", "it can", "invoice"}},
	} {
		b.Run(name, func(b *testing.B) {
			// the thread's CPU time is the search's: a busy machine does not count
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var took, worked []time.Duration
			for i := 0; b.Loop(); i++ {
				began, cpu := time.Now(), threadTime(b)
				if _, err := s.Search(b.Context(), store.Query{Scope: c.scope,
					Text: c.texts[i%len(c.texts)], Limit: 20}); err != nil {
					b.Fatal(err)
				}
				took, worked = append(took, time.Since(began)), append(worked, threadTime(b)-cpu)
			}
			slices.Sort(took)
			slices.Sort(worked)
			b.ReportMetric(float64(worked[len(worked)*99/100].Microseconds())/1000, "p99-cpu-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
		})
	}
}

// threadTime is the CPU time of this thread.
func threadTime(b *testing.B) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}
