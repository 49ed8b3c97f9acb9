package oci

import (
	"errors"
	"net/http"

	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// maxRedirects is how often one request may be sent elsewhere.
const maxRedirects = 10

// Transport carries requests to registries. It ends redirects that lead in a circle,
// which go-containerregistry's client follows for ever.
func Transport() http.RoundTripper { return redirects{remote.DefaultTransport} }

type redirects struct{ http.RoundTripper }

func (t redirects) RoundTrip(request *http.Request) (*http.Response, error) {
	hops := 0
	for r := request; r.Response != nil && r.Response.Request != nil; r = r.Response.Request {
		if hops++; hops > maxRedirects {
			return nil, errors.New("stopped after 10 redirects")
		}
	}
	return t.RoundTripper.RoundTrip(request)
}
