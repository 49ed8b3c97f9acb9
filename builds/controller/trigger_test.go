package controller_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/api/keys"
)

// triggered is a build of a repository's main branch that follows it.
func (w *world) triggered(name string, r *repository, t *api.SourceTrigger) *api.AgentBuild {
	w.Helper()
	keep := false
	return w.create(name, r.source("main"),
		func(b *api.AgentBuild) { b.Spec.CleanupAfterBuild, b.Spec.Trigger = &keep, t })
}

// runOfCommit waits for the n-th run, which builds a commit, and ends it.
func (w *world) runOfCommit(n int, commit string) {
	w.Helper()
	run := w.run(n)
	if got := run.Annotations[keys.AnnotationCommit]; got != commit {
		w.Errorf("run %d builds %s, want %s", n, got, commit)
	}
	w.succeed(run)
}

// A branch that moves starts a run, without anybody who asks for it, and one question is for
// all builds of a repository.
func TestPoll(t *testing.T) {
	w := newWorld(t)
	r := w.serveGit("")
	w.start()
	const n = 5
	for i := range n {
		w.triggered(fmt.Sprintf("b%d", i), r,
			&api.SourceTrigger{Poll: &metav1.Duration{Duration: 10 * time.Second}})
	}
	first := r.git("rev-parse", "main")
	w.run(n)
	for _, run := range w.runs() {
		w.succeed(&run)
	}
	for i := range n {
		if got := w.phase(fmt.Sprintf("b%d", i), api.PhaseSucceeded).
			Status.Source.Git.CommitSHA; got != first {
			t.Errorf("b%d is of %s", i, got)
		}
	}
	second := r.commit("second")
	before := r.asked.Load()
	w.run(2 * n)
	for _, run := range w.runs() {
		if got := run.Annotations[keys.AnnotationCommit]; got != first && got != second {
			t.Errorf("%s builds %s", run.Name, got)
		}
	}
	// Once for the branch, up to three times for what changed, and the controller of builds at
	// most once for each run.
	if asked := r.asked.Load() - before; asked > 4+n {
		t.Errorf("%d questions for %d builds", asked, n)
	}
	if b := w.build("b0"); b.Annotations["agent.kagenti.dev/rerun"] != second {
		t.Errorf("%v", b.Annotations)
	}
}

// A signed delivery starts a run at once, whatever it contains; one that is not signed, a
// commit that says so, other paths and a write-back start none.
func TestWebhook(t *testing.T) {
	w := newWorld(t)
	r := w.serveGit("")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	w.options.WebhookAddress = free.Addr().String()
	w.must(free.Close())
	w.must(w.Client.Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "hook"},
			StringData: map[string]string{"token": "a long secret",
				"previous": "an older secret"}}))
	w.start()
	b := w.triggered("weather", r,
		&api.SourceTrigger{Push: &api.PushTrigger{Paths: []string{"api/**"}},
			Poll:    &metav1.Duration{Duration: time.Hour},
			Webhook: &corev1.LocalObjectReference{Name: "hook"}})
	w.runOfCommit(1, r.git("rev-parse", "main"))
	w.phase("weather", api.PhaseSucceeded)

	deliver := func(path, secret, body string) int {
		t.Helper()
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(body))
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			"http://"+w.options.WebhookAddress+path, strings.NewReader(body))
		w.must(err)
		request.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
		request.Header.Set("X-GitHub-Event", "push")
		answer, err := http.DefaultClient.Do(request)
		w.must(err)
		_ = answer.Body.Close()
		return answer.StatusCode
	}
	path := "/hook/" + w.namespace + "/hook"
	w.eventually("the Secret is read", func() string {
		if status := deliver(path, "a long secret", "{}"); status != http.StatusAccepted {
			return fmt.Sprint(status)
		}
		return ""
	})
	for _, c := range []struct {
		path, secret, body string
		want               int
	}{
		{path, "an older secret", "not even JSON", http.StatusAccepted},
		{path, "another secret", "{}", http.StatusUnauthorized},
		{path, "", "{}", http.StatusUnauthorized},
		{"/hook/" + w.namespace + "/other", "a long secret", "{}", http.StatusUnauthorized},
		{"/hook/other/hook", "a long secret", "{}", http.StatusUnauthorized},
		{"/hook/" + w.namespace + "/../" + w.namespace + "/hook/x", "a long secret", "{}",
			http.StatusUnauthorized},
		{path, "a long secret", strings.Repeat("x", 3<<20+1), http.StatusRequestEntityTooLarge},
	} {
		if got := deliver(c.path, c.secret, c.body); got != c.want {
			t.Errorf("%s with %q: %d, want %d", c.path, c.secret, got, c.want)
		}
	}

	change := func(message string, files ...string) string {
		t.Helper()
		for _, file := range files {
			name := filepath.Join(r.dir, file)
			w.must(os.MkdirAll(filepath.Dir(name), 0o755))
			w.must(os.WriteFile(name, []byte(message), 0o600))
		}
		r.git("add", "-A")
		return r.commit(message)
	}
	change("Elsewhere", "docs/a.md")
	if got := deliver(path, "a long secret", "{}"); got != http.StatusAccepted {
		t.Fatal(got)
	}
	w.event(b, "PushSkipped", "is in the paths of spec.trigger")
	second := change("API", "api/a.go")
	began := time.Now()
	deliver(path, "a long secret", "{}")
	w.runOfCommit(2, second)
	t.Logf("%s from the delivery to the run", time.Since(began).Round(time.Millisecond))
	w.phase("weather", api.PhaseSucceeded)
	change("API, later [skip ci]", "api/a.go")
	deliver(path, "a long secret", "{}")
	w.event(b, "PushSkipped", "its message has [skip ci]")
	third := change("API again", "api/a.go")
	deliver(path, "a long secret", "{}")
	w.runOfCommit(3, third)
	w.phase("weather", api.PhaseSucceeded)
	change("Pin", "api/armature.lock")
	deliver(path, "a long secret", "{}")
	w.event(b, "PushSkipped", "it changes the lock alone")

	// A thousand at once are a few questions.
	before := r.asked.Load()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for range 50 {
				if got := deliver(path, "a long secret", "{}"); got != http.StatusAccepted &&
					got != http.StatusTooManyRequests {
					t.Errorf("%d", got)
				}
			}
		})
	}
	began = time.Now()
	all.Wait()
	took := time.Since(began)
	w.never("a run for nothing", func() string {
		if n := len(w.runs()); n != 3 {
			return fmt.Sprintf("%d runs", n)
		}
		return ""
	})
	asked := r.asked.Load() - before
	t.Logf("1,000 deliveries in %s asked the Git server %d times", took.Round(time.Millisecond), asked)
	if asked > 100 {
		t.Errorf("asked %d times", asked)
	}
}

// event waits for an event of a build.
func (w *world) event(b *api.AgentBuild, reason, says string) {
	w.Helper()
	w.eventually("event "+reason, func() string {
		var last string
		var list eventsv1.EventList
		w.must(w.List(w.Context(), &list, client.InNamespace(w.namespace)))
		for _, e := range list.Items {
			if e.Regarding.Name != b.Name {
				continue
			}
			if e.Reason == reason && strings.Contains(e.Note, says) {
				return ""
			}
			last += e.Reason + ": " + e.Note + "\n"
		}
		return last
	})
}
