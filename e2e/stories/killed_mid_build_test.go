package stories

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// In the middle of a build our controller, the API server and Tekton's
// controller are killed. The build ends well, and was run once. (No other story
// runs meanwhile.)
func TestKilledInMidBuild(t *testing.T) {
	s := newStory(t, nil)
	if s.info.Process == 0 {
		t.Skip("it kills processes, so it takes the cluster of `make cluster-up`")
	}
	s.installed(t)
	s.push(t, "testdata/slow", "public/"+s.namespace+".git")
	s.apply(t, strings.Replace(slowBuild, `"600"`, `"15"`, 1)+"  cleanupAfterBuild: false\n")
	s.building(t, "slow")

	for _, program := range []string{"/ko-app/armature-controller", "kube-apiserver",
		"/ko-app/controller"} {
		s.kill(t, program)
	}
	s.succeeded(t, "slow")

	var runs tektonv1.PipelineRunList
	must(t, s.List(t.Context(), &runs, client.InNamespace(s.namespace)))
	if len(runs.Items) != 1 {
		t.Errorf("%d runs were started, want 1", len(runs.Items))
	}
	var tasks tektonv1.TaskRunList
	must(t, s.List(t.Context(), &tasks, client.InNamespace(s.namespace)))
	for _, task := range tasks.Items {
		if n := len(task.Status.RetriesStatus); n > 0 {
			t.Errorf("task %s was tried %d times more", task.Name, n)
		}
	}
}

// kill ends all processes of a program with SIGKILL and waits for another.
func (s *story) kill(t *testing.T, program string) {
	t.Helper()
	before := s.processes(t, program)
	if len(before) == 0 {
		t.Fatalf("%s does not run", program)
	}
	for pid := range before {
		must(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	eventually(t, 5*time.Minute, program+" runs again", func(context.Context) error {
		after := s.processes(t, program)
		for pid := range after {
			if !before[pid] {
				return nil
			}
		}
		return fmt.Errorf("only %v run", after)
	})
}

// processes of the cluster that were started under that name.
func (s *story) processes(t *testing.T, program string) map[int]bool {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	found := map[int]bool{}
	for _, file := range files {
		args, err := os.ReadFile(file)
		if err != nil || !bytes.HasPrefix(args, []byte(program+"\x00")) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		must(t, err)
		if descends(pid, s.info.Process) {
			found[pid] = true
		}
	}
	return found
}

func descends(pid, ancestor int) bool {
	for pid > 1 && pid != ancestor {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return false
		}
		// The parent follows the state, which follows the name in parentheses.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		pid, _ = strconv.Atoi(fields[1])
	}
	return pid == ancestor
}
