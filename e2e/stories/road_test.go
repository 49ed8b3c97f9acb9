package stories

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestRoadToARunningAgent: what `armature check --cluster` finds complete runs, and
// answers its user through the proxy. Without SPIRE's CSI driver, check names it. It does
// not run beside other stories, whose pods need the driver.
func TestRoadToARunningAgent(t *testing.T) {
	s := newStory(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	if len(s.info.SPIREServer) == 0 {
		t.Skip("it needs SPIRE in the cluster, and E2E_INFO names no command for its server")
	}
	const name = "proxy-sidecar" // which Keycloak knows
	entry := s.spire(t, "entry", "create", "-parentID", s.info.SPIREAgent, "-spiffeID",
		s.spiffeID(name), "-selector", "k8s:ns:"+s.namespace, "-selector", "k8s:sa:"+name)
	_, rest, _ := strings.Cut(string(entry), "Entry ID")
	id := strings.Fields(rest)[1]
	t.Cleanup(func() { s.spire(t, "entry", "delete", "-entryID", id) })
	must(t, s.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "spire-bundle"},
		Data: map[string]string{
			"bundle.json": string(s.spire(t, "bundle", "show", "-format", "spiffe"))},
	}))
	s.peers(t, "peers.yaml", "")
	s.running(t, "peers")

	folder := s.observed(t, name)
	check := func(status int) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "armature", "check", folder, "--cluster",
			"--namespace", s.namespace)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+os.Getenv("E2E_KUBECONFIG"))
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != status {
			t.Errorf("armature check ends with %v, want status %d:\n%s", err, status, out)
		}
		return string(out)
	}
	if out := check(0); !strings.Contains(out, "ok: the CSI driver csi.spiffe.io") ||
		!strings.Contains(out, ", 0 missing") {
		t.Errorf("check before the agent runs:\n%s", out)
	}

	s.applyObjects(t, s.rendered(t, folder))
	s.running(t, name)
	s.peers(t, "user.yaml", name)
	s.eventuallyAnswers(t, name, "/healthz", "the agent listens on 8001")
	if got, err := s.through(t, name, "/ask"); !refused(err) {
		t.Errorf("a request without a token gets %q, %v; want status 401", got, err)
	}
	s.says(t, "user-"+name, "alice by "+s.spiffeID(name)+"\nrefused")

	driver := &storagev1.CSIDriver{}
	must(t, s.Get(t.Context(), client.ObjectKey{Name: "csi.spiffe.io"}, driver))
	t.Cleanup(func() {
		driver.ResourceVersion, driver.UID = "", ""
		must(t, s.Create(context.Background(), driver))
	})
	must(t, s.Delete(t.Context(), driver.DeepCopy()))
	if out := check(1); !strings.Contains(out, "missing: the CSI driver csi.spiffe.io") ||
		!strings.Contains(out, "hint: install SPIRE with its CSI driver") {
		t.Errorf("check without SPIRE's CSI driver:\n%s", out)
	}
}
