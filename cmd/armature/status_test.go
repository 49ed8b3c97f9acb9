package main

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/armature-dev/armature/e2e/controlplane"
)

// TestStatus runs the command as a script would: formats, exit status, --watch.
func TestStatus(t *testing.T) {
	plane := controlplane.Start(t)
	c, err := kubernetes.NewForConfig(plane.Admin.Config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team1"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	a := buildArmature(t)
	a.env = append(environ, "KUBECONFIG="+plane.Admin.Kubeconfig)

	// Nothing there yet: that is fine, and reported.
	if out, errs := a.run(t, 0, "status", "-n", "team1"); out != "" ||
		!strings.Contains(errs, "no rendered objects in namespace team1") {
		t.Errorf("out %q, errors %q", out, errs)
	}
	pod := func(name string) string {
		return "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: " + name +
			", namespace: team1, labels: {kagenti.io/inject: enabled}}\nspec:\n" +
			"  selector: {matchLabels: {app: a}}\n  template:\n    metadata: {labels: {app: a}}\n" +
			"    spec:\n      containers:\n      - {name: web, image: \"web:v1\"}\n"
	}
	file := t.TempDir() + "/web.yaml"
	if err := os.WriteFile(file, []byte(pod("web")), 0o600); err != nil {
		t.Fatal(err)
	}
	a.run(t, 0, "apply", file, "-n", "team1", "--timeout", "0")

	// No pod runs: on its way, which is exit status 3.
	out, _ := a.run(t, 3, "status", "-n", "team1")
	if !strings.Contains(out, "web        Deployment   InProgress   0/0") ||
		!strings.Contains(out, "no pod has the configuration") {
		t.Error(out)
	}
	if out, _ = a.run(t, 3, "status", "-A", "-o", "wide"); !strings.HasPrefix(out, "NAMESPACE") ||
		!strings.Contains(out, "TOKENEXCHANGE") {
		t.Error(out)
	}
	out, _ = a.run(t, 3, "status", "-n", "team1", "-o", "json")
	var report struct {
		Workloads      []struct{ Namespace, Name, Status string }
		TokenExchanges []struct{ Phase, ConfigMapName string }
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil || len(report.Workloads) != 1 ||
		report.Workloads[0].Name != "web" ||
		report.TokenExchanges[0].ConfigMapName != "authbridge-config-web" {
		t.Errorf("%v: %s", err, out)
	}
	if out, _ = a.run(t, 3, "status", "web", "-n", "team1", "-o", "yaml"); !strings.Contains(out,
		"phase: Pending") {
		t.Error(out)
	}

	// Something is wrong: exit status 1.
	if err := c.CoreV1().ConfigMaps("team1").Delete(t.Context(), "authbridge-config-web",
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if out, _ = a.run(t, 1, "status", "-n", "team1"); !strings.Contains(out,
		"the ConfigMap authbridge-config-web is missing: apply the package again") {
		t.Error(out)
	}

	// The message of a registry to the kubelet does not control the terminal.
	failing := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-1",
		Labels: map[string]string{"app": "a"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web:v1"}}}}
	if failing, err = c.CoreV1().Pods("team1").Create(t.Context(), failing,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	failing.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "web",
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull",
			Message: "denied: \033[2Jgone"}}}}
	if _, err := c.CoreV1().Pods("team1").UpdateStatus(t.Context(), failing,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if out, _ = a.run(t, 1, "status", "-n", "team1"); !strings.Contains(out,
		"ErrImagePull: container web: denied:  [2Jgone\n") || strings.Contains(out, "\033") {
		t.Errorf("%q", out)
	}
	now := int64(0)
	if err := c.CoreV1().Pods("team1").Delete(t.Context(), "web-1",
		metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}

	// What is not there, and wrong calls.
	if _, errs := a.run(t, 1, "status", "nothing", "-n", "team1"); !strings.Contains(errs,
		"no rendered object has the name nothing in namespace team1") {
		t.Error(errs)
	}
	a.run(t, 2, "status", "-o", "csv")
	a.run(t, 2, "status", "--watch", "-o", "json")

	watchStatus(t, a, func() {
		a.run(t, 0, "apply", file, "-n", "team1", "--timeout", "0")
	})
}

// Ctrl-C before a cluster has answered at all is not a success.
func TestStatusOfSilentCluster(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: " +
		"{cluster: c, user: c}}], users: [{name: c, user: {}}], clusters: [{name: c, cluster: " +
		"{server: 'http://" + silent.Addr().String() + "'}}]}"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, buildArmature(t).file, "status", "--watch", "--kubeconfig",
		kubeconfig)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := silent.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	asked, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer asked.Close()
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if status := cmd.ProcessState.ExitCode(); status != 1 {
		t.Errorf("exit status %d, want 1", status)
	}
}

// watchStatus expects --watch to show a change, and Ctrl-C to end it with the
// exit status of what it showed last.
func watchStatus(t *testing.T, a *armature, change func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, a.file, "status", "-n", "team1", "--watch")
	var out controlplane.Output
	cmd.Env, cmd.Stdout, cmd.Stderr = a.env, &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	until := func(text string) {
		for !strings.Contains(out.String(), text) {
			if ctx.Err() != nil {
				t.Fatalf("never printed %q:\n%s", text, out.String())
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	until("is missing")
	change()
	until("no pod has the configuration")
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if status := cmd.ProcessState.ExitCode(); status != 3 {
		t.Errorf("exit status %d, want 3\n%s", status, out.String())
	}
}
