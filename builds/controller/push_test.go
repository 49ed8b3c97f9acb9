package controller_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
)

// A login that may not push is found before a run starts, and the build starts once it may. A
// registry that does not answer, or that answers anything else, holds nothing.
func TestPushIsAskedFirst(t *testing.T) {
	password := atomic.Pointer[string]{}
	right := "right"
	password.Store(&right)
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	private := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, given, _ := r.BasicAuth(); given != *password.Load() {
			w.Header().Set("WWW-Authenticate", `Basic realm="private"`)
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = fmt.Fprint(w,
				`{"errors": [{"code": "UNAUTHORIZED", "message": "the password is hunter2"}]}`)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	defer private.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
	}))
	defer broken.Close()
	host := strings.TrimPrefix(private.URL, "http://")

	w := newWorld(t)
	w.options.Settings.PlainHTTPHosts = []string{"127.0.0.1"}
	w.start()
	login, err := json.Marshal(
		map[string]any{
			"auths": map[string]any{host: map[string]string{"username": "team", "password": "right"}}})
	w.must(err)
	other, err := json.Marshal(
		map[string]any{
			"auths": map[string]any{host: map[string]string{"username": "team", "password": "wrong"}}})
	w.must(err)
	w.login("right", compose.PurposeRegistry, map[string]string{"config.json": string(login)})
	w.login("wrong", compose.PurposeRegistry, map[string]string{"config.json": string(other)})
	build := func(name, registry, login string) {
		w.create(name, func(b *api.AgentBuild) {
			b.Spec.BuildOutput.ImageRegistry = registry + "/team"
			b.Spec.BuildOutput.ImageRepoCredentials = &corev1.LocalObjectReference{Name: login}
		})
	}
	began := time.Now()
	build("refused", host, "wrong")
	got := w.phase("refused", api.PhaseFailed)
	t.Logf("known after %s", time.Since(began).Round(time.Millisecond))
	if c := condition(got, api.ConditionSucceeded); c.Reason != api.ReasonRegistryUnauthorized ||
		!strings.Contains(c.Message,
			"answers 401 to a push to "+host+"/team/refused with the login of Secret wrong") ||
		strings.Contains(c.Message, "hunter2") || got.Status.PipelineRunName != "" {
		t.Errorf("condition %+v, run %q", c, got.Status.PipelineRunName)
	}
	build("right", host, "right")
	build("silent", silent.Addr().String(), "right")
	build("broken", strings.TrimPrefix(broken.URL, "http://"), "right")
	build("unknown", "registry.invalid", "right")
	w.eventually("the other builds have runs", func() string {
		if n := len(w.runs()); n != 4 {
			return fmt.Sprintf("%d runs", n)
		}
		return ""
	})
	wrong := "wrong"
	password.Store(&wrong) // the login of the Secret may push now
	w.eventually("the refused build has a run", func() string {
		if n := len(w.runs()); n != 5 {
			return fmt.Sprintf("%d runs", n)
		}
		return ""
	})
}
