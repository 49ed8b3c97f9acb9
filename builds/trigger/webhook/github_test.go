package webhook

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// The payloads that GitHub publishes go through the receiver: signed ones are accepted or
// ignored by their event, and one with a changed byte is refused.
func TestGitHubsExamples(t *testing.T) {
	file, err := os.Open("testdata/github.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	var examples []struct {
		Event   string
		Payload json.RawMessage
	}
	if err := json.NewDecoder(unzipped).Decode(&examples); err != nil {
		t.Fatal(err)
	}
	secret := []byte("a secret of some length")
	woken := 0
	receiver := &Receiver{Known: func(types.NamespacedName) bool { return true },
		Secrets: func(context.Context, types.NamespacedName) [][]byte { return [][]byte{secret} },
		Wake:    func(types.NamespacedName, string) { woken++ }, Counts: NewCounts()}
	receiver.Server("")
	deliver := func(event string, signed, body []byte) int {
		r := httptest.NewRequest(http.MethodPost, "/hook/team1/github", bytes.NewReader(body))
		r.Header.Set("X-GitHub-Event", event)
		r.Header.Set("X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958")
		r.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(sum(secret, signed)))
		w := httptest.NewRecorder()
		receiver.ServeHTTP(w, r)
		return w.Code
	}
	events, builds := make(map[string]bool), 0
	for _, e := range examples {
		events[e.Event] = true
		want := http.StatusOK
		if slices.Contains([]string{"push", "create", "delete", "pull_request", "issue_comment"},
			e.Event) {
			want = http.StatusAccepted
			builds++
		}
		if got := deliver(e.Event, e.Payload, e.Payload); got != want {
			t.Errorf("%s: %d, want %d", e.Event, got, want)
		}
		changed := bytes.Clone(e.Payload)
		changed[len(changed)/2] ^= 1
		if got := deliver(e.Event, e.Payload, changed); got != http.StatusUnauthorized {
			t.Errorf("a changed %s: %d", e.Event, got)
		}
	}
	if len(events) < 58 || builds < 16 || woken != builds {
		t.Errorf("%d events, %d payloads about branches, %d of them woke builds", len(events),
			builds, woken)
	}
}
