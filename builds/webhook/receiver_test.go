package webhook

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const token = "a secret of some length"

// receiver serves the hook team/hook, and records what it wakes.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex
	woken []string
}

func serve(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	receiver := &Receiver{Counts: NewCounts(),
		Secrets: func(namespace, name string) [][]byte {
			if namespace == "team" && name == "hook" {
				return [][]byte{[]byte(token)}
			}
			return nil
		},
		Wake: func(namespace, name string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.woken = append(r.woken, namespace+"/"+name)
		}}
	r.Server = httptest.NewUnstartedServer(nil)
	r.Config = receiver.Server("")
	r.Start()
	t.Cleanup(r.Close)
	return r
}

// deliver a body, signed over what is signed, which is the body in most cases.
func (r *receiver) deliver(t *testing.T, body io.Reader, signed string, h ...string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.URL+"/hook/team/hook", body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header = headers(append([]string{"X-GitHub-Event", "push", "X-Hub-Signature-256", "sha256=" + hex.EncodeToString(sum([]byte(token), []byte(signed)))}, h...)...)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	return answer.StatusCode
}

// woke gives what was woken since it was asked last.
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
		return fmt.Sprintf(`{"ref":%q,"after":"0123456789012345678901234567890123456789","repository":{"clone_url":%q,"full_name":"other/weather"}}`, ref, url)
	}
	for name, body := range map[string]string{
		"empty":                   "",
		"not JSON":                "no JSON",
		"invalid UTF-8":           "{\"ref\":\"\xff\xfe\"}",
		"gzip":                    compressed.String(),
		"depth of 10,000":         strings.Repeat(`{"a":`, 10_000) + "1" + strings.Repeat("}", 10_000),
		"a key twice":             `{"after":"1111111111111111111111111111111111111111","after":"2222222222222222222222222222222222222222"}`,
		"a path as branch":        payload("refs/heads/../../x", "https://github.com/acme/weather"),
		"an option as branch":     payload("refs/heads/-o", "https://github.com/acme/weather"),
		"a space in a branch":     payload("refs/heads/a b", "https://github.com/acme/weather"),
		"another host":            payload("refs/heads/main", "https://attacker.example.com/acme/weather"),
		"a login":                 payload("refs/heads/main", "https://user:password@github.com/acme/weather"),
		"ssh":                     payload("refs/heads/main", "ssh://git@github.com/acme/weather"),
		"a file":                  payload("refs/heads/main", "file:///etc/passwd"),
		"other case and .git":     payload("refs/heads/main", "https://GitHub.com/Acme/Weather.git/"),
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
	if got := r.deliver(t, strings.NewReader(large), large); got != http.StatusRequestEntityTooLarge {
		t.Errorf("a byte over the limit: %d", got)
	}
	// Without a length, in chunks.
	if got := r.deliver(t, io.MultiReader(strings.NewReader("{"), strings.NewReader("}")), "{}"); got != http.StatusAccepted {
		t.Errorf("in chunks: %d", got)
	}
	r.woke()
	if got := r.deliver(t, io.MultiReader(strings.NewReader(large)), large); got != http.StatusRequestEntityTooLarge {
		t.Errorf("in chunks, a byte over the limit: %d", got)
	}
	// The signature of what is in the archive is not that of the archive.
	if got := r.deliver(t, bytes.NewReader(compressed.Bytes()), "{}", "Content-Encoding", "gzip"); got != http.StatusUnauthorized {
		t.Errorf("signed before it was compressed: %d", got)
	}
	if got := r.woke(); len(got) > 0 {
		t.Errorf("what was refused wakes %q", got)
	}
}

// A body that comes a byte at a time ends with the read timeout, and takes one of the slots
// until then; what comes beside it is answered, or asked to come later.
func TestSlowBodies(t *testing.T) {
	r := serve(t)
	r.Config.ReadTimeout = 300 * time.Millisecond
	var slow []net.Conn
	for range maxAtOnce {
		c, err := net.Dial("tcp", r.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, "POST /hook/team/hook HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nx")
		slow = append(slow, c)
	}
	busy := false
	for began := time.Now(); time.Since(began) < 5*time.Second; {
		got := r.deliver(t, strings.NewReader("{}"), "{}")
		busy = busy || got == http.StatusTooManyRequests
		if busy && got == http.StatusAccepted {
			break
		}
	}
	if !busy {
		t.Error("more than the slots are taken")
	}
	if got := r.deliver(t, strings.NewReader("{}"), "{}"); got != http.StatusAccepted {
		t.Errorf("after the timeout: %d", got)
	}
	for _, c := range slow {
		if err := c.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a slow body is still read")
		}
	}
}
