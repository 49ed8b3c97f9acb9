package failure

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/controller/runs"
)

// The lifecycle of buildpacks writes in colours, which hide nothing and are not kept; what
// moves a terminal's cursor is shown as what it is.
func TestLinesOf(t *testing.T) {
	log := "\x1b[36m===> DETECTING\x1b[0m\n\x1b[31;1mERROR: \x1b[0mNo buildpack groups passed " +
		"detection.\n\x1b[31;1mERROR: \x1b[0mfailed to detect: no buildpacks participating\n"
	lines := linesOf([]byte(log))
	if want := []string{"===> DETECTING", "ERROR: No buildpack groups passed detection.",
		"ERROR: failed to detect: no buildpacks participating"}; !slices.Equal(lines, want) {
		t.Errorf("%q, want %q", lines, want)
	}
	if got := Of(Step{Name: "create", Log: lines}); got.Reason != "BuildpacksFailed" {
		t.Errorf("%+v", got)
	}
	if got := linesOf([]byte("\x1b[2Jgone\n")); len(got) != 1 || got[0] == "gone" {
		t.Errorf("%q", got)
	}
	if got := linesOf([]byte("\n\n")); got != nil {
		t.Errorf("%q", got)
	}
}

// TestLogTailOfLongLines checks that the end of a log is read if its lines are long: the kubelet
// applies the limit of bytes after that of lines, from the first of these on.
func TestLogTailOfLongLines(t *testing.T) {
	var lines []string
	for range 100 {
		lines = append(lines, strings.Repeat("x", 2000))
	}
	const last = `error: failed to solve: process "/bin/sh -c make" did not complete: exit code: 2`
	log := strings.Join(append(lines, last), "\n") + "\n"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tail, _ := strconv.Atoi(r.URL.Query().Get("tailLines"))
		limit, _ := strconv.Atoi(r.URL.Query().Get("limitBytes"))
		all := strings.SplitAfter(strings.TrimSuffix(log, "\n"), "\n")
		text := strings.Join(all[max(0, len(all)-tail):], "") + "\n"
		fmt.Fprint(w, text[:min(len(text), limit)])
	}))
	defer server.Close()
	clients, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	r := Reader{Logs: clients.CoreV1(), LogLines: 20}
	got := r.logTail(t.Context(), "team", &api.FailureLocation{Pod: "pod", Container: "step-build"})
	if len(got) < 2 || got[len(got)-1] != last {
		t.Errorf("%d lines, the last begins with %.100q", len(got), got[len(got)-1])
	}
	// A line that is longer than the limit alone is cut.
	log = strings.Repeat("y", 2*maxTail)
	got = r.logTail(t.Context(), "team", &api.FailureLocation{Pod: "pod", Container: "step-build"})
	if len(got) != 1 || len(got[0]) != maxTail {
		t.Errorf("%d lines of one that is too long", len(got))
	}
}

// counted counts the objects that are read of an empty cluster.
type counted struct {
	client.Reader
	gets int
}

func (c *counted) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	c.gets++
	return errors.New("not found")
}

// TestTasksAreBounded checks that a run whose status names many TaskRuns takes a bounded number of
// requests, and of entries in the status of the build.
func TestTasksAreBounded(t *testing.T) {
	run := runs.Run{PipelineRun: &runs.PipelineRun{}}
	for i := range 5000 {
		run.Status.ChildReferences = append(run.Status.ChildReferences,
			tektonv1.ChildStatusReference{TypeMeta: runtime.TypeMeta{Kind: "TaskRun"},
				Name: fmt.Sprint(i), PipelineTaskName: fmt.Sprint(i)})
		run.Status.SkippedTasks = append(run.Status.SkippedTasks,
			tektonv1.SkippedTask{Name: fmt.Sprint("skipped", i)})
	}
	live := &counted{}
	tasks, _ := (&Reader{Live: live}).tasks(t.Context(), run)
	if live.gets != maxTasks || len(tasks) != 2*maxTasks {
		t.Errorf("%d requests and %d tasks", live.gets, len(tasks))
	}
}
