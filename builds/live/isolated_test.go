package live

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/armature-dev/armature/builds/api"
)

// TestIsolatedRun checks that a run in the platform's namespace is shown for its own build alone:
// otherwise a tenant that can write a status could read every run. A refusal names the namespace.
func TestIsolatedRun(t *testing.T) {
	run := func(name, build string) string {
		return fmt.Sprintf(`{"apiVersion":"tekton.dev/v1","kind":"PipelineRun","metadata":{"namespace":"platform","name":%q,"annotations":{"armature.dev/build-uid":%q}}}`, name, build)
	}
	const at = "/apis/tekton.dev/v1/namespaces/"
	answers := map[string]string{
		at + "platform/pipelineruns/ours":   run("ours", "1"),
		at + "platform/pipelineruns/theirs": run("theirs", "2"),
		at + "platform/pipelineruns":        `{"apiVersion":"tekton.dev/v1","kind":"PipelineRunList","items":[` + run("ours", "1") + "," + run("theirs", "2") + "]}",
		at + "team/pipelineruns":            `{"apiVersion":"tekton.dev/v1","kind":"PipelineRunList","items":[]}`,
		at + "platform/taskruns":            `{"apiVersion":"tekton.dev/v1","kind":"TaskRunList","items":[]}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer, known := answers[r.URL.Path]
		if !known {
			w.WriteHeader(http.StatusForbidden)
			answer = `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"Forbidden","code":403,"message":"no"}`
		}
		fmt.Fprint(w, answer)
	}))
	defer server.Close()
	c, err := Connect(&rest.Config{Host: server.URL}, "team", api.DefaultGroup)
	if err != nil {
		t.Fatal(err)
	}
	b := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "weather", UID: "1"}}
	b.Status.PipelineRunNamespace = "platform"
	for name, shown := range map[string]bool{"ours": true, "theirs": false} {
		b.Status.PipelineRunName = name
		run, _, err := c.LastRun(t.Context(), b)
		if err != nil || (run != nil) != shown {
			t.Errorf("%s: %v, %v", name, run, err)
		}
	}
	if all, err := c.Runs(t.Context(), b); err != nil || len(all) != 1 || all[0].Name != "ours" {
		t.Errorf("runs %v, %v", all, err)
	}
	b.Status.PipelineRunNamespace = "closed"
	if _, _, err := c.LastRun(t.Context(), b); err == nil || !strings.Contains(err.Error(), "the platform's namespace closed") {
		t.Errorf("%v", err)
	}
}
