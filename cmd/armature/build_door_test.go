package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/controller/buildtest"
	"github.com/armature-dev/armature/e2e/controlplane"
)

// Without a right where the run is, all commands but logs do their work, and logs say both ways to
// it. Through a console, which is asked with the kubeconfig's token, they have the run.
func TestBuildDoor(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// in this order, so that nothing is built for a test that is skipped
	plane, a := controlplane.Start(t), buildArmature(t)
	c, err := buildtest.Install(plane)
	must(err)
	must(c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team1"}}))
	anna, err := plane.ServiceAccount(t.Context(), "default", "anna")
	must(err)
	// colons separate the files of KUBECONFIG
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must(os.Link(anna.Kubeconfig, kubeconfig))
	must(c.Create(t.Context(),
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "team1", Name: "anna"},
			Rules: []rbacv1.PolicyRule{{APIGroups: []string{"agent.kagenti.dev"},
				Resources: []string{"agentbuilds"},
				Verbs:     []string{"get", "list", "watch", "patch"}}}}))
	must(c.Create(t.Context(),
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "team1", Name: "anna"},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default",
				Name: "anna"}},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "anna"}}))
	a.env = append(environ, "KUBECONFIG="+plane.Admin.Kubeconfig, "ARMATURE_CATALOG=")
	a.run(t, 0, "build", "run", filepath.Join("..", "..", "examples", "builds", "weather.yaml"))
	b := &api.AgentBuild{}
	must(c.Get(t.Context(), client.ObjectKey{Namespace: "team1", Name: "weather"}, b))
	b.Status = api.AgentBuildStatus{Phase: api.PhaseBuilding, PipelineRunNamespace: "platform",
		PipelineRunName: "weather-1", ObservedGeneration: b.Generation}
	must(c.Status().Update(t.Context(), b))
	a.env = append(environ, "KUBECONFIG="+kubeconfig, "ARMATURE_CATALOG=")

	const task = "buildkit-build"
	both := []string{"the run is in the platform's namespace platform",
		"--catalog-server or ARMATURE_CATALOG", "agentbuilds/log in namespace team1",
		"read runs and logs of pods in platform"}
	says := func(text string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in:\n%s", want, text)
			}
		}
	}
	name := []string{"weather", "-n", "team1"}
	out, errs := a.run(t, 0, append([]string{"build", "describe"}, name...)...)
	says(out, "weather-1", "Building")
	says(errs, append(both, "Warning: the tasks that run are not shown")...)
	out, _ = a.run(t, 0, "build", "list", "-n", "team1")
	says(out, "Building")
	a.run(t, 0, append([]string{"build", "cancel"}, name...)...)
	a.run(t, 0, append([]string{"build", "rerun"}, name...)...)
	_, errs = a.run(t, 1, append([]string{"build", "logs"}, name...)...)
	says(errs, both...)

	log := `"b25lCg==" "" null`
	console := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, found := strings.CutPrefix(r.URL.Path, "/api/v1/builds/team1/weather/run")
		switch {
		case !found || r.URL.Query().Get("uid") != string(b.UID) ||
			r.Header.Get("Authorization") != "Bearer "+anna.Config.BearerToken:
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"error":"You may not.\u001b[2J"}`))
		case path == "":
			_, _ = w.Write([]byte(`{"namespace":"platform","name":"weather-1","tasks":[{"name":"` +
				task +
				`","state":"Running","pod":"p","steps":[{"name":"build","container":"step-build","state":"Running"}]}]}`))
		case path == "/p/step-build" && r.URL.Query().Get("tailLines") == "7":
			_, _ = w.Write([]byte(log))
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"error":"not in the catalog"}`))
		}
	}))
	t.Cleanup(console.Close)
	through := append(name, "--catalog-server", console.URL)
	if out, errs := a.run(t, 0, append([]string{"build", "logs", "--tail", "7"},
		through...)...); out != "["+task+"/build] one\n" || errs != "" {
		t.Errorf("logs: %q %q", out, errs)
	}
	if _, errs := a.run(t, 0, append([]string{"build", "logs"}, through...)...); errs !=
		"["+task+"/build] the log is gone\n" {
		t.Errorf("a log that is gone: %q", errs)
	}
	log = `"b25lCg==" ""`
	_, errs = a.run(t, 1, append([]string{"build", "logs", "--tail", "7"}, through...)...)
	says(errs, "reading the log of "+task+"/build: the console's answer was cut off")
	a.env = append(a.env, "ARMATURE_CATALOG="+console.URL)
	out, errs = a.run(t, 0, append([]string{"build", "describe"}, name...)...)
	if says(out, task+"  Running"); errs != "" {
		t.Errorf("describe: %s", errs)
	}
	b.UID = "of another build"
	_, errs = a.run(t, 1, append([]string{"build", "logs"}, through...)...)
	says(errs, "the catalog answers: You may not.")
	_, describes := a.run(t, 0, append([]string{"build", "describe"}, name...)...)
	says(describes, "the catalog answers: You may not.")
	if strings.Contains(errs+describes, "\033") {
		t.Errorf("the terminal gets an escape sequence: %q %q", errs, describes)
	}
}
