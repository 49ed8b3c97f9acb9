package ask

import (
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
)

// A failure says what is wrong with the answer or the address, and not that the network failed.
func TestGetFailures(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/again", http.StatusFound)
	}))
	t.Cleanup(server.Close)
	for path, want := range map[string]string{"/": "it redirects too often",
		"/%zz": "its URL cannot be read"} {
		memory := NewBudget().Share("team1")
		_, err := Get(t.Context(), Transport((&net.Dialer{}).DialContext, nil, ""),
			server.URL+path, 1<<20, memory, &atomic.Int64{})
		if got := FailureOf(err).Reason; got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
		memory.Release()
	}
}
