package controller_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// A controller that is stopped while a cache fills ends without an error in
// its log.
func TestEndWhileCachesFill(t *testing.T) {
	w := newWorld(t)
	filling := make(chan struct{})
	once := sync.OnceFunc(func() { close(filling) })
	w.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if !strings.HasSuffix(r.URL.Path, "/mcpservers") {
				return next.RoundTrip(r)
			}
			once()
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
	})
	stop := w.start()
	<-filling
	time.Sleep(200 * time.Millisecond) // for whoever waits for the cache
	stop()
	if text := runtimeErrors.String(); strings.Contains(text, "informer") {
		t.Errorf("logged:\n%s", text)
	}
}
