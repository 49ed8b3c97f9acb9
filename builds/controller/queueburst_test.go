package controller_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"knative.dev/pkg/apis"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/api/keys"
)

// census counts runs by the API server's own watch, in the order of its writes.
type census struct {
	mu      sync.Mutex
	active  map[types.NamespacedName]bool
	peak    int            // of all namespaces
	peaks   map[string]int // of each
	started []types.NamespacedName
	begun   chan types.NamespacedName // runs, in this order
	failed  string
}

// census of the runs in the world's namespace, and in those whose names are this one, a
// hyphen and more, from now on.
func (w *world) census() *census {
	w.Helper()
	c, err := client.NewWithWatch(shared.Get(w.TB).Admin.Config, client.Options{Scheme: w.Scheme()})
	w.must(err)
	var now tektonv1.PipelineRunList
	w.must(c.List(w.Context(), &now))
	// Connections end under load: the watch goes on where it was.
	events, err := watchtools.NewRetryWatcherWithContext(w.Context(), now.ResourceVersion,
		&cache.ListWatch{
			WatchFuncWithContext: func(ctx context.Context,
				options metav1.ListOptions) (watch.Interface, error) {
				return c.Watch(ctx, &tektonv1.PipelineRunList{}, &client.ListOptions{Raw: &options})
			}})
	w.must(err)
	w.Cleanup(events.Stop)
	out := &census{active: map[types.NamespacedName]bool{}, peaks: map[string]int{},
		begun: make(chan types.NamespacedName, 10000)}
	go func() {
		for e := range events.ResultChan() {
			if run, ok := e.Object.(*tektonv1.PipelineRun); !ok {
				out.fail("the watch reports %v", e.Object)
			} else if run.Namespace == w.namespace ||
				strings.HasPrefix(run.Namespace, w.namespace+"-") {
				out.note(e.Type, run)
			}
		}
	}()
	return out
}

func (c *census) fail(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = cmp.Or(c.failed, fmt.Sprintf(format, args...))
}

func (c *census) note(event watch.EventType, run *tektonv1.PipelineRun) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := client.ObjectKeyFromObject(run)
	if event == watch.Added {
		c.started = append(c.started, types.NamespacedName{Namespace: run.Namespace,
			Name: run.Annotations[keys.AnnotationBuild]})
		c.begun <- key
	}
	if state := run.Status.GetCondition(apis.ConditionSucceeded); event == watch.Deleted ||
		state != nil && !state.IsUnknown() {
		delete(c.active, key)
	} else {
		c.active[key] = true
	}
	c.peak = max(c.peak, len(c.active))
	n := 0
	for k := range c.active {
		if k.Namespace == run.Namespace {
			n++
		}
	}
	c.peaks[run.Namespace] = max(c.peaks[run.Namespace], n)
}

// starts of runs so far, by build.
func (c *census) starts() []types.NamespacedName {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.started)
}

// succeedAll ends runs as they begin, each after a moment, until the test is over.
func (c *census) succeedAll(w *world) {
	now := metav1.Now().UTC().Format(time.RFC3339)
	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		"startTime": now, "completionTime": now,
		"conditions": []any{map[string]any{"type": "Succeeded", "status": "True",
			"reason": "Completed"}},
		"results": []any{map[string]any{"name": "IMAGE_DIGEST", "type": "string",
			"value": digest}},
	}})
	w.must(err)
	ctx := w.Context()
	for range 16 {
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case key := <-c.begun:
					time.Sleep(time.Duration(20+rand.IntN(100)) * time.Millisecond)
					run := &tektonv1.PipelineRun{
						ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
					err := w.Status().Patch(ctx, run, client.RawPatch(types.MergePatchType, patch))
					if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
						c.fail("ending run %s: %v", key, err)
					}
				}
			}
		}()
	}
}

// queueSize of of TestQueueSurvivesKills; the acceptance of the queue is 500
// builds and 8 kills.
func queueSize(t *testing.T) (builds, kills int) {
	text := os.Getenv("ARMATURE_QUEUE_BUILDS")
	if text == "" {
		return 100, 2
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 100 {
		t.Fatalf("ARMATURE_QUEUE_BUILDS=%q: use a number from 100", text)
	}
	return n, 8
}

// Builds of ten namespaces with a limit, while the controller is killed at random
// moments: never more than one run above the limit by the API server's own watch, one
// run a build, those that wait in the promised order, and no namespace starves. One
// namespace has a limit of its own, and the builds of another have the highest priority.
func TestQueueSurvivesKills(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute; run it without -short")
	}
	const limit, teams = 8, 10
	builds, kills := queueSize(t)
	w := newWorld(t)
	file := buildProgram(t)
	var namespaces []string
	for i := range teams {
		n := &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-q%d", w.namespace, i)}}
		if i == 0 {
			n.Annotations = map[string]string{keys.AnnotationMaxRunning: "1"}
		}
		w.must(w.Client.Create(t.Context(), n))
		namespaces = append(namespaces, n.Name)
	}
	flags := []string{"--max-running", strconv.Itoa(limit), "--watch-namespaces",
		strings.Join(namespaces, ",")}
	counted := w.census()
	// In several seconds, which is as exact as a creation time is.
	const waves = 4
	for wave := range waves {
		w.inParallel(users, builds/waves, func(i int) error {
			i = wave*(builds/waves) + i
			team := i % teams
			// names say nothing about the order
			b := w.newBuild(fmt.Sprintf("b%04d", (i*7919)%10007))
			b.Namespace = namespaces[team]
			switch {
			case team == 1:
				b.Spec.Priority = 1000
			case i%5 == 0:
				b.Spec.Priority = int32(i%3) - 1
			}
			return w.Client.Create(w.Context(), b)
		})
		time.Sleep(time.Second)
	}
	builds -= builds % waves
	cmd := w.spawn(file, flags...)
	defer func() { kill(cmd) }()
	w.eventually("all other builds wait, and say so", func() string {
		waiting, running := 0, 0
		for _, namespace := range namespaces {
			var list api.AgentBuildList
			w.must(w.List(w.Context(), &list, client.InNamespace(namespace)))
			for _, b := range list.Items {
				switch c := condition(&b, api.ConditionReady); {
				case c.Reason == api.ReasonQueued && b.Status.Phase == api.PhasePending &&
					b.Status.Message == inLine:
					waiting++
				case b.Status.Phase == api.PhaseBuilding:
					running++
				}
			}
		}
		if waiting != builds-limit || running != limit {
			return fmt.Sprintf("%d wait and %d run", waiting, running)
		}
		return ""
	})
	first := counted.starts() // before others waited
	order := w.promised(namespaces, first)
	counted.succeedAll(w)
	var at []int
	for i := range kills {
		w.await("progress between kills", 5*time.Minute,
			func() bool { return len(counted.starts()) >= builds*(i+1)/(kills+1) })
		time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
		kill(cmd)
		at = append(at, len(counted.starts()))
		cmd = w.spawn(file, flags...)
	}
	w.await("all runs began", 10*time.Minute,
		func() bool { return len(counted.starts()) >= builds })
	w.eventually("all builds are done", func() string {
		n := 0
		for _, namespace := range namespaces {
			var list api.AgentBuildList
			w.must(w.List(w.Context(), &list, client.InNamespace(namespace)))
			for _, b := range list.Items {
				if b.Status.Phase == api.PhaseSucceeded {
					n++
				}
			}
		}
		if n != builds {
			return fmt.Sprintf("%d of %d", n, builds)
		}
		return ""
	})

	counted.mu.Lock()
	defer counted.mu.Unlock()
	if counted.failed != "" {
		t.Error(counted.failed)
	}
	if counted.peak > limit+1 {
		t.Errorf("%d runs at once, the limit is %d", counted.peak, limit)
	}
	if n := counted.peaks[namespaces[0]]; n > 2 {
		t.Errorf("%d runs at once in the namespace with the limit 1", n)
	}
	spread := judgeOrder(t, counted.started[len(first):], order, limit)
	// A creation time is exact to a second, so that a restart may give a namespace one
	// turn again; the status of another may be lost.
	if spread > 2+2*kills {
		t.Errorf("a namespace was given %d turns less than another, both with builds that wait", spread)
	}
	t.Logf(
		"%d builds, %d runs, at most %d at once; turns differ by at most %d; runs at the kills: %v",
		builds, len(counted.started), counted.peak, spread, at)
}

// promised is the order of the builds of each namespace but those that have begun.
func (w *world) promised(namespaces []string, begun []types.NamespacedName) map[string][]string {
	w.Helper()
	out := map[string][]string{}
	for _, namespace := range namespaces {
		var list api.AgentBuildList
		w.must(w.List(w.Context(), &list, client.InNamespace(namespace)))
		slices.SortFunc(list.Items, func(a, b api.AgentBuild) int {
			return cmp.Or(cmp.Compare(b.Spec.Priority, a.Spec.Priority),
				a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
		})
		for _, b := range list.Items {
			if !slices.Contains(begun, client.ObjectKeyFromObject(&b)) {
				out[namespace] = append(out[namespace], b.Name)
			}
		}
	}
	return out
}

// judgeOrder checks the order of the starts: each build once, and in order. Of several that have a
// place at the same moment any may be created first. It returns the most turns that a namespace was
// ahead of another while both had builds that wait; the first namespace has a limit of its own, and
// is left out.
func judgeOrder(t *testing.T, started []types.NamespacedName, order map[string][]string,
	limit int) (spread int) {
	t.Helper()
	begun := map[string]int{}
	seen := map[types.NamespacedName]bool{}
	first := slices.Min(slices.Collect(func(yield func(string) bool) {
		for namespace := range order {
			if !yield(namespace) {
				return
			}
		}
	}))
	for _, build := range started {
		if seen[build] {
			t.Errorf("build %s has more than one run", build)
		}
		seen[build] = true
		places := limit
		if build.Namespace == first {
			places = 1
		}
		at := slices.Index(order[build.Namespace], build.Name)
		if before := begun[build.Namespace]; at < 0 || at-before >= places {
			t.Errorf("build %s, number %d of its namespace, began after %d others", build, at+1, before)
		}
		begun[build.Namespace]++
		least, most := len(started), 0
		for namespace, builds := range order {
			if namespace == first {
				continue
			}
			most = max(most, begun[namespace])
			if begun[namespace] < len(builds) {
				least = min(least, begun[namespace])
			}
		}
		spread = max(spread, min(most, len(order[build.Namespace]))-least)
	}
	return spread
}
