package controller_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/armature-dev/armature/catalog/ask"
	"github.com/armature-dev/armature/catalog/controller"
	"github.com/armature-dev/armature/catalog/store/database"
	"github.com/armature-dev/armature/e2e/catalog/peer"
	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/render/answers"
	"github.com/armature-dev/armature/render/process"
)

// asCatalog makes the test binary a catalog controller, whose memory a test measures.
const asCatalog = "ARMATURE_TEST_CATALOG"

// settings are those of such a controller.
type settings struct {
	Namespaces []string
	Store      string
	At         map[string]string // of its network
	Elects     bool
}

func runAsCatalog(text string) error {
	ctrl.SetLogger(logr.Discard())
	var p settings
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	s, err := database.Open(context.Background(), p.Store)
	if err != nil {
		return err
	}
	return controller.Run(context.Background(), cfg, controller.Options{
		Options: process.Options{Namespace: p.Namespaces[0], Namespaces: p.Namespaces,
			LeaderElection: p.Elects, MetricsAddress: "0", HealthAddress: "0", Log: logr.Discard()},
		Store: s, Dial: (&network{at: p.At}).dial,
	})
}

// hostile answers of tools, made of as many of a unit as times says.
func hostile(times func(unit string) int) map[string]string {
	tools := func(text string) string {
		return `{"jsonrpc":"2.0","id":ID,"result":{"tools":[` + text + `]}}`
	}
	fill := func(unit string) string {
		return strings.TrimRight(strings.Repeat(unit, times(unit)), ",")
	}
	schema := func(text string) string {
		return tools(`{"name":"a","inputSchema":{"type":"object","x":` + text + `}}`)
	}
	message := `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":[` +
		strings.Repeat("{},", 300) + `{}]}}` + "\n"
	return map[string]string{
		"empty-tools":   tools(fill(`{},`)),
		"empty-objects": schema("[" + fill(`{},`) + "]"),
		"small-objects": schema("[" + fill(`{"a":0},`) + "]"),
		"empty-lists":   schema("[" + fill(`[],`) + "]"),
		"numbers":       schema("[" + fill(`0,`) + "]"),
		"strings":       schema("[" + fill(`"",`) + "]"),
		"nested": schema("[" + fill(strings.Repeat("[", 50)+strings.Repeat("]", 50)+",") +
			"]"),
		"deeply-nested": schema(strings.Repeat("[", 5000) + strings.Repeat("]", 5000)),
		"text": tools(`{"name":"a","inputSchema":{"type":"object"},"description":"` +
			fill(`a`) + `"}`),
		"error": `{"jsonrpc":"2.0","id":ID,"error":{"code":1,"message":"","data":[` +
			fill(`{},`) + `]}}`,
		"notifications": fill(message) + "\n" +
			tools(`{"name":"a","inputSchema":{"type":"object"}}`),
		"text-in-quotes": schema(`["` + fill(`\"{},`) + `"]`),
		"broken-strings": schema(`["` + "\r" + `",` + fill(`{},`) + `]`),
	}
}

var requestID = regexp.MustCompile(`"id":\s*([0-9]+)`)

// hostileServer initializes as any, and answers the list of tools with text; as events if sse.
func hostileServer(text string, sse bool) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		id := requestID.FindSubmatch(body)
		if id == nil {
			rw.WriteHeader(http.StatusAccepted)
			return
		}
		answer := []byte(`{"jsonrpc":"2.0","id":` + string(id[1]) +
			`,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}}`)
		if bytes.Contains(body, []byte("tools/list")) {
			answer = []byte(strings.Replace(text, `"id":ID`, `"id":`+string(id[1]), 1))
		}
		if !sse {
			rw.Header().Set("Content-Type", "application/json")
			rw.Write(answer)
			return
		}
		rw.Header().Set("Content-Type", "text/event-stream")
		for line := range bytes.Lines(answer) {
			fmt.Fprintf(rw, "data: %s\n\n", bytes.TrimSpace(line))
		}
	})
}

// Answers of agents and servers keep the catalog below half of its memory limit, whatever they are
// and however many arrive at once. The figures:
//
//	go test -run TestMemoryOfHostileAnswers -v ./catalog/controller
func TestMemoryOfHostileAnswers(t *testing.T) {
	limit := controlplane.MemoryLimit(t, "../../templates/install/catalog/base/deployment.yaml")
	beyond := func(unit string) int { return (15 << 20) / len(unit) }
	within := func(unit string) int {
		return int((ask.MaxDecoding - 256<<10) / answers.Cost([]byte(unit)))
	}
	serve := func(w *world, name, text string) (names []string) {
		for _, kind := range []string{"events", "json"} {
			if kind == "events" || name != "notifications" { // a JSON document has one message
				w.network.serve(t, name+"-"+kind+".example:80",
					hostileServer(text, kind == "events"))
				names = append(names, name+"-"+kind)
			}
		}
		return names
	}
	agents := func(w *world, times func(string) int) {
		card := []byte(`{"name":"a","x":[` + strings.Repeat("{},", min(times("{},"), 349_000)) + `{}]}`)
		for i := range 16 {
			w.pod("agents", fmt.Sprintf("agent-%d", i),
				http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { rw.Write(card) }))
		}
		w.card("agents")
	}
	all := map[string]func(w, other *world) []string{
		"16 cards of empty objects": func(w, _ *world) []string { agents(w, beyond); return nil },
		"16 cards within limits":    func(w, _ *world) []string { agents(w, within); return nil },
	}
	for what, times := range map[string]func(string) int{"beyond": beyond, "within": within} {
		for name, text := range hostile(times) {
			all["one answer of "+name+" "+what+" limits"] = func(w, _ *world) []string {
				names := serve(w, name, text)[:1]
				w.remote(names[0])
				return names
			}
		}
	}
	for what, times := range map[string]func(string) int{"beyond": beyond, "within": within} {
		all["all at once "+what+" limits"] = func(w, other *world) (names []string) {
			for name, text := range hostile(times) {
				names = append(names, serve(w, name, text)...)
			}
			for _, name := range names {
				w.remote(name)
				other.remote(name)
			}
			agents(w, times)
			agents(other, times)
			return names
		}
	}
	for name, set := range all {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.TB = t
			other := w.neighbour("beside")
			names := set(w, other)
			w.network.serve(t, "good.example:80",
				peer.Streamable(peer.Server("Office", 0, peer.Many("office", 2)...)))
			other.remote("good")
			measured := controlplane.PeakMemory(w.process(w.namespace, other.namespace))
			w.eventually("a small server beside them is listed", func() string {
				if got := other.accepted("good"); got != "True: 2 tools" {
					return got
				}
				return ""
			})
			judged := map[string]int{}
			w.eventually("they are judged", func() string { // of many, those that come first
				clear(judged)
				n := 0
				for _, name := range names {
					if got := w.accepted(name); got != "" {
						judged[got]++
						n++
					}
				}
				if n < min(len(names), 8) {
					return fmt.Sprint(judged)
				}
				return ""
			})
			if len(names) == 0 {
				w.eventually("the cards are judged", func() string {
					if w.status("agents").Phase == "" {
						return "not yet"
					}
					return ""
				})
			}
			peak := measured()
			t.Logf("%d MiB of %d: %v", peak>>20, limit>>20, judged)
			if decodes := strings.HasSuffix(name, "within limits") &&
				!regexp.MustCompile("tools|deeply|error|broken").MatchString(
					name); strings.HasPrefix(name, "one ") &&
				decodes != (judged["True: 1 tool"] == 1) {
				t.Errorf("it is decoded is %t, want %t", !decodes, decodes)
			}
			if peak > limit/2 {
				t.Errorf("the catalog had %d MiB, more than half of its %d MiB", peak>>20, limit>>20)
			}
		})
	}
}

// process runs the catalog in a process of its own, with the memory of the installation.
func (w *world) process(namespaces ...string) (pid int) {
	w.Helper()
	return w.processOf(settings{Namespaces: namespaces, Store: w.TempDir() + "/catalog.db",
		At: w.network.at}).Pid
}

func (w *world) processOf(s settings) *os.Process {
	w.Helper()
	text, err := json.Marshal(s)
	w.must(err)
	self, err := os.Executable()
	w.must(err)
	var log strings.Builder
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), asCatalog+"="+string(text),
		"KUBECONFIG="+shared.Get(w).Admin.Kubeconfig, "GOMEMLIMIT=268435456", "GOGC=100")
	cmd.Stderr = &log
	w.must(cmd.Start())
	w.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if w.Failed() {
			w.Log(log.String())
		}
	})
	return cmd.Process
}
