package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/armature-dev/armature/builds/api"
)

// TestIsolatedRun checks that a run in the platform's namespace is shown for its own build alone:
// otherwise a tenant that can write a status could read every run. A client that knows the
// platform's namespace finds the run there, whatever the status says. A refusal names both ways to
// the run.
func TestIsolatedRun(t *testing.T) {
	run := func(name, number, namespace, build string) string {
		return fmt.Sprintf(
			`{"apiVersion":"tekton.dev/v1","kind":"PipelineRun","metadata":{"namespace":"platform","name":%q,"annotations":{"armature.dev/run-number":%q,"armature.dev/build-namespace":%q,"armature.dev/build-name":"weather","armature.dev/build-uid":%q}}}`,
			name, number, namespace, build)
	}
	const at = "/apis/tekton.dev/v1/namespaces/"
	all := []string{run("before", "1", "team", "1"), run("ours", "2", "team", "1"),
		run("theirs", "3", "team", "2"), run("copied", "4", "other", "1")}
	answers := map[string]string{
		at + "platform/pipelineruns/before": all[0],
		at + "platform/pipelineruns/ours":   all[1],
		at + "platform/pipelineruns/theirs": all[2],
		at + "platform/pipelineruns/copied": all[3],
		at +
			"platform/pipelineruns": `{"apiVersion":"tekton.dev/v1","kind":"PipelineRunList","items":[` +
			strings.Join(all, ",") + "]}",
		at +
			"platform/taskruns": `{"apiVersion":"tekton.dev/v1","kind":"TaskRunList","items":[]}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer, known := answers[r.URL.Path]
		if !known {
			w.WriteHeader(http.StatusForbidden)
			answer = `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"Forbidden","code":403,"message":"no"}`
		}
		if strings.HasSuffix(r.URL.Path, "/pipelineruns") &&
			!strings.Contains(r.URL.Query().Get("labelSelector"), "armature.dev/build-uid=1") {
			t.Errorf("the runs of all tenants are asked for: %s", r.URL)
		}
		fmt.Fprint(w, answer)
	}))
	defer server.Close()
	c, err := Connect(&rest.Config{Host: server.URL}, "team", api.DefaultGroup)
	if err != nil {
		t.Fatal(err)
	}
	b := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "weather", UID: "1"}}
	finds := *c
	finds.BuildNamespace = "platform"
	for name, shown := range map[string]bool{"ours": true, "theirs": false, "copied": false} {
		b.Status.PipelineRunNamespace, b.Status.PipelineRunName = "platform", name
		run, _, err := c.LastRun(t.Context(), b)
		if err != nil || (run != nil) != shown {
			t.Errorf("%s: %v, %v", name, run, err)
		}
		b.Status.PipelineRunNamespace = "forged"
		if run, _, err := finds.LastRun(t.Context(), b); err != nil || run == nil || run.Name != "ours" {
			t.Errorf("where status says forged/%s: %v, %v", name, run, err)
		}
		if all, err := finds.Runs(t.Context(), b); err != nil || len(all) != 2 ||
			all[0].Name != "ours" || all[1].Name != "before" {
			t.Errorf("runs %v, %v", all, err)
		}
	}
	b.Status.PipelineRunNamespace = "closed"
	for _, want := range []string{"reading run ", "the platform's namespace closed",
		"--catalog-server or ARMATURE_CATALOG", "agentbuilds/log in namespace team",
		"right to read runs and logs of pods in closed"} {
		if _, err := c.Run(t.Context(), b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
}

// A log that something between its two ends cuts off is an error, and not the log.
func TestPieces(t *testing.T) {
	for sent, want := range map[string]string{
		`"b25lCg==" "" "dHdvCg==" null`: "one\ntwo\n",
		`null`:                          "",
		`"b25lCg==" ""`:                 "one\n" + "cut off",
		``:                              "cut off",
		`"b25lCg=="<html>`:              "one\n" + "cut off",
	} {
		got, err := io.ReadAll(&pieces{json: json.NewDecoder(strings.NewReader(sent))})
		text := string(got)
		if err != nil && !errors.Is(err, io.EOF) && strings.Contains(err.Error(), "cut off") {
			text += "cut off"
		}
		if text != want {
			t.Errorf("%s: %q, %v", sent, got, err)
		}
	}
}

// counting is an answer that never ends, and counts the bytes that were read of it.
type counting struct {
	io.Reader
	read int
}

func (c *counting) Read(into []byte) (int, error) {
	n, err := c.Reader.Read(into)
	c.read += n
	return n, err
}

// TestDoorIsBounded checks that a console's answer without an end takes a bounded amount of memory.
func TestDoorIsBounded(t *testing.T) {
	endless := func(begin string) *counting {
		return &counting{Reader: io.MultiReader(strings.NewReader(begin),
			io.LimitReader(letters{}, 4*maxAnswer))}
	}
	var answer *counting
	door := Door(func(context.Context, string, url.Values) (io.ReadCloser, error) {
		answer = endless(`{"name":"`)
		return io.NopCloser(answer), nil
	})
	if _, err := door.run(t.Context(), &api.AgentBuild{}); err == nil || answer.read > maxAnswer {
		t.Errorf("%d bytes of a run were read, with error %v", answer.read, err)
	}
	log := endless(`"YQ==" "`)
	text, err := io.ReadAll(newPieces(io.NopCloser(log)))
	if string(text) != "a" || err == nil || log.read > 2*maxAnswer {
		t.Errorf("%d bytes of a log were read, with error %v", log.read, err)
	}
}
