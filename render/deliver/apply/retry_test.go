package apply_test

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/render/deliver/apply"
)

// through connects by a transport of its own.
func (w *world) through(answer func(r *http.Request,
	next http.RoundTripper) (*http.Response, error)) *apply.Cluster {
	w.Helper()
	config := rest.CopyConfig(shared.Get(w.TB).Admin.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			return answer(r, next)
		})
	})
	c, err := apply.Connect(config)
	w.must(err)
	return c
}

func says(r *http.Request, code int, reason string) *http.Response {
	text := `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"in a moment","reason":"` + reason + `"}`
	return &http.Response{StatusCode: code, Status: http.StatusText(code),
		Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
		Body: io.NopCloser(strings.NewReader(text))}
}

// Each request fails at first, in one of the ways in which they do while an API
// server restarts: it is not there, it breaks off before or after it did what was
// asked, or it says to come again. All of the package arrives, once.
func TestRetry(t *testing.T) {
	w := newWorld(t)
	var lock sync.Mutex
	times, methods, failures := make(map[string]int), make(map[string]int), 0
	// fail says how the request is to fail; -1 for not at all.
	fail := func(r *http.Request) int {
		lock.Lock()
		defer lock.Unlock()
		key := r.Method + " " + r.URL.String()
		if times[key]++; times[key]%2 == 0 || len(times) == 1 {
			return -1
		}
		failures++
		methods[r.Method]++
		return failures % 6
	}
	c := w.through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		switch fail(r) {
		case -1:
			return next.RoundTrip(r)
		case 0:
			return nil, syscall.ECONNREFUSED
		case 1:
			return nil, syscall.ECONNRESET
		case 2: // it is done, but the answer is lost
			answer, err := next.RoundTrip(r)
			if err == nil {
				answer.Body.Close()
			}
			return nil, io.ErrUnexpectedEOF
		case 3:
			return says(r, http.StatusServiceUnavailable, "ServiceUnavailable"), nil
		case 4:
			answer := says(r, http.StatusTooManyRequests, "TooManyRequests")
			answer.Header.Set("Retry-After", "1")
			return answer, nil
		}
		return says(r, http.StatusInternalServerError, "InternalError"), nil
	})
	for _, name := range []string{"a", "b"} {
		w.expire()
		if plan, err := c.Apply(t.Context(), w.Package, w.read(version(name)...),
			apply.Options{}); err != nil {
			t.Fatalf("%v\n%s", err, show(plan))
		}
		if differs := w.isVersion(name); differs != "" {
			t.Fatal(differs)
		}
	}
	w.expire()
	if _, err := c.Delete(t.Context(), w.Package, apply.Options{}); err != nil {
		t.Fatal(err)
	}
	if w.get("v1", "ConfigMap", "armature-weather") != nil ||
		w.get("v1", "Secret", "common0") != nil {
		t.Error("something is left")
	}
	for _, m := range []string{"GET", "PATCH", "PUT", "POST", "DELETE"} {
		if methods[m] == 0 {
			t.Errorf("no %s failed: %v", m, methods)
		}
	}
}

// The API server is killed in the middle of an apply, and starts again. The apply
// goes on.
func TestAPIServerRestarts(t *testing.T) {
	shared.Get(t)
	plane := controlplane.Start(t)
	config := rest.CopyConfig(plane.Admin.Config)
	// While nobody listens nobody dials: a loopback port that is dialled all the time
	// may connect to itself, and then the API server cannot have it back.
	var down atomic.Bool
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if down.Load() {
				return nil, syscall.ECONNREFUSED
			}
			return next.RoundTrip(r)
		})
	})
	c, err := apply.Connect(config)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := apply.Read("app.yaml", []byte(strings.Join(version("a"), "\n---\n")))
	if err != nil {
		t.Fatal(err)
	}
	p := apply.Package{Namespace: "default", Name: "weather"}
	killed := false
	var lock sync.Mutex
	var starting sync.WaitGroup
	opt := apply.Options{Tell: func(s string) {
		lock.Lock()
		defer lock.Unlock()
		if !killed && strings.HasPrefix(s, "applying configuration: ") {
			killed = true
			down.Store(true)
			if err := plane.KillAPIServer(); err != nil {
				t.Error(err)
			}
			starting.Go(func() {
				if err := plane.StartAPIServer(); err != nil {
					t.Error(err)
				}
				down.Store(false)
			})
		}
	}}
	plan, err := c.Apply(t.Context(), p, objects, opt)
	starting.Wait()
	if err != nil || !killed {
		t.Fatalf("killed %v: %v\n%s", killed, err, show(plan))
	}
	v, err := c.Inventory(t.Context(), p)
	if err != nil || !v.Complete || len(v.Entries) != len(objects) {
		t.Errorf("inventory %+v %v", v, err)
	}
}

// An API server that answers nothing but failures ends an apply with a line for
// each object, which says the reason and no addresses.
func TestGivingUp(t *testing.T) {
	w := newWorld(t)
	c := w.through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if r.Method == http.MethodPatch && r.URL.Query().Get("dryRun") == "" {
			return says(r, http.StatusInternalServerError, "InternalError"), nil
		}
		return next.RoundTrip(r)
	})
	began := time.Now()
	_, err := c.Apply(t.Context(), w.Package, w.read(configMap("one", "a"), configMap("two", "a")),
		apply.Options{})
	all, ok := err.(interface{ WrappedErrors() []error })
	if !ok || len(all.WrappedErrors()) != 2 {
		t.Fatalf("after %s: %v", time.Since(began), err)
	}
	for _, one := range all.WrappedErrors() {
		if text := one.Error(); !strings.HasSuffix(text, ": in a moment") ||
			strings.Contains(text, "http") || strings.Contains(text, "\n") {
			t.Errorf("error %q", text)
		}
	}
	nobody, err := apply.Connect(&rest.Config{Host: "http://127.0.0.1:1"})
	w.must(err)
	if _, err := nobody.Plan(t.Context(), w.Package, w.read(configMap("one", "a")),
		apply.Options{}); err == nil || !strings.Contains(err.Error(), "refused") ||
		!strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("error %v", err)
	}
}
