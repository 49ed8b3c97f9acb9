package controller_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

// clients is how many users create at once.
const clients = 16

// inParallel calls do for 0 to n-1, by several clients at once.
func (w *world) inParallel(n int, do func(i int) error) {
	w.Helper()
	next := make(chan int)
	errs := make(chan error, clients)
	var group sync.WaitGroup
	for range clients {
		group.Add(1)
		go func() {
			defer group.Done()
			for i := range next {
				if err := do(i); err != nil {
					select {
					case errs <- err:
					default:
					}
				}
			}
		}()
	}
	for i := range n {
		next <- i
	}
	close(next)
	group.Wait()
	select {
	case err := <-errs:
		w.Fatal(err)
	default:
	}
}

// burst creates builds from..to at once.
func (w *world) burst(from, to int, edit ...func(*api.AgentBuild)) {
	w.Helper()
	w.inParallel(to-from, func(i int) error {
		return w.Client.Create(w.Context(), w.newBuild(fmt.Sprintf("b%04d", from+i), edit...))
	})
}

// count the runs, without reading them whole.
func (w *world) count() int {
	w.Helper()
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(tektonv1.SchemeGroupVersion.WithKind("PipelineRunList"))
	w.must(w.List(w.Context(), &list, client.InNamespace(w.namespace)))
	return len(list.Items)
}

func (w *world) await(what string, limit time.Duration, done func() bool) {
	w.Helper()
	for deadline := time.Now().Add(limit); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatalf("%s: not within %s", what, limit)
		}
	}
}

// buildProgram builds the controller's program.
func buildProgram(t testing.TB) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "armature-controller")
	if out, err := exec.Command("go", "build", "-o", file, "../../cmd/armature-controller").CombinedOutput(); err != nil {
		t.Fatalf("building the controller: %v\n%s", err, out)
	}
	return file
}

// spawn the controller as a process of its own.
func (w *world) spawn(file string) *exec.Cmd {
	w.Helper()
	cmd := exec.Command(file, "--namespace", systemNamespace, "--watch-namespaces", w.namespace, "--leader-elect=false",
		"--metrics-address", "0", "--health-address", "0", "--qps", "1000", "--log-level", "error")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+shared.Admin.Kubeconfig)
	cmd.Stderr = os.Stderr
	w.must(cmd.Start())
	return cmd
}

// kill a process that cannot defend itself. Its exit status tells just that.
func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// 500 builds at once, while the controller is killed at eight random moments:
// exactly 500 runs, one a build.
func TestBurstSurvivesKills(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute; run it without -short")
	}
	w := newWorld(t)
	file := buildProgram(t)
	const builds, kills = 500, 8
	created := make(chan struct{})
	cmd := w.spawn(file)
	go func() {
		defer close(created)
		w.burst(0, builds)
	}()
	counts := make([]int, 0, kills)
	for range kills {
		// Wait for some progress, so that every kill hits the controller at work.
		before := w.count()
		w.await("progress between kills", 2*time.Minute, func() bool { return w.count() >= min(before+20, builds) })
		time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond)
		kill(cmd)
		counts = append(counts, w.count())
		cmd = w.spawn(file)
	}
	defer func() { kill(cmd) }()
	<-created
	w.await("all runs exist", 3*time.Minute, func() bool { return w.count() >= builds })
	w.await("all builds are under way", 3*time.Minute, func() bool { return w.inPhase(api.PhaseBuilding) == builds })
	by := map[string]int{}
	for _, run := range w.runs() {
		by[run.OwnerReferences[0].Name]++
	}
	if n := w.count(); n != builds || len(by) != builds {
		t.Errorf("%d runs of %d builds, want %d of each; runs at the kills: %v", n, len(by), builds, counts)
	}
	t.Logf("runs at the kills: %v; %d runs in the end", counts, w.count())
}

func (w *world) inPhase(phase api.Phase) (n int) {
	w.Helper()
	var list api.AgentBuildList
	w.must(w.List(w.Context(), &list, client.InNamespace(w.namespace)))
	for _, b := range list.Items {
		if b.Status.Phase == phase {
			n++
		}
	}
	return n
}

// memory of a process: what is resident, and how much of that is its own. The
// rest is the program file, which the kernel may drop and shares among replicas.
func memory(t testing.TB, pid int) string {
	t.Helper()
	return fmt.Sprintf("%.0f MiB, private %.0f", statusMiB(t, pid, "VmRSS:"), statusMiB(t, pid, "RssAnon:"))
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

// BenchmarkBuilds prints one table of what the controller costs. Run it once:
// go test -run '^$' -bench Builds -benchtime 1x ./builds/controller
func BenchmarkBuilds(b *testing.B) {
	file := buildProgram(b)
	keep := false
	kept := func(b *api.AgentBuild) { b.Spec.CleanupAfterBuild = &keep }
	report := func(what, figure, target string) { fmt.Printf("%-62s %22s   %s\n", what, figure, target) }
	for b.Loop() {
		fmt.Printf("\n%-62s %22s   %s\n", "builds", "measured", "target")
		w := newWorld(b)

		// A burst with the controller running, and one that finds the builds there.
		stop := w.start()
		w.create("first", kept)
		w.await("the controller is up", time.Minute, func() bool { return w.count() == 1 })
		began := time.Now()
		w.burst(0, 500, kept)
		w.await("all runs exist", 3*time.Minute, func() bool { return w.count() == 501 })
		running := time.Since(began)
		untilRun, _ := w.writes.total()
		w.await("all builds are under way", 3*time.Minute, func() bool { return w.inPhase(api.PhaseBuilding) == 501 })

		runs := w.runs()
		raw := newWorld(b)
		began = time.Now()
		raw.inParallel(500, func(i int) error {
			run := runs[i].DeepCopy()
			run.ObjectMeta = metav1.ObjectMeta{Namespace: raw.namespace, Name: run.Name, Labels: run.Labels, Annotations: run.Annotations}
			run.Status = tektonv1.PipelineRunStatus{}
			return raw.Client.Create(raw.Context(), run)
		})
		rawTime := time.Since(began)
		report("500 raw creates of the same runs", rawTime.Round(time.Millisecond).String(), "")

		idle := newWorld(b)
		idle.burst(0, 500, kept)
		began = time.Now()
		idleStop := idle.start()
		idle.await("all runs exist", 3*time.Minute, func() bool { return idle.count() == 500 })
		backlog := time.Since(began)
		report("500 builds waiting: controller start until all runs exist", backlog.Round(time.Millisecond).String(), "")
		report("  over raw creates", fmt.Sprintf("%.2f", backlog.Seconds()/rawTime.Seconds()), "<= 1.5")
		report("500 builds created at once: first create until all runs exist", running.Round(time.Millisecond).String(), "")
		report("  over raw creates (the builds' own creation included)", fmt.Sprintf("%.2f", running.Seconds()/rawTime.Seconds()), "")
		idleStop()

		w.finishAll(runs)
		w.await("all builds are done", 5*time.Minute, func() bool { return w.inPhase(api.PhaseSucceeded) == 501 })
		_, by := w.writes.total()
		total := 0
		for kind, n := range by {
			if kind != "POST events" {
				total += n
			}
		}
		report("API writes a build until all runs exist", fmt.Sprintf("%.2f", float64(untilRun)/501), "<= 2")
		report("API writes a build until it is done (events apart)", fmt.Sprintf("%.2f", float64(total)/501), "<= 4")
		stop()

		cmd := w.spawn(file)
		time.Sleep(4 * time.Second)
		report("memory with 500 builds and their 500 runs kept", memory(b, cmd.Process.Pid), "<= 42 (half of Shipwright's 85)")
		w.burst(500, 3000, kept)
		w.await("3,000 runs exist", 10*time.Minute, func() bool { return w.count() >= 3001 })
		w.await("3,000 builds are under way", 10*time.Minute, func() bool { return w.inPhase(api.PhaseBuilding) >= 2500 })
		w.finishAll(w.runs())
		w.await("3,000 builds are done", 10*time.Minute, func() bool { return w.inPhase(api.PhaseSucceeded) == 3001 })
		report("memory after 3,000 builds, runs kept, same process", memory(b, cmd.Process.Pid), "<= 136 (half of Shipwright's 272)")
		kill(cmd)

		before, _ := w.writes.total()
		stop = w.start()
		time.Sleep(15 * time.Second)
		after, _ := w.writes.total()
		report("API writes at restart with 3,000 finished builds", fmt.Sprint(after-before), "0")
		stop()

		d := newWorld(b)
		lift := d.deny()
		stop = d.start()
		d.create("warm-up", func(b *api.AgentBuild) { b.Spec.Mode = "none" })
		d.phase("warm-up", api.PhaseFailed)
		began = time.Now()
		d.create("denied")
		d.phase("denied", api.PhaseFailed)
		report("admission denial until its condition", time.Since(began).Round(time.Millisecond).String(), "<= 2s")
		stop()
		lift()
	}
}

// finishAll ends the runs that are not done.
func (w *world) finishAll(runs []tektonv1.PipelineRun) {
	w.Helper()
	w.inParallel(len(runs), func(i int) error {
		if runs[i].Status.CompletionTime != nil {
			return nil
		}
		w.finish(&runs[i], corev1.ConditionTrue, "Succeeded", "Tasks Completed: 4", func(s *tektonv1.PipelineRunStatus) {
			s.Results = []tektonv1.PipelineRunResult{{Name: "IMAGE_DIGEST", Value: *tektonv1.NewStructuredValues(digest)}}
		})
		return nil
	})
}
