package controller_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/e2e/ports"
)

// The program serves what Prometheus and the kubelet ask for, and logs JSON.
func TestMetricsProbesAndLogs(t *testing.T) {
	w := newWorld(t)
	metrics, health := freeAddress(t), freeAddress(t)
	var logs controlplane.Output
	cmd := exec.Command(buildProgram(t), "--namespace", systemNamespace, "--watch-namespaces",
		w.namespace, "--leader-elect=false", "--metrics-address", metrics, "--health-address",
		health, "--max-running-per-namespace", "1")
	cmd.Env, cmd.Stderr = append(os.Environ(), "KUBECONFIG="+shared.Get(t).Admin.Kubeconfig), &logs
	w.must(cmd.Start())
	defer kill(cmd)
	for _, probe := range []string{"/healthz", "/readyz"} {
		w.eventually(probe, func() string {
			if status, _ := get(health + probe); status != http.StatusOK {
				return fmt.Sprint(status)
			}
			return ""
		})
	}

	w.create("good")
	w.succeed(w.run(1))
	w.phase("good", api.PhaseSucceeded)
	w.left(0)
	w.create("bad")
	w.fail(w.run(1))
	w.phase("bad", api.PhaseFailed)
	lift := w.deny()
	w.create("denied")
	w.phase("denied", api.PhaseFailed)
	lift()
	w.create("runs")
	w.create("waits")

	where := fmt.Sprintf(`mode="dev",namespace=%q`, w.namespace)
	for _, want := range []string{
		fmt.Sprintf(`armature_builds{namespace=%q,phase="Succeeded"} 1`, w.namespace),
		fmt.Sprintf(`armature_builds_queued{namespace=%q} `, w.namespace),
		fmt.Sprintf(`armature_builds_unready{namespace=%q,reason="Failed"} 1`, w.namespace),
		`armature_server_request_duration_seconds_count{request="commit",result="failed"} `,
		`armature_tekton_installed 1`,
		`armature_build_runs_total{` + where + `,trigger="CONFIG"} `,
		`armature_build_results_total{` + where + `,reason="Succeeded",result="succeeded"} 1`,
		`armature_build_results_total{` + where + `,reason="Failed",result="failed"} 1`,
		`armature_build_denials_total{` + where + `} `,
		`armature_build_establish_duration_seconds_count{` + where + `} `,
		`armature_build_rampup_duration_seconds_count{` + where + `} 2`,
		`armature_build_completion_duration_seconds_count{` + where + `} 2`,
		`controller_runtime_reconcile_total{controller="agentbuild",result="success"} `,
		`controller_runtime_reconcile_time_seconds_count{controller="agentbuild"} `,
	} {
		w.eventually("metric "+want, func() string {
			status, text := get(metrics + "/metrics")
			if !strings.Contains(text, "\n"+want) {
				return fmt.Sprintf("status %d, and the metric is not among %d bytes", status, len(text))
			}
			return ""
		})
	}
	// A run waits for Tekton until it begins, and a build without a run for its slot.
	waits := func(begun bool) {
		w.eventually(fmt.Sprintf("waits, begun %t", begun), func() string {
			_, text := get(metrics + "/metrics")
			oldest := "\narmature_builds_oldest_wait_seconds{namespace=" +
				strconv.Quote(w.namespace) + ",waits_for="
			if !strings.Contains(text, oldest+`"slot"} `) ||
				strings.Contains(text, oldest+`"start"} `) == begun {
				return text
			}
			return ""
		})
	}
	waits(false)
	for _, run := range w.runs() {
		if run.Status.StartTime == nil {
			w.begin(&run)
		}
	}
	waits(true)
	for line := range strings.Lines(logs.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("a log line is not JSON: %s", line)
		}
	}
	if !strings.Contains(logs.String(), `"level":"INFO"`) {
		t.Errorf("nothing is logged: %s", logs.String())
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := ports.Free()
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", port)
}

func get(address string) (status int, body string) {
	response, err := http.Get("http://" + address)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(data)
}
