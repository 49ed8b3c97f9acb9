package render_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
)

// asyaContracts is what the sidecar of each generation of Asya expects: written from
// facts about its releases, not from the code that renders.
var asyaContracts = []asyaContract{
	{generation: "0.2", required: "ASYA_ACTOR_NAME ASYA_NAMESPACE", timeout: "ASYA_RUNTIME_TIMEOUT",
		success: "ASYA_ACTOR_HAPPY_END=happy-end", failure: "ASYA_ACTOR_ERROR_END=error-end",
		unread: "ASYA_ACTOR_SINK ASYA_ACTOR_SUMP ASYA_RESILIENCY_"},
	{generation: "next", required: "ASYA_ACTOR_NAME ASYA_NAMESPACE",
		timeout: "ASYA_RESILIENCY_ACTOR_TIMEOUT", success: "ASYA_ACTOR_SINK=x-sink",
		failure: "ASYA_ACTOR_SUMP=x-sump",
		unread: "ASYA_ACTOR_HAPPY_END ASYA_ACTOR_ERROR_END ASYA_RUNTIME_TIMEOUT " +
			"ASYA_RESILIENCY_RETRY_", short: true},
}

type asyaContract struct {
	generation       string
	required, unread string // variables, by spaces; those that are not read begin so
	timeout          string
	success, failure string
	// short says that actors have no spec.workload and name no transport, and that the
	// sidecar speaks HTTP, not frames, and declares its queue itself.
	short bool
}

const asyaHandlers = `
def double(payload): return {"x": payload["x"] * 2}
def many(payload): return [{"n": 1}, {"n": 2}]
def stream(payload):
    yield {"n": 1}
    yield {"n": 2}
def nothing(payload): return None
`

// TestAsyaContracts has a stand-in sidecar of each generation read what is rendered
// for it: environment, queue, binding, and the script, which runs and answers.
func TestAsyaContracts(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not on the PATH")
	}
	for _, c := range asyaContracts {
		t.Run(c.generation, func(t *testing.T) {
			t.Parallel()
			end := strings.Split(c.success, "=")[1]
			many := "handlers.stream"
			if !c.short {
				many = "handlers.many"
			}
			for _, actor := range []struct {
				name, handler string
				payloads      []string
				fails         bool
			}{
				{"work", "handlers.double", []string{`{"x":4}`}, false},
				{"work", many, []string{`{"n":1}`, `{"n":2}`}, false},
				{"work", "handlers.nothing", nil, false},
				{"work", "handlers.double", nil, true},
				{end, "handlers.double", []string{`{"x":4}`}, false},
			} {
				objects := c.rendered(t, actor.name, actor.handler)
				s := c.sidecar(t, objects, actor.name)
				s.queueExists(objects)
				payload := `{"x":2}`
				if actor.fails {
					payload = `{}`
				}
				stop := s.startRuntime(python, objects)
				sent := s.work(payload)
				stop()
				var want []asyaSent
				switch {
				case actor.fails:
					want = []asyaSent{{strings.Split(c.failure, "=")[1], payload}}
				case s.end: // sends nothing on
				case actor.payloads == nil:
					want = []asyaSent{{end, payload}}
				default:
					for _, p := range actor.payloads {
						want = append(want, asyaSent{"later", p})
					}
				}
				if diff := cmp.Diff(want, sent); diff != "" {
					t.Errorf("%s with %s sends (-want +got):\n%s", actor.name, actor.handler, diff)
				}
			}
		})
	}
}

// rendered returns the objects of an actor by their kinds; of the two queues, the actor's.
func (c asyaContract) rendered(t *testing.T, name, handler string) map[string]*yaml.RNode {
	t.Helper()
	config := `apiVersion: armature.dev/v1alpha1
kind: RenderConfig
spec:
  asya:
    generation: "` + c.generation + `"
    transports:
      rabbitmq: {enabled: true, type: rabbitmq, config: {host: rabbitmq.default.svc, exchange: messages, queues: {dlq: {enabled: true}}}}
`
	actor := "apiVersion: asya.sh/v1alpha1\nkind: AsyncActor\nmetadata: {name: " + name +
		", namespace: prod}\nspec:\n"
	if c.short {
		actor += "  actor: " + name + "\n  image: work:v1\n  handler: " + handler + "\n"
	} else {
		actor += "  transport: rabbitmq\n  workload: {template: {spec: {containers: [{name: " +
			"asya-runtime, image: 'work:v1', env: [{name: ASYA_HANDLER, value: " + handler + "}]}]}}}\n"
	}
	parsed, findings := render.ReadConfig([]byte(config), render.ConfigFile)
	if len(findings) > 0 {
		t.Fatal(findings)
	}
	r, err := render.Run(
		render.Source{Files: []render.File{{Path: "actor.yaml", Data: []byte(actor)}}},
		render.Options{Config: parsed})
	if err != nil || finding.Failed(r.Findings) {
		t.Fatal(err, r.Findings)
	}
	objects := make(map[string]*yaml.RNode)
	for d := range krm.Documents(r.Files[0].Data) {
		o, err := yaml.Parse(string(r.Files[0].Data[d.Start:d.End]))
		if err != nil {
			continue // the consumed actor, a comment
		}
		if kind := o.GetKind(); kind != "Queue" || o.GetName() == "asya-"+name {
			objects[kind] = o
		}
	}
	return objects
}

// asyaSidecar takes the place of a sidecar.
type asyaSidecar struct {
	asyaContract
	t       *testing.T
	env     map[string]string
	actor   string
	queue   string
	end     bool
	sockets string
}

type asyaSent struct{ Actor, Payload string }

// sidecar reads its environment as the generation's does.
func (c asyaContract) sidecar(t *testing.T, objects map[string]*yaml.RNode, actor string) *asyaSidecar {
	t.Helper()
	s := &asyaSidecar{asyaContract: c, t: t,
		env: environmentOf(t, objects["Deployment"], "asya-sidecar"), actor: actor}
	for _, name := range append(strings.Fields(c.required), "ASYA_TRANSPORT", "ASYA_RABBITMQ_HOST",
		"ASYA_SOCKET_DIR", c.timeout) {
		if s.env[name] == "" {
			t.Errorf("the sidecar needs %s", name)
		}
	}
	for _, prefix := range strings.Fields(c.unread) {
		for name := range s.env {
			if strings.HasPrefix(name, prefix) {
				t.Errorf("the sidecar does not read %s", name)
			}
		}
	}
	for _, end := range []string{c.success, c.failure} {
		if name, value, _ := strings.Cut(end, "="); s.env[name] != value {
			t.Errorf("%s is %q, not %q", name, s.env[name], value)
		}
	}
	if d, err := time.ParseDuration(s.env[c.timeout]); err != nil || d != 5*time.Minute {
		t.Errorf("%s is %q", c.timeout, s.env[c.timeout])
	}
	s.end = s.env["ASYA_IS_END_ACTOR"] == "true"
	if wanted := strings.HasSuffix(c.success, "="+actor); s.end != wanted {
		t.Errorf("%s ends messages: %v", actor, s.end)
	}
	s.queue = "asya-" + s.env["ASYA_NAMESPACE"] + "-" + s.env["ASYA_ACTOR_NAME"]
	if want := "asya-prod-" + actor; s.queue != want {
		t.Errorf("the sidecar reads %s, not %s", s.queue, want)
	}
	return s
}

// queueExists finds the queue that the sidecar reads, bound so that messages for
// the actor get into it.
func (s *asyaSidecar) queueExists(objects map[string]*yaml.RNode) {
	s.t.Helper()
	queue, binding := objects["Queue"], objects["Binding"]
	if s.short {
		if queue != nil || binding != nil {
			s.t.Error("the sidecar declares and binds its queue itself, without arguments")
		}
		return
	}
	if queue == nil || binding == nil {
		s.t.Fatal("the sidecar declares its queue passively, and nobody makes it, or binds it")
	}
	text := func(o *yaml.RNode, field string) string {
		value, _ := o.GetString("spec." + field)
		return value
	}
	exchange := s.env["ASYA_RABBITMQ_EXCHANGE"]
	if exchange == "" {
		exchange = "asya"
	}
	have := []string{text(queue, "name"), text(binding, "destination"),
		text(binding, "destinationType"), text(binding, "routingKey"), text(binding, "source")}
	if diff := cmp.Diff([]string{s.queue, s.queue, "queue", s.actor, exchange}, have); diff != "" {
		s.t.Errorf(
			"queue, and destination, type, key and exchange of the binding (-want +got):\n%s", diff)
	}
}

// startRuntime runs the script of the ConfigMap as the container does.
func (s *asyaSidecar) startRuntime(python string, objects map[string]*yaml.RNode) (stop func()) {
	s.t.Helper()
	dir, err := os.MkdirTemp("", "a") // a socket's path has to be short
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { os.RemoveAll(dir) })
	script := objects["ConfigMap"].GetDataMap()["asya_runtime.py"]
	for name, text := range map[string]string{"asya_runtime.py": script,
		"handlers.py": asyaHandlers} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	env := environmentOf(s.t, objects["Deployment"], "asya-runtime")
	if env["ASYA_SOCKET_DIR"] != s.env["ASYA_SOCKET_DIR"] {
		s.t.Errorf("the runtime listens in %s, and the sidecar calls %s", env["ASYA_SOCKET_DIR"],
			s.env["ASYA_SOCKET_DIR"])
	}
	env["ASYA_SOCKET_DIR"], s.sockets = dir, dir
	runtime := exec.Command(python, filepath.Join(dir, "asya_runtime.py"))
	runtime.Env = append(os.Environ(), "PYTHONPATH="+dir)
	for name, value := range env {
		runtime.Env = append(runtime.Env, name+"="+value)
	}
	var log bytes.Buffer
	runtime.Stdout, runtime.Stderr = &log, &log
	if err := runtime.Start(); err != nil {
		s.t.Fatal(err)
	}
	stop = func() {
		runtime.Process.Kill()
		runtime.Wait()
	}
	for until := time.Now().Add(2 * time.Minute); time.Now().Before(until); time.Sleep(
		10 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, "runtime-ready")); err == nil {
			return stop
		}
	}
	stop()
	s.t.Fatalf("the runtime is not ready:\n%s", log.String())
	return nil
}

// work hands the runtime a message that goes from the actor to "later", and returns what the
// sidecar sends.
func (s *asyaSidecar) work(payload string) (sent []asyaSent) {
	s.t.Helper()
	var answers []map[string]any
	if !s.short {
		route, at := []string{s.actor, "later"}, 0
		if s.end {
			route, at = []string{"work"}, 1
		}
		names, _ := json.Marshal(route)
		answers = s.callFramed(
			fmt.Sprintf(`{"id":"1","route":{"actors":%s,"current":%d},"payload":%s}`, names, at, payload))
	} else {
		answers = s.callHTTP(
			fmt.Sprintf(
				`{"id":"1","route":{"prev":["before"],"curr":%q,"next":["later"]},"payload":%s}`,
				s.actor, payload))
	}
	name := func(end string) string { return s.env[strings.Split(end, "=")[0]] }
	for _, a := range answers {
		switch {
		case a["error"] != nil:
			sent = append(sent, asyaSent{name(s.failure), payload})
		case !s.end:
			made, err := json.Marshal(a["payload"])
			if err != nil {
				s.t.Fatal(err)
			}
			sent = append(sent, asyaSent{s.following(a), string(made)})
		}
	}
	if len(answers) == 0 && !s.end {
		sent = append(sent, asyaSent{name(s.success), payload})
	}
	return sent
}

// following is the actor that a message goes to, by the route of the generation.
func (s *asyaSidecar) following(message map[string]any) string {
	route, _ := message["route"].(map[string]any)
	if s.short {
		following, _ := route["curr"].(string)
		if prev, _ := route["prev"].([]any); len(prev) != 2 || prev[1] != s.actor {
			s.t.Errorf("the route does not say that the actor has worked on it: %v", route)
		}
		return following
	}
	actors, _ := route["actors"].([]any)
	at, _ := route["current"].(float64)
	if int(at) >= len(actors) {
		return strings.Split(s.success, "=")[1]
	}
	following, _ := actors[int(at)].(string)
	return following
}

func (s *asyaSidecar) callFramed(message string) (answers []map[string]any) {
	s.t.Helper()
	conn, err := net.Dial("unix", filepath.Join(s.sockets, "asya-runtime.sock"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(message))),
		message...)); err != nil {
		s.t.Fatal(err)
	}
	var head [4]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		s.t.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint32(head[:]))
	if _, err := io.ReadFull(conn, body); err != nil {
		s.t.Fatal(err)
	}
	if err := json.Unmarshal(body, &answers); err != nil {
		s.t.Fatalf("the answer is not a list: %v: %s", err, body)
	}
	return answers
}

func (s *asyaSidecar) callHTTP(message string) []map[string]any {
	s.t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix",
				filepath.Join(s.sockets, "asya-runtime.sock"))
		}}}
	answer, err := client.Post("http://runtime/invoke", "application/json", strings.NewReader(message))
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusNoContent:
		return nil
	case http.StatusOK:
		var body struct {
			Frames []map[string]any `json:"frames"`
		}
		if err := json.NewDecoder(answer.Body).Decode(&body); err != nil || len(body.Frames) == 0 {
			s.t.Fatalf("the answer has no frames: %v", err)
		}
		return body.Frames
	}
	var failure map[string]any
	if err := json.NewDecoder(answer.Body).Decode(&failure); err != nil || failure["error"] == nil {
		s.t.Fatalf("status %d without an error: %v", answer.StatusCode, err)
	}
	return []map[string]any{failure}
}

// environmentOf returns the plain variables of a container.
func environmentOf(t *testing.T, workload *yaml.RNode, container string) map[string]string {
	t.Helper()
	env := make(map[string]string)
	c, err := workload.Pipe(yaml.Lookup("spec", "template", "spec", "containers",
		"[name="+container+"]", "env"))
	if err != nil || c == nil {
		t.Fatalf("%s has no environment: %v", container, err)
	}
	err = c.VisitElements(func(n *yaml.RNode) error {
		value, _ := n.GetString("value")
		name, err := n.GetString("name")
		env[name] = value
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return env
}
