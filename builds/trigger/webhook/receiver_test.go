package webhook

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/builds/controller/traces"
)

const token = "a secret of some length"

// receiver serves the hook team/hook, and records what it wakes.
type receiver struct {
	*httptest.Server
	receiver *Receiver
	mu       sync.Mutex
	woken    []string
}

func serve(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	r.receiver = &Receiver{Counts: NewCounts(),
		Known:   func(hook types.NamespacedName) bool { return hook.String() == "team/hook" },
		Secrets: func(context.Context, types.NamespacedName) [][]byte { return [][]byte{[]byte(token)} },
		Wake: func(hook types.NamespacedName, _ string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.woken = append(r.woken, hook.String())
		}}
	r.Server = httptest.NewUnstartedServer(nil)
	r.Config = r.receiver.Server("")
	r.Start()
	t.Cleanup(r.Close)
	return r
}

// deliver a body, signed over what is signed, which is the body in most cases.
func (r *receiver) deliver(t *testing.T, body io.Reader, signed string, h ...string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		r.URL+"/hook/team/hook", body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header = headers(append([]string{"X-GitHub-Event", "push", "X-Hub-Signature-256",
		"sha256=" + hex.EncodeToString(sum([]byte(token), []byte(signed)))}, h...)...)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	return answer.StatusCode
}

// woke returns the builds that were woken since its last call.
func (r *receiver) woke() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.woken = nil }()
	return r.woken
}

// What a signed body contains makes no difference: it names a hook by its path alone.
func TestBodies(t *testing.T) {
	r := serve(t)
	compressed := &bytes.Buffer{}
	writer := gzip.NewWriter(compressed)
	fmt.Fprint(writer, "{}")
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	payload := func(ref, url string) string {
		return fmt.Sprintf(
			`{"ref":%q,"after":"0123456789012345678901234567890123456789","repository":{"clone_url":%q,"full_name":"other/weather"}}`, ref, url)
	}
	for name, body := range map[string]string{
		"empty":         "",
		"not JSON":      "no JSON",
		"invalid UTF-8": "{\"ref\":\"\xff\xfe\"}",
		"gzip":          compressed.String(),
		"depth of 10,000": strings.Repeat(`{"a":`, 10_000) + "1" +
			strings.Repeat("}", 10_000),
		"a key twice":         `{"after":"1111111111111111111111111111111111111111","after":"2222222222222222222222222222222222222222"}`,
		"a path as branch":    payload("refs/heads/../../x", "https://github.com/acme/weather"),
		"an option as branch": payload("refs/heads/-o", "https://github.com/acme/weather"),
		"a space in a branch": payload("refs/heads/a b", "https://github.com/acme/weather"),
		"another host": payload("refs/heads/main",
			"https://attacker.example.com/acme/weather"),
		"a login": payload("refs/heads/main",
			"https://user:password@github.com/acme/weather"),
		"ssh":    payload("refs/heads/main", "ssh://git@github.com/acme/weather"),
		"a file": payload("refs/heads/main", "file:///etc/passwd"),
		"other case and .git": payload("refs/heads/main",
			"https://GitHub.com/Acme/Weather.git/"),
		"the largest that counts": strings.Repeat("x", maxBody),
	} {
		if got := r.deliver(t, strings.NewReader(body), body); got != http.StatusAccepted {
			t.Errorf("%s: %d", name, got)
		}
		if got := r.woke(); !slices.Equal(got, []string{"team/hook"}) {
			t.Errorf("%s wakes %q", name, got)
		}
	}
	large := strings.Repeat("x", maxBody+1)
	if got := r.deliver(t, strings.NewReader(large),
		large); got != http.StatusRequestEntityTooLarge {
		t.Errorf("a byte over the limit: %d", got)
	}
	// Without a length, in chunks.
	if got := r.deliver(t, io.MultiReader(strings.NewReader("{"), strings.NewReader("}")),
		"{}"); got != http.StatusAccepted {
		t.Errorf("in chunks: %d", got)
	}
	r.woke()
	if got := r.deliver(t, io.MultiReader(strings.NewReader(large)),
		large); got != http.StatusRequestEntityTooLarge {
		t.Errorf("in chunks, a byte over the limit: %d", got)
	}
	// The signature of what is in the archive is not that of the archive.
	if got := r.deliver(t, bytes.NewReader(compressed.Bytes()), "{}", "Content-Encoding",
		"gzip"); got != http.StatusUnauthorized {
		t.Errorf("signed before it was compressed: %d", got)
	}
	if got := r.woke(); len(got) > 0 {
		t.Errorf("what was refused wakes %q", got)
	}
}

// idle opens connections that name the hook and a signature, and send one byte of a body.
func (r *receiver) idle(t *testing.T, n int) (all []net.Conn) {
	t.Helper()
	for range n {
		c, err := net.Dial("tcp", r.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		fmt.Fprint(c,
			"POST /hook/team/hook HTTP/1.1\r\nHost: x\r\nX-Hub-Signature-256: sha256=00\r\n"+
				"Content-Length: 1000\r\n\r\nx")
		all = append(all, c)
	}
	return all
}

// Connections that send nothing, or a byte at a time, keep nobody out.
func TestIdleConnections(t *testing.T) {
	r := serve(t)
	r.idle(t, 300)
	for range 10 {
		if got := r.deliver(t, strings.NewReader("{}"), "{}"); got != http.StatusAccepted {
			t.Errorf("beside idle connections: %d", got)
		}
	}
	// Who names no hook, or has no signature, is not read at all.
	for name, head := range map[string]string{
		"unknown hook": "POST /hook/team/other HTTP/1.1\r\nX-Hub-Signature-256: sha256=00\r\n",
		"no signature": "POST /hook/team/hook HTTP/1.1\r\n",
		"no hook":      "POST /other HTTP/1.1\r\nX-Hub-Signature-256: sha256=00\r\n",
		"two signatures": "POST /hook/team/hook HTTP/1.1\r\nX-Hub-Signature-256: sha256=00\r\n" +
			"X-Hub-Signature-256: sha256=01\r\n",
	} {
		c, err := net.Dial("tcp", r.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(c, head+"Host: x\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n")
		if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		answer, err := bufio.NewReader(c).ReadString('\n')
		if err != nil || !strings.Contains(answer, "401") {
			t.Errorf("%s: %q, %v", name, answer, err)
		}
		_ = c.Close()
	}
}

// Where bodies take all the memory, others are asked to come later, until the bodies are there
// or their time is over.
func TestSlowBodies(t *testing.T) {
	r := serve(t)
	r.receiver.memory = semaphore.NewWeighted(2 * firstMemory)
	slow := r.idle(t, 2)
	status := func(want int) {
		t.Helper()
		for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
			got := r.deliver(t, strings.NewReader("{}"), "{}")
			if got == want {
				return
			}
			// the delivery may have had the memory when a slow body came
			if want == http.StatusTooManyRequests {
				slow = append(slow, r.idle(t, 1)...)
			}
			if time.Since(began) > time.Minute {
				t.Fatalf("%d, want %d", got, want)
			}
		}
	}
	status(http.StatusTooManyRequests)
	for _, c := range slow {
		_ = c.Close()
	}
	status(http.StatusAccepted)
	if r.Config.ReadTimeout != 30*time.Second {
		t.Errorf("a body may take %s", r.Config.ReadTimeout)
	}
}

// exported are the names of spans, with their traces.
type exported struct{ spans []string }

func (e *exported) ExportSpans(_ context.Context, all []sdk.ReadOnlySpan) error {
	for _, s := range all {
		e.spans = append(e.spans, s.Name()+" "+s.SpanContext().TraceID().String())
	}
	return nil
}

func (*exported) Shutdown(context.Context) error { return nil }

// Only what is signed makes a span: strangers fill no queue. Who is woken hears of it.
func TestSpans(t *testing.T) {
	r, e, trace := serve(t), &exported{}, ""
	tracer, err := traces.To(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	r.receiver.Traces, r.receiver.Wake =
		tracer, func(_ types.NamespacedName, parent string) { trace = strings.Split(parent, "-")[1] }
	r.Config.Handler = r.receiver.Server("").Handler
	for signed, want := range map[string]int{"another body": http.StatusUnauthorized,
		"{}": http.StatusAccepted} {
		if status := r.deliver(t, strings.NewReader("{}"), signed); status != want {
			t.Error(status)
		}
	}
	r.Close()
	tracer.Stop()
	if !slices.Equal(e.spans, []string{"webhook " + trace}) {
		t.Errorf("%v, and woken in trace %s", e.spans, trace)
	}
}
