package controller_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

// users is how many people create builds at once.
const users = 16

// inParallel calls do for 0 to n-1, by as many clients at once.
func (w *world) inParallel(clients, n int, do func(i int) error) {
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
	w.inParallel(users, to-from, func(i int) error {
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
	for deadline := time.Now().Add(limit); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatalf("%s: not within %s", what, limit)
		}
	}
}

// buildProgram builds the controller's program, once for all tests.
func buildProgram(t testing.TB) string {
	t.Helper()
	folder, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(folder, "armature-controller")
}

var program = sync.OnceValues(func() (string, error) {
	folder, err := os.MkdirTemp("", "armature-controller-")
	if err != nil {
		return "", err
	}
	programFolder = folder
	if out, err := exec.Command("go", "build", "-o", folder, "../../cmd/armature-controller").
		CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the controller: %w\n%s", err, out)
	}
	return folder, nil
})

// programFolder is what TestMain removes.
var programFolder string

// spawn the controller as a process of its own.
func (w *world) spawn(file string, flags ...string) *exec.Cmd {
	w.Helper()
	cmd := exec.Command(file, append(flags, "--namespace", systemNamespace, "--build-namespace",
		w.options.Settings.BuildNamespace, "--watch-namespaces", w.namespace,
		"--leader-elect=false", "--metrics-address", "0", "--health-address", "0", "--qps", "1000",
		"--log-level", "error")...)
	// GOGC is as in the container. A killed controller leaves files in TMPDIR.
	cmd.Env = append(os.Environ(), "KUBECONFIG="+shared.Get(w.TB).Admin.Kubeconfig, "GOGC=100",
		"TMPDIR="+w.TempDir())
	cmd.Stderr = os.Stderr
	w.must(cmd.Start())
	return cmd
}

// kill a process that cannot defend itself. Its exit status reports just that.
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
		w.await("progress between kills", 2*time.Minute,
			func() bool { return w.count() >= min(before+20, builds) })
		time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond)
		kill(cmd)
		counts = append(counts, w.count())
		cmd = w.spawn(file)
	}
	defer func() { kill(cmd) }()
	<-created
	w.await("all runs exist", 3*time.Minute, func() bool { return w.count() >= builds })
	w.await("all builds are under way", 3*time.Minute,
		func() bool { return w.inPhase(api.PhaseBuilding) == builds })
	by := map[string]int{}
	for _, run := range w.runs() {
		by[run.OwnerReferences[0].Name]++
	}
	if n := w.count(); n != builds || len(by) != builds {
		t.Errorf("%d runs of %d builds, want %d of each; runs at the kills: %v", n, len(by), builds,
			counts)
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
