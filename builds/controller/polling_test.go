package controller_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
)

const (
	polledRepositories, buildsOfEach = 100, 10
	pollInterval                     = 20 * time.Second
	intervals                        = 3
)

// measurePolling counts what a Git server is asked when nothing changes: 1,000 builds of 100
// repositories, each with two branches that builds follow.
func measurePolling(b *testing.B) {
	w := newWorld(b)
	r := w.serveGit("")
	r.git("branch", "other")
	root := b.TempDir()
	for i := range polledRepositories {
		w.must(
			exec.Command("git", "clone", "-q", "--bare", r.dir,
				filepath.Join(root, fmt.Sprintf("r%d.git", i))).Run())
	}
	path, err := exec.LookPath("git")
	w.must(err)
	var asked atomic.Int64
	handler := &cgi.Handler{Path: path, Args: []string{"http-backend"},
		Env: []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1"}}
	server := httptest.NewServer(
		http.HandlerFunc(func(rw http.ResponseWriter, request *http.Request) {
			if strings.HasSuffix(request.URL.Path, "/info/refs") {
				asked.Add(1)
			}
			handler.ServeHTTP(rw, request)
		}))
	b.Cleanup(server.Close)
	w.start()
	const n = polledRepositories * buildsOfEach
	w.inParallel(users, n, func(i int) error {
		return w.Client.Create(w.Context(),
			w.newBuild(fmt.Sprintf("b%04d", i), kept, func(build *api.AgentBuild) {
				build.Spec.Source.SourceRepository = fmt.Sprintf("%s/r%d.git", server.URL,
					i%polledRepositories)
				build.Spec.Source.SourceRevision = []string{"main", "other"}[i%2]
				build.Spec.Trigger = &api.SourceTrigger{
					Poll: &metav1.Duration{Duration: pollInterval}}
			}))
	})
	w.await("all runs", 5*time.Minute, func() bool { return w.count() == n })
	time.Sleep(pollInterval) // until the first questions are over
	before, cpu := asked.Load(), w.cpuSeconds()
	time.Sleep(intervals * pollInterval)
	each := float64(asked.Load()-before) / polledRepositories / intervals
	report(fmt.Sprintf("%d builds of %d repositories: questions of each in an interval", n,
		polledRepositories), fmt.Sprintf("%.2f", each), "1")
	report("  processor seconds of controller, API server and Git in an interval",
		fmt.Sprintf("%.2f s", (w.cpuSeconds()-cpu)/intervals), "")
}

// measureWebhook takes the time from a delivery to the run that it causes.
func measureWebhook(b *testing.B) {
	w := newWorld(b)
	r := w.serveGit("")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	w.options.WebhookAddress = free.Addr().String()
	w.must(free.Close())
	w.must(w.Client.Create(w.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "hook"},
			StringData: map[string]string{"token": "a long secret"}}))
	w.start()
	w.triggered("weather", r, &api.SourceTrigger{Poll: &metav1.Duration{Duration: time.Hour},
		Webhook: &corev1.LocalObjectReference{Name: "hook"}})
	w.succeed(w.run(1))
	w.phase("weather", api.PhaseSucceeded)
	mac := hmac.New(sha256.New, []byte("a long secret"))
	mac.Write([]byte("{}"))
	deliver := func() int {
		request, err := http.NewRequestWithContext(w.Context(), http.MethodPost,
			"http://"+w.options.WebhookAddress+"/hook/"+w.namespace+"/hook", strings.NewReader("{}"))
		w.must(err)
		request.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
		request.Header.Set("X-GitHub-Event", "push")
		answer, err := http.DefaultClient.Do(request)
		w.must(err)
		_ = answer.Body.Close()
		return answer.StatusCode
	}
	w.eventually("the Secret is read", func() string {
		if status := deliver(); status != http.StatusAccepted {
			return fmt.Sprint(status)
		}
		return ""
	})
	var took []time.Duration
	for i := range 2*rounds + 1 {
		r.commit(fmt.Sprint("commit ", i))
		began := time.Now()
		deliver()
		w.await("a run", time.Minute, func() bool { return w.count() == i+2 })
		took = append(took, time.Since(began))
		w.succeed(w.run(i + 2))
		w.phase("weather", api.PhaseSucceeded)
	}
	slices.Sort(took)
	report(fmt.Sprintf("from a webhook to the created run, median of %d", len(took)),
		took[rounds].Round(time.Millisecond).String(), "under 1 s")
}
