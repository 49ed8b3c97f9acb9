package controller_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

// BenchmarkBuilds prints one table of what the controller costs. Run it once:
// go test -run '^$' -bench Builds -benchtime 1x ./builds/controller
func BenchmarkBuilds(b *testing.B) {
	for _, part := range []struct {
		name    string
		measure func(*testing.B)
	}{{"burst", measureBurst}, {"load", measureLoad}, {"denial", measureDenial},
		{"polling", measurePolling}, {"webhook", measureWebhook}} {
		b.Run(part.name, func(b *testing.B) {
			for b.Loop() {
				part.measure(b)
			}
		})
	}
}

func report(what, figure, target string) { fmt.Printf("%-66s %22s   %s\n", what, figure, target) }

// kept keeps the runs of a build.
func kept(b *api.AgentBuild) { b.Spec.CleanupAfterBuild = new(bool) }

const (
	burstSize = 500
	// workers of the controller, as many as it has by default, and clients that
	// create raw runs.
	workers = 8
	rounds  = 5
)

// measureBurst compares the controller with a client that creates the same runs
// and does nothing else: the same bytes but for the namespace, the same number of
// requests at a time, the same API server, in turns. Each figure ends with the
// API server's last answer to the creation of a run. The first round warms up.
func measureBurst(b *testing.B) {
	// Runs as the controller composes them.
	sample := newWorld(b)
	stop := sample.start()
	sample.burst(0, burstSize, kept)
	sample.runsAnswered(burstSize)
	stop()
	runs := sample.runs()
	for i := range runs {
		have := runs[i].ObjectMeta
		runs[i].ObjectMeta = metav1.ObjectMeta{Name: have.Name, Labels: have.Labels,
			Annotations: have.Annotations, OwnerReferences: have.OwnerReferences}
		runs[i].Status = tektonv1.PipelineRunStatus{}
	}

	raw := func() cost {
		w := newWorld(b)
		c, err := client.New(w.config, client.Options{Scheme: w.Scheme()})
		w.must(err)
		return w.costOf(burstSize, func() {
			w.inParallel(workers, burstSize, func(i int) error {
				run := runs[i].DeepCopy()
				run.Namespace = w.namespace
				return c.Create(w.Context(), run)
			})
		})
	}
	waiting := func() cost {
		w := newWorld(b)
		w.options.Concurrency = workers
		w.burst(0, burstSize, kept)
		stop := func() {}
		defer func() { stop() }()
		return w.costOf(burstSize, func() { stop = w.start() })
	}
	atOnce := func() cost {
		w := newWorld(b)
		w.options.Concurrency = workers
		defer w.start()()
		w.create("first", kept)
		w.runsAnswered(1)
		return w.costOf(burstSize+1, func() { w.burst(0, burstSize, kept) })
	}
	var raws, waits, onces []cost
	for round := range rounds + 1 {
		r, wait, once := raw(), waiting(), atOnce()
		if round > 0 {
			raws, waits, onces = append(raws, r), append(waits, wait), append(onces, once)
		}
	}
	fmt.Printf("\nmedian of %d rounds (least to most); load average %s\n", rounds, loadAverage())
	report(fmt.Sprintf("%d raw creates of the runs, %d at a time", burstSize, workers),
		spread("%.2fs", raws, cost.wallSeconds), "")
	report("  CPU of client, API server and etcd", spread("%.2fs", raws, cost.cpuSeconds), "")
	for _, row := range []struct {
		what  string
		costs []cost
	}{
		{"builds waiting: controller start until all runs exist", waits},
		{"builds created at once: first create until all runs exist", onces},
	} {
		report(fmt.Sprintf("%d %s", burstSize, row.what),
			spread("%.2fs", row.costs, cost.wallSeconds), "")
		over := make([]cost, rounds)
		for i := range over {
			over[i] = cost{row.costs[i].wall / raws[i].wall, row.costs[i].cpu / raws[i].cpu}
		}
		report("  over raw creates", spread("%.2f", over, cost.wallSeconds), "<= 1.5")
		report("  CPU over raw creates", spread("%.2f", over, cost.cpuSeconds), "")
	}
}

// cost of a piece of work in seconds: by the clock, and of CPU in this process
// and its children, the API server and etcd. The latter is more reliable on a busy
// machine.
type cost struct{ wall, cpu float64 }

func (c cost) wallSeconds() float64 { return c.wall }
func (c cost) cpuSeconds() float64  { return c.cpu }

// costOf do until n runs are confirmed.
func (w *world) costOf(n int, do func()) cost {
	w.Helper()
	began, cpu := time.Now(), w.cpuSeconds()
	do()
	end := w.runsAnswered(n)
	return cost{end.Sub(began).Seconds(), w.cpuSeconds() - cpu}
}

// cpuSeconds that this process and its children have used.
func (w *world) cpuSeconds() (sum float64) {
	w.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	w.must(err)
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // it ended
		}
		// After the name in parentheses: state, parent, …; user and system time in
		// hundredths are the 12th and 13th (proc_pid_stat(5)).
		fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		if me := strconv.Itoa(os.Getpid()); filepath.Base(filepath.Dir(file)) != me && fields[1] != me {
			continue
		}
		for _, field := range fields[11:13] {
			ticks, err := strconv.ParseFloat(field, 64)
			w.must(err)
			sum += ticks / 100
		}
	}
	return sum
}

// spread of a figure: the median, the least and the most.
func spread(format string, costs []cost, figure func(cost) float64) string {
	var list []float64
	for _, c := range costs {
		list = append(list, figure(c))
	}
	slices.Sort(list)
	return fmt.Sprintf(format+" ("+format+" to "+format+")", list[len(list)/2], list[0],
		list[len(list)-1])
}

func loadAverage() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(data))[:3], " ")
}

// runsAnswered waits until the API server has confirmed n runs, and returns the moment of the last
// confirmation.
func (w *world) runsAnswered(n int) time.Time {
	w.Helper()
	var at time.Time
	w.await(fmt.Sprintf("%d runs exist", n), 3*time.Minute, func() (enough bool) {
		at, enough = w.writes.runsCreated(n)
		return enough
	})
	return at
}

// measureLoad counts writes and memory while builds pile up.
func measureLoad(b *testing.B) {
	file := buildProgram(b)
	w := newWorld(b)
	stop := w.start()
	w.burst(0, burstSize, kept)
	w.runsAnswered(burstSize)
	untilRun, _ := w.writes.total()
	w.await("all builds are under way", 3*time.Minute,
		func() bool { return w.inPhase(api.PhaseBuilding) == burstSize })
	w.finishAll(w.runs())
	w.await("all builds are done", 5*time.Minute,
		func() bool { return w.inPhase(api.PhaseSucceeded) == burstSize })
	_, by := w.writes.total()
	total := 0
	for kind, n := range by {
		if kind != "POST events" {
			total += n
		}
	}
	report("API writes a build until all runs exist",
		fmt.Sprintf("%.2f", float64(untilRun)/burstSize), "<= 2")
	report("API writes a build until it is done (events apart)",
		fmt.Sprintf("%.2f", float64(total)/burstSize), "<= 4")
	stop()

	cmd := w.spawn(file)
	time.Sleep(4 * time.Second)
	report("memory with 500 builds and their 500 runs kept", memory(b, cmd.Process.Pid),
		"<= 42 (half of Shipwright's 85)")
	w.burst(burstSize, 3000, kept)
	w.await("3,000 runs exist", 10*time.Minute, func() bool { return w.count() >= 3000 })
	w.await("3,000 builds are under way", 10*time.Minute,
		func() bool { return w.inPhase(api.PhaseBuilding) >= 3000-burstSize })
	w.finishAll(w.runs())
	w.await("3,000 builds are done", 10*time.Minute,
		func() bool { return w.inPhase(api.PhaseSucceeded) == 3000 })
	report("memory after 3,000 builds, runs kept, same process", memory(b, cmd.Process.Pid),
		"<= 136 (half of Shipwright's 272)")
	kill(cmd)

	before, _ := w.writes.total()
	stop = w.start()
	time.Sleep(15 * time.Second)
	after, _ := w.writes.total()
	report("API writes at restart with 3,000 finished builds", fmt.Sprint(after-before), "0")
	stop()
}

func measureDenial(b *testing.B) {
	w := newWorld(b)
	lift := w.deny()
	stop := w.start()
	w.create("warm-up", func(b *api.AgentBuild) { b.Spec.Mode = "none" })
	w.phase("warm-up", api.PhaseFailed)
	began := time.Now()
	w.create("denied")
	w.phase("denied", api.PhaseFailed)
	report("admission denial until its condition",
		time.Since(began).Round(time.Millisecond).String(), "<= 2s")
	stop()
	lift()
}

// memory of a process: what is resident, and how much of that is its own. The
// rest is the program file, which the kernel may drop and shares among replicas.
func memory(t testing.TB, pid int) string {
	t.Helper()
	return fmt.Sprintf("%.0f MiB, private %.0f", statusMiB(t, pid, "VmRSS:"),
		statusMiB(t, pid, "RssAnon:"))
}

func statusMiB(t testing.TB, pid int, key string) float64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(data), "\n") {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == key {
			kib, err := strconv.ParseFloat(fields[1], 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib / 1024
		}
	}
	t.Fatalf("no %s", key)
	return 0
}

// finishAll ends the runs that are not done.
func (w *world) finishAll(runs []tektonv1.PipelineRun) {
	w.Helper()
	w.inParallel(users, len(runs), func(i int) error {
		if runs[i].Status.CompletionTime != nil {
			return nil
		}
		w.finish(&runs[i], corev1.ConditionTrue, "Succeeded", "Tasks Completed: 4",
			func(s *tektonv1.PipelineRunStatus) {
				s.Results = []tektonv1.PipelineRunResult{{Name: "IMAGE_DIGEST",
					Value: *tektonv1.NewStructuredValues(digest)}}
			})
		return nil
	})
}
