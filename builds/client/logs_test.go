package client

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/controller/buildtest"
	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/process"
)

// A step may print a line of many megabytes, as one that lists an image's
// contents does.
func TestBuildLogsLongLine(t *testing.T) {
	long := strings.Repeat("x", 3<<20)
	out := printed(t, "first\n"+long+"\nlast")
	if want := "[sbom/list] first\n[sbom/list] " + long + "\n[sbom/list] last\n"; out != want {
		t.Errorf("%d bytes were printed, want %d", len(out), len(want))
	}
}

// longest is the length of the longest write.
type longest int

func (l *longest) Write(data []byte) (int, error) {
	*l = max(*l, longest(len(data)))
	return len(data), nil
}

// A log without line ends takes a bounded amount of memory.
func TestBuildLogsEndlessLine(t *testing.T) {
	var out longest
	p := &stepLogs{LogOptions: LogOptions{Out: &out}}
	p.print("sbom/list", func() (io.ReadCloser, error) {
		endless := io.LimitReader(letters{}, 3*maxLogLine)
		return io.NopCloser(endless), nil
	})
	if p.failed != nil || out < maxLogLine || out > maxLogLine+8<<10 {
		t.Errorf("a line of %d bytes was printed, with error %v", out, p.failed)
	}
}

// letters is a log that never ends and has no line ends.
type letters struct{}

func (letters) Read(into []byte) (int, error) {
	for i := range into {
		into[i] = 'x'
	}
	return len(into), nil
}

// printed returns what is printed of the log of step list of task sbom, which a server has.
func printed(t *testing.T, log string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(log))
	}))
	defer server.Close()
	pods, err := process.RESTClient(&rest.Config{Host: server.URL}, "/api",
		schema.GroupVersion{Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	task := &tektonv1.TaskRun{}
	task.Name = "sbom"
	task.Status.PodName = "pod"
	task.Status.Steps = []tektonv1.StepState{{Name: "list", Container: "step-list",
		ContainerState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
	var out bytes.Buffer
	p := &stepLogs{LogOptions: LogOptions{Out: &out, Tail: -1}, ctx: t.Context(),
		printed: map[string]bool{},
		read: func(pod, container string, options url.Values) (io.ReadCloser, error) {
			return (&Client{pods: pods}).StepLog(t.Context(), "team1", pod, container, options)
		}}
	p.task("run", begunTask(task))
	if p.failed != nil {
		t.Fatal(p.failed)
	}
	return out.String()
}

// podLogs serves the logs of containers. One that runs is served until it ends.
type podLogs struct {
	mu      sync.Mutex
	asked   map[string]bool // pod/container
	running map[string]chan struct{}
}

func (l *podLogs) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	pod := strings.Split(strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/team1/pods/"), "/")[0]
	key := pod + "/" + r.URL.Query().Get("container")
	l.mu.Lock()
	l.asked[key] = true
	running := l.running[key]
	l.mu.Unlock()
	fmt.Fprintf(w, "%s begins\n", key)
	if running != nil {
		w.(http.Flusher).Flush()
		select {
		case <-running:
		case <-r.Context().Done():
			return
		}
	}
	fmt.Fprintf(w, "%s ends\n", key)
}

func (l *podLogs) wasAsked(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked[key]
}

// Every step is printed to its end: one that is over within a moment, one beside
// a longer one, those of a run that is followed by a retry, and the last of a run
// that is deleted as soon as it ends.
func TestBuildLogsFollow(t *testing.T) {
	plane := controlplane.Start(t)
	c, err := buildtest.Install(plane)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team1"}}); err != nil {
		t.Fatal(err)
	}
	server := &podLogs{asked: map[string]bool{},
		running: map[string]chan struct{}{"long-pod/step-say": make(chan struct{})}}
	kubelet := httptest.NewServer(server)
	defer kubelet.Close()
	pods, err := process.RESTClient(&rest.Config{Host: kubelet.URL}, "/api",
		schema.GroupVersion{Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal(what)
			}
		}
	}
	labels := map[string]string{compose.LabelManagedBy: compose.ManagedBy, keys.LabelBuild: "weather"}
	status := func(edit func(*api.AgentBuildStatus)) {
		t.Helper()
		b := &api.AgentBuild{}
		must(c.Get(t.Context(), client.ObjectKey{Namespace: "team1", Name: "weather"}, b))
		b.Status.ObservedGeneration = b.Generation
		edit(&b.Status)
		must(c.Status().Update(t.Context(), b))
	}
	begin := func(run string) *tektonv1.PipelineRun {
		t.Helper()
		pr := &tektonv1.PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: "team1", Name: run,
			Labels: labels},
			Spec: tektonv1.PipelineRunSpec{PipelineRef: &tektonv1.PipelineRef{Name: "none"}}}
		must(c.Create(t.Context(), pr))
		status(func(s *api.AgentBuildStatus) {
			created := pr.CreationTimestamp
			s.Phase, s.PipelineRunName, s.LastBuildTime, s.Attempt =
				api.PhaseBuilding, run, &created, s.Attempt+1
		})
		return pr
	}
	task := func(pr *tektonv1.PipelineRun, name string,
		state corev1.ContainerState) *tektonv1.TaskRun {
		t.Helper()
		tr := &tektonv1.TaskRun{ObjectMeta: metav1.ObjectMeta{Namespace: "team1",
			Name: pr.Name + "-" + name, Labels: maps.Clone(labels)},
			Spec: tektonv1.TaskRunSpec{TaskRef: &tektonv1.TaskRef{Name: "none"}}}
		tr.Labels["tekton.dev/pipelineRun"], tr.Labels["tekton.dev/pipelineTask"] = pr.Name, name
		must(c.Create(t.Context(), tr))
		tr.Status.PodName = name + "-pod"
		tr.Status.Steps = []tektonv1.StepState{{Name: "say", Container: "step-say",
			ContainerState: state}}
		must(c.Status().Update(t.Context(), tr))
		fresh := pr.DeepCopy()
		must(c.Get(t.Context(), client.ObjectKeyFromObject(pr), fresh))
		fresh.Status.ChildReferences = append(fresh.Status.ChildReferences,
			tektonv1.ChildStatusReference{Name: tr.Name, PipelineTaskName: name})
		must(c.Status().Update(t.Context(), fresh))
		return tr
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}

	must(c.Create(t.Context(),
		&api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: "team1", Name: "weather"},
			Spec: api.AgentBuildSpec{
				Source:  api.SourceSpec{SourceRepository: "github.com/org/weather"},
				Retries: &api.Retries{Limit: 1, After: []api.RetryOn{api.RetryAny}},
				BuildOutput: &api.BuildOutput{Image: "weather", ImageTag: "v1",
					ImageRegistry: "registry.local"}}}))
	first := begin("first")
	var out, errs controlplane.Output
	connected, err := Connect(plane.Admin.Config, "team1", api.DefaultGroup)
	must(err)
	connected.pods = pods
	done := make(chan error, 1)
	go func() {
		done <- connected.Logs(t.Context(), "weather",
			LogOptions{Out: &out, Err: &errs, Follow: true, Tail: -1})
	}()

	long := task(first, "long", running)
	until("the long step is not followed",
		func() bool { return server.wasAsked("long-pod/step-say") })
	task(first, "beside", running)
	until("the step beside the long one is not followed",
		func() bool { return server.wasAsked("beside-pod/step-say") })
	gone := task(first, "moment", ended)
	must(c.Delete(t.Context(), gone))
	close(server.running["long-pod/step-say"])
	must(c.Delete(t.Context(), long))
	must(c.Delete(t.Context(), first))

	second := begin("second")
	last := task(second, "last", ended)
	must(c.Delete(t.Context(), last))
	must(c.Delete(t.Context(), second))
	status(func(s *api.AgentBuildStatus) {
		s.Phase, s.LastRunPhase = api.PhaseSucceeded, api.PhaseSucceeded
		s.Tasks = []api.TaskStatus{{Name: "last", State: "Succeeded"},
			{Name: "never-seen", State: "Succeeded"}, {Name: "left-out", State: "Skipped"}}
	})
	select {
	case err := <-done:
		must(err)
	case <-time.After(30 * time.Second):
		t.Fatal("it follows on and on")
	}
	for _, name := range []string{"long", "beside", "moment", "last"} {
		for _, state := range []string{"begins", "ends"} {
			if line := fmt.Sprintf("[%s/say] %s-pod/step-say %s\n", name, name,
				state); strings.Count(out.String(), line) != 1 {
				t.Errorf("not once: %s", line)
			}
		}
	}
	if got := errs.String(); !strings.HasPrefix(got, "[never-seen] the log is gone with its run") ||
		strings.Count(got, "\n") != 1 {
		t.Errorf("stderr: %s", got)
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// hostile clears the screen, sets the title, and overwrites the line that it is on.
const hostile = "\x1b[2J\x1b]0;x\x07fail\rpass"

func plain(t *testing.T, text string) {
	t.Helper()
	if strings.ContainsFunc(text, func(r rune) bool {
		return unicode.IsControl(r) && r != '\n' && r != '\t'
	}) {
		t.Errorf("a control character is in %q", text)
	}
	if !strings.Contains(text, `\x1b[2J\x1b]0;x\afail\rpass`) {
		t.Errorf("the words are lost: %q", text)
	}
}

// What a build's author wrote does not steer the terminal of who reads it.
func TestBuildLogsArePlain(t *testing.T) {
	out := printed(t, hostile+"\r\n")
	plain(t, out)
	if !strings.HasSuffix(out, "pass\n") {
		t.Errorf("the end of the line is shown: %q", out)
	}
}
