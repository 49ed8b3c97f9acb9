package controller_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

// evilGit answers each question in one of the ways of hostile Git servers, by the
// first part of the path.
type evilGit struct {
	*httptest.Server
	sent atomic.Int64

	mu    sync.Mutex
	asked map[string]int
}

func newEvilGit(t testing.TB) *evilGit {
	e := &evilGit{asked: map[string]int{}}
	line := func(text string) string { return fmt.Sprintf("%04x%s", len(text)+4, text) }
	release := make(chan struct{})
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		way, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		e.mu.Lock()
		e.asked[way]++
		e.mu.Unlock()
		switch way {
		case "tarpit":
			select {
			case <-release:
			case <-r.Context().Done():
			}
		case "metadata":
			http.Redirect(w, r, "http://169.254.169.254/latest/info/refs?service=git-upload-pack",
				http.StatusFound)
		case "error":
			w.WriteHeader(http.StatusInternalServerError)
			e.endless(w, "", func(int) string { return strings.Repeat("x", 64<<10) })
		case "references":
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			hash := strings.Repeat("0123456789", 4)
			e.endless(w,
				line("# service=git-upload-pack\n")+"0000"+
					line(hash+" refs/heads/branch\x00multi_ack\n"), func(n int) string {
					var text strings.Builder
					for i := range 512 {
						text.WriteString(line(fmt.Sprintf("%s refs/heads/%s-%d\n", hash,
							strings.Repeat("b", 20), n*512+i)))
					}
					return text.String()
				})
		}
	}))
	t.Cleanup(e.Close)
	t.Cleanup(func() { close(release) })
	return e
}

// endless writes until nobody reads, or so much that a reader without a bound would show.
func (e *evilGit) endless(w http.ResponseWriter, first string, text func(n int) string) {
	_, err := w.Write([]byte(first))
	for n := 0; err == nil && e.sent.Load() < 4<<30; n++ {
		var written int
		written, err = w.Write([]byte(text(n)))
		e.sent.Add(int64(written))
	}
}

func (e *evilGit) askedFor(way string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.asked[way]
}

// A Git server that never answers, answers without end or leads to a metadata address
// delays the builds of its namespace alone, and takes no memory: the controller's process
// stays below 256 MiB at its peak. Builds of another namespace start meanwhile.
func TestHostileGitServersTakeNoMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute; run it without -short")
	}
	if runtime.GOOS != "linux" {
		t.Skip("the peak of a process's memory is read from Linux's /proc")
	}
	const limitMiB, many, met = 256, 10, 8
	w := newWorld(t)
	r, evil := w.serveGit(""), newEvilGit(t)
	file := buildProgram(t)
	other := w.namespace + "-other"
	w.must(w.Client.Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other}}))
	cmd := w.spawn(file, "--watch-namespaces", other, "--git-allow-network", "127.0.0.0/8")
	defer func() { kill(cmd) }()
	hostile := func(ways ...string) {
		t.Helper()
		w.inParallel(users, many*len(ways), func(i int) error {
			way := ways[i%len(ways)]
			return w.Client.Create(w.Context(),
				w.newBuild(fmt.Sprintf("%s%d", way, i), func(b *api.AgentBuild) {
					b.Spec.Source.SourceRepository, b.Spec.Source.SourceRevision =
						fmt.Sprintf("%s/%s/%d", evil.URL, way, i), "main"
				}))
		})
		for _, way := range ways {
			w.eventually("the server is asked for "+way, func() string {
				if evil.askedFor(way) == 0 {
					return "not yet"
				}
				return ""
			})
		}
	}
	var took []time.Duration
	quick := func() {
		t.Helper()
		r.commit("next") // so that no earlier answer is the right one
		name := fmt.Sprintf("quick%d", len(took))
		b := w.newBuild(name, r.source("main"))
		b.Namespace = other
		began := time.Now()
		w.must(w.Client.Create(t.Context(), b))
		w.eventually(name+" runs", func() string {
			var list tektonv1.PipelineRunList
			w.must(w.List(t.Context(), &list, client.InNamespace(other)))
			if len(list.Items) != len(took)+1 {
				return fmt.Sprintf("%d runs", len(list.Items))
			}
			return ""
		})
		took = append(took, time.Since(began).Round(time.Millisecond))
	}
	hostile("error", "references", "metadata")
	for range 3 {
		quick()
	}
	w.eventually("each way was met often enough", func() string {
		references, metadata := 0, 0
		var list api.AgentBuildList
		w.must(w.List(t.Context(), &list, client.InNamespace(w.namespace)))
		for _, b := range list.Items {
			message := condition(&b, api.ConditionReady).Message
			if strings.Contains(message, "too many references: the answer has more than 8 MiB") {
				references++
			}
			if strings.Contains(message, "has an address that builds may not ask") {
				metadata++
			}
		}
		if errors := evil.askedFor("error"); references < met || metadata < met || errors < met {
			return fmt.Sprintf(
				"%d endless errors, %d answers refused for their length, %d for where they lead",
				errors, references, metadata)
		}
		return ""
	})
	hostile("tarpit")
	for range 3 {
		quick()
	}
	peak := statusMiB(t, cmd.Process.Pid, "VmHWM:")
	t.Logf("peak of the controller's memory %.0f MiB, of %d MiB that were sent; builds of "+
		"another namespace began after %v", peak, evil.sent.Load()>>20, took)
	if peak > limitMiB {
		t.Errorf("the controller took %.0f MiB, and at most %d are allowed", peak, limitMiB)
	}
	if n := len(w.runs()); n != 0 {
		t.Errorf("%d builds of the hostile server run", n)
	}
}
