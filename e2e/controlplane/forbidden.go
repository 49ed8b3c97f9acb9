package controlplane

import (
	"net/http"
	"sync"
)

// Forbidden collects the requests that RBAC refused. Its Wrap is for rest.Config.Wrap.
type Forbidden struct {
	mu   sync.Mutex
	what []string
}

// Wrap watches the answers to a client's requests.
func (f *Forbidden) Wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if err == nil && response.StatusCode == http.StatusForbidden {
			f.mu.Lock()
			f.what = append(f.what, r.Method+" "+r.URL.String())
			f.mu.Unlock()
		}
		return response, err
	})
}

// All returns the forbidden requests, each as its method and URL.
func (f *Forbidden) All() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.what...)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
