package controller_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/catalog/api/kagent"
	"github.com/armature-dev/armature/catalog/controller"
	"github.com/armature-dev/armature/catalog/serve"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/catalog/store/database"
	"github.com/armature-dev/armature/e2e/catalog/peer"
	"github.com/armature-dev/armature/e2e/controlplane"
)

// The catalog does all its work under the ServiceAccount that `armature install
// --catalog` makes, serving included, and is never forbidden anything.
func TestShippedRBAC(t *testing.T) {
	for _, mode := range []string{"cluster", "namespaced"} {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t)
			plane := controlplane.Start(t)
			w.must(plane.InstallCRDs("testdata"))
			scheme, err := controller.Scheme()
			w.must(err)
			w.Client, err = client.New(plane.Admin.Config, client.Options{Scheme: scheme})
			w.must(err)
			w.must(w.Create(t.Context(),
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}))
			args := []string{"run", "../../cmd/armature", "install", "--catalog", "--scope", mode}
			if mode == "namespaced" {
				args = append(args, "--watch-namespaces", w.namespace)
			}
			w.applyAll(args)

			account, err := plane.ServiceAccount(t.Context(), "armature-system", "armature-catalog")
			w.must(err)
			forbidden := &controlplane.Forbidden{}
			w.config = account.Config
			w.config.Wrap(forbidden.Wrap)
			w.start()
			guard, err := serve.Kubernetes(w.config)
			w.must(err)
			handler := (&serve.Server{Store: w.store, Access: guard}).Handler()

			w.must(w.Create(t.Context(),
				&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "login"},
					StringData: map[string]string{"header": "Bearer s3cret-token"}}))
			w.network.serve(t, "office.example:80",
				peer.Streamable(peer.Server("Office", 0, peer.Many("office", 3)...)))
			w.remote("office", func(s *kagent.RemoteMCPServer) {
				s.Spec.HeadersFrom = []kagent.ValueRef{{Name: "Authorization",
					ValueFrom: kagent.ValueSource{Type: "Secret", Name: "login", Key: "header"}}}
			})
			w.pod("weather", "weather-1", weather("1"))
			w.card("weather")
			w.card("lost", func(c *api.AgentCard) {
				c.Spec.Selector, c.Spec.TargetRef =
					nil, &api.TargetRef{Kind: "StatefulSet", Name: "nobody"}
			})
			w.eventually("everything is in status", func() string {
				if got := w.accepted("office"); got != "True: 3 tools" {
					return got
				}
				if got := fmt.Sprint(w.status("weather").Phase, ", ",
					w.status("lost").Message); got != "Active, StatefulSet nobody is missing" {
					return got
				}
				return ""
			})
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
				"/api/v1/entries", nil)
			w.must(err)
			own, err := plane.ServiceAccount(t.Context(), w.namespace, "caller")
			w.must(err)
			request.Header.Set("Authorization", "Bearer "+own.Config.BearerToken)
			answer := &recorder{header: http.Header{}}
			handler.ServeHTTP(answer, request)
			if answer.status != http.StatusOK || strings.Contains(answer.body.String(), "weather") {
				t.Errorf("a caller without rights is answered %d %s", answer.status, answer.body.String())
			}
			time.Sleep(300 * time.Millisecond) // the last events leave
			if got := forbidden.All(); len(got) > 0 {
				t.Errorf("forbidden: %s", strings.Join(got, "\n"))
			}
		})
	}
}

type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }

// applyAll makes every object that a command prints.
func (w *world) applyAll(command []string) {
	w.Helper()
	cmd := exec.CommandContext(w.Context(), "go", command...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	w.must(err)
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(out), 4096)
	for {
		u := &unstructured.Unstructured{}
		if err := decoder.Decode(u); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			w.Fatal(err)
		}
		w.eventually("applying "+u.GetKind()+" "+u.GetName(), func() string {
			if err := w.Create(w.Context(), u.DeepCopy()); err != nil &&
				!strings.Contains(err.Error(), "already exists") {
				return err.Error()
			}
			return ""
		})
	}
}

// After a whole run with a server that sends back what it was sent, no value of
// a Secret is in any status, event, byte of the store, line of the log or page.
func TestNoSecretAnywhere(t *testing.T) {
	w := newWorld(t)
	const secret = "s3cret-grep-me"
	var log controlplane.Output
	echo := func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("X-Echo", r.Header.Get("Authorization"))
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(rw, `{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":%q}}`,
			r.Header.Get("Authorization"))
	}
	w.network.serve(t, "teapot.example:80", http.HandlerFunc(echo))
	w.network.serve(t, "error.example:80",
		http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(rw, `{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":%q}}`,
				r.Header.Get("Authorization"))
		}))
	w.must(w.Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "login"},
			StringData: map[string]string{"header": "Bearer " + secret}}))
	for _, name := range []string{"teapot", "error", "refused"} {
		w.remote(name, func(s *kagent.RemoteMCPServer) {
			s.Spec.Timeout = metav1.Duration{Duration: 3 * time.Second}
			s.Spec.HeadersFrom = []kagent.ValueRef{{Name: "Authorization",
				ValueFrom: kagent.ValueSource{Type: "Secret", Name: "login", Key: "header"}}}
		})
	}
	file := filepath.Join(t.TempDir(), "grep.db")
	s, err := database.Open(t.Context(), file)
	w.must(err)
	w.must(w.store.Close())
	w.store = s
	w.logTo = logr.New(sink{&log})
	stop := w.start()
	for _, name := range []string{"teapot", "error", "refused"} {
		w.eventually(name+" fails", func() string {
			if got := w.accepted(name); !strings.HasPrefix(got, "False: ") {
				return "status: " + got
			}
			return ""
		})
	}
	stop()
	var servers kagent.RemoteMCPServerList
	w.must(w.List(t.Context(), &servers, client.InNamespace(w.namespace)))
	events := &unstructured.UnstructuredList{}
	events.SetAPIVersion("events.k8s.io/v1")
	events.SetKind("EventList")
	w.must(w.List(t.Context(), events, client.InNamespace(w.namespace)))
	entries, err := s.List(t.Context(), store.Query{Scope: store.Everything()})
	w.must(err)
	texts := map[string]string{"status": fmt.Sprintf("%+v", servers), "events": fmt.Sprint(events),
		"log": log.String(), "entries": fmt.Sprintf("%+v", entries)}
	for _, suffix := range []string{"", "-wal"} {
		data, err := os.ReadFile(file + suffix)
		w.must(err)
		texts["store"+suffix] = string(data)
	}
	if len(entries) != 3 || len(events.Items) == 0 {
		t.Errorf("%d entries and %d events: nothing was tried", len(entries), len(events.Items))
	}
	for where, text := range texts {
		if strings.Contains(text, secret) {
			t.Errorf("the Secret's value is in %s", where)
		}
	}
}

// sink keeps what is logged, at every level.
type sink struct{ to io.Writer }

func (sink) Init(logr.RuntimeInfo)                  {}
func (sink) Enabled(int) bool                       { return true }
func (s sink) Info(_ int, m string, kv ...any)      { fmt.Fprintln(s.to, m, kv) }
func (s sink) Error(err error, m string, kv ...any) { fmt.Fprintln(s.to, err, m, kv) }
func (s sink) WithValues(...any) logr.LogSink       { return s }
func (s sink) WithName(string) logr.LogSink         { return s }
