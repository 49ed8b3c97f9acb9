package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/armature-dev/armature/builds/api"
)

func reader(t *testing.T, answer http.HandlerFunc) *Reader {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	r, err := NewReader(&rest.Config{Host: server.URL}, api.DefaultGroup)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A panic of what asks is the error of all who wait for the answer, and ends no process.
func TestSharePanics(t *testing.T) {
	r := reader(t, http.NotFound)
	for range 2 {
		if _, err := Share(t.Context(), r, "a", moment, func(context.Context) (int, error) {
			panic("a fault of ours")
		}); err == nil || !strings.Contains(err.Error(), "a fault of ours") {
			t.Errorf("the error is %v", err)
		}
	}
	for i := range 2 * maxAsking { // a place of each is free again
		got, err := Share(t.Context(), r, fmt.Sprint("b", i), moment,
			func(context.Context) (int, error) { return i, nil })
		if err != nil || got != i {
			t.Errorf("%d: %v", got, err)
		}
	}
}

// The history of a build whose runs are large is read a few runs at a time.
func TestHistoryIsReadInPages(t *testing.T) {
	const there, size = 60, 1 << 20
	b := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: "team1", Name: "weather", UID: "b"}}
	filling, most := strings.Repeat("x", size), 0
	r := reader(t, func(w http.ResponseWriter, q *http.Request) {
		from, _ := strconv.Atoi(q.URL.Query().Get("continue"))
		limit, err := strconv.Atoi(q.URL.Query().Get("limit"))
		if err != nil || limit < 1 {
			limit = there
		}
		to := min(from+limit, there)
		most = max(most, to-from)
		list := map[string]any{"apiVersion": "tekton.dev/v1", "kind": "PipelineRunList"}
		var items []any
		for i := from; i < to; i++ {
			items = append(items,
				map[string]any{"metadata": map[string]any{"namespace": "team1",
					"name": fmt.Sprint("weather-", i), "uid": fmt.Sprint(i),
					"ownerReferences": []any{
						map[string]any{"apiVersion": api.GroupVersion(api.DefaultGroup).String(),
							"kind": api.Kind, "name": "weather", "uid": "b", "controller": true}}},
					"status": map[string]any{"filling": filling}})
		}
		list["items"] = items
		if to < there {
			list["metadata"] = map[string]any{"continue": strconv.Itoa(to)}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
	})
	found, err := r.Runs(t.Context(), b)
	if err != nil || len(found) != maxRuns {
		t.Errorf("%d runs: %v", len(found), err)
	}
	if most > runsPage {
		t.Errorf("%d runs of %d MiB are read at once", most, size>>20)
	}
}
