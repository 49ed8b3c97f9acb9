package controlplane

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

// MemoryLimit returns the limit in bytes of the first container of a Deployment's file.
func MemoryLimit(t testing.TB, deployment string) int64 {
	t.Helper()
	text, err := os.ReadFile(deployment)
	if err != nil {
		t.Fatal(err)
	}
	var d appsv1.Deployment
	if err := yaml.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d.Spec.Template.Spec.Containers[0].Resources.Limits.Memory().Value()
}

// PeakMemory measures the most memory in bytes that a process has had, without that of files,
// until stop is called. The source is /proc of Linux.
func PeakMemory(pid int) (stop func() int64) {
	done, peak := make(chan struct{}), make(chan int64)
	go func() {
		var most int64
		for {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if _, rest, ok := strings.Cut(string(text), "RssAnon:"); ok {
				kib, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
				most = max(most, kib<<10)
			}
			select {
			case <-done:
				peak <- most
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	}()
	return func() int64 { close(done); return <-peak }
}
