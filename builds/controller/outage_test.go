package controller_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/armature-dev/armature/builds/api"
)

// faulty answers creates of runs like a broken API server while it is on.
type faulty struct {
	on   atomic.Bool
	lost atomic.Bool // the create happens, but its answer gets lost
	next http.RoundTripper
}

func (f *faulty) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPost && strings.Contains(r.URL.Path, "/pipelineruns") {
		if f.on.Load() {
			body := `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"etcdserver: request timed out","reason":"InternalError","code":500}`
			return &http.Response{StatusCode: 500, Status: "500",
				Header: http.Header{"Content-Type": {"application/json"}},
				Body:   io.NopCloser(bytes.NewBufferString(body)), Request: r}, nil
		}
		if f.lost.CompareAndSwap(true, false) {
			if response, err := f.next.RoundTrip(r); err == nil {
				_ = response.Body.Close()
			}
			return nil, errors.New("read tcp: connection reset by peer")
		}
	}
	return f.next.RoundTrip(r)
}

func (w *world) faulty() *faulty {
	f := &faulty{}
	w.config.Wrap(func(next http.RoundTripper) http.RoundTripper { f.next = next; return f })
	return f
}

// A server error is tried again, and shows as Retrying, not as a failed build.
func TestServerError(t *testing.T) {
	w := newWorld(t)
	f := w.faulty()
	f.on.Store(true)
	w.start()
	w.create("weather")
	w.eventually("Retrying shows", func() string {
		b := w.build("weather")
		if c := condition(b, api.ConditionReady); c.Reason != api.ReasonRetrying ||
			!strings.Contains(c.Message, "etcdserver: request timed out") ||
			b.Status.Phase != api.PhasePending {
			return c.Reason + " " + c.Message
		}
		return ""
	})
	f.on.Store(false)
	w.run(1)
	b := w.phase("weather", api.PhaseBuilding)
	if c := condition(b, api.ConditionReady); c.Reason != api.ReasonRunning {
		t.Errorf("condition: %+v", c)
	}
}

// A template that cannot be read for now shows as Retrying, too.
func TestServerErrorOfTemplate(t *testing.T) {
	w := newWorld(t)
	w.own("pipeline-template-own", "template.yaml", "steps: [{name: only, configMap: own-step}]")
	w.own("own-step", "task-spec.yaml", "steps: [{name: say, image: busybox, command: [echo]}]")
	var up atomic.Bool
	w.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/configmaps/own-step") && !up.Load() {
				return nil, errors.New("dial tcp: connection refused")
			}
			return next.RoundTrip(r)
		})
	})
	w.start()
	w.create("weather", func(b *api.AgentBuild) { b.Spec.Mode = "own" })
	w.eventually("Retrying shows", func() string {
		b := w.build("weather")
		if c := condition(b, api.ConditionReady); c.Reason != api.ReasonRetrying ||
			!strings.Contains(c.Message, "own-step: ") || b.Status.Phase != api.PhasePending {
			return c.Reason + " " + c.Message
		}
		return ""
	})
	up.Store(true)
	w.run(1)
	w.phase("weather", api.PhaseBuilding)
}

// A create whose answer got lost is not done twice.
func TestLostAnswer(t *testing.T) {
	w := newWorld(t)
	f := w.faulty()
	f.lost.Store(true)
	w.start()
	w.create("weather")
	w.phase("weather", api.PhaseBuilding)
	w.never("a second run", func() string {
		if len(w.runs()) != 1 {
			return "there is one"
		}
		return ""
	})
}
