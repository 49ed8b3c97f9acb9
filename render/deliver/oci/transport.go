package oci

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// maxRedirects is the maximum number of redirects of one request.
const maxRedirects = 10

// Transport returns a transport for requests to registries. It ends circular redirects, which
// go-containerregistry's client follows forever.
func Transport() http.RoundTripper { return redirects{remote.DefaultTransport} }

// TransportTo returns the same transport with connections that dial opens.
func TransportTo(dial func(ctx context.Context,
	network, address string) (net.Conn, error)) http.RoundTripper {
	return redirects{&http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dial, ForceAttemptHTTP2: true,
		DisableKeepAlives: true, TLSHandshakeTimeout: 10 * time.Second,
		ResponseHeaderTimeout: 30 * time.Second, MaxResponseHeaderBytes: 64 << 10,
	}}
}

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
