package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/armature-dev/armature/builds/api"
)

// A step may print a line of many megabytes, as one that lists an image's
// contents does.
func TestBuildLogsLongLine(t *testing.T) {
	long := strings.Repeat("x", 3<<20)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("first\n" + long + "\nlast"))
	}))
	defer server.Close()
	pods, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	cmd.SetOut(&out)
	task := &tektonv1.TaskRun{}
	task.Name, task.Status.PodName = "sbom", "pod"
	task.Status.Steps = []tektonv1.StepState{{Name: "list", Container: "step-list",
		ContainerState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
	if err := (&connection{}).taskLogs(cmd, pods, &api.AgentBuild{}, task, false, map[string]bool{}); err != nil {
		t.Fatal(err)
	}
	if want := "[sbom/list] first\n[sbom/list] " + long + "\n[sbom/list] last\n"; out.String() != want {
		t.Errorf("%d bytes were printed, want %d", out.Len(), len(want))
	}
}
