// Package ask queries agents and tool servers, which are not trusted: with limits of bytes, memory,
// depth, redirects and time, and without redirects to other hosts. For commands, it queries a
// catalog's server.
package ask

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/answers"
	"github.com/armature-dev/armature/render/version"
)

// Limits of a server's answers. Servers are not trusted.
const (
	maxDiscovery = 8 << 20 // bytes that one MCP discovery reads in all
	maxRedirects = 3
	maxHeader    = 64 << 10
)

// Memory of all answers together, from the first byte until their content is stored. The catalog's
// memory limit is 256 MiB.
const (
	maxAnswers = 64 << 20 // of all answers at the same time
	// of the answers of one namespace: one is decoded, and the items of others stay
	maxNamespace = MaxDecoding + 2*maxDiscovery
	// a decoded tool, resource or prompt without its text
	itemCost = 256

	// MaxDecoding is the memory for one answer; a text without structure may have 2.6 MiB.
	MaxDecoding = 32 << 20
)

// NewBudget returns the budget of the catalog.
func NewBudget() *answers.Budget { return answers.NewBudget(maxAnswers, maxNamespace) }

// meter counts the memory of an answer.
func meter(ctx context.Context, answer io.Reader, memory *answers.Share,
	decoding *atomic.Int64) io.Reader {
	return &answers.Metered{Reader: answer, Context: ctx, Memory: memory, Decoding: decoding,
		Most: MaxDecoding}
}

// ErrTooLarge is the refusal of an answer that exceeds the limits of bytes, memory, depth or items.
var ErrTooLarge = answers.ErrTooLarge

// Reasons to refuse an answer.
var (
	errOtherHost = Failed("it redirects to another host")
	errRedirects = Failed("it redirects too often")
	errForbidden = Failed("the catalog may not contact this address")
)

// Failure is the reason why an agent or a tool server could not be queried, always in the same
// words. It does not quote the server, whose answer may contain anything, such as the credentials
// that it was sent.
type Failure struct {
	Reason string
	// Status is the HTTP status that the server answered; 0 for any other failure.
	Status int
	err    error
}

func (f *Failure) Error() string { return f.Reason }

func (f *Failure) Unwrap() error { return f.err }

// Failed returns a failure for a reason.
func Failed(format string, args ...any) *Failure {
	return &Failure{Reason: fmt.Sprintf(format, args...)}
}

// FailureOf returns the failure that an error is, or a failure for an error of the network.
func FailureOf(err error) *Failure {
	var failure *Failure
	if errors.As(err, &failure) {
		return failure
	}
	return &Failure{Reason: reason(err), err: err}
}

// answered returns the failure of an HTTP status other than success.
func answered(status int) *Failure {
	return &Failure{Reason: strings.TrimSpace(fmt.Sprintf("HTTP status %d %s", status,
		http.StatusText(status))), Status: status}
}

// Transport returns a transport for untrusted servers: without a proxy, without compression, which
// could expand to any size, and without kept connections.
func Transport(dial Dial, roots *x509.CertPool, serverName string) *http.Transport {
	return &http.Transport{
		DialContext: dial,
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: serverName,
			MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    5 * time.Second,
		DisableCompression:     true,
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: maxHeader,
	}
}

// sameHost follows a few redirects within the same host.
func sameHost(request *http.Request, via []*http.Request) error {
	first := via[0].URL
	if request.URL.Host != first.Host || request.URL.Scheme != first.Scheme {
		return errOtherHost
	}
	if len(via) > maxRedirects {
		return errRedirects
	}
	return nil
}

// Get reads at most limit bytes of JSON at a URL. The memory for decoding it counts until the
// caller settles it. Its error is a *Failure.
func Get(ctx context.Context, transport http.RoundTripper, url string, limit int64,
	memory *answers.Share, decoding *atomic.Int64) (data []byte, err error) {
	defer func() {
		if err != nil {
			err = FailureOf(err)
		}
	}()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, Failed("its URL cannot be read")
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", UserAgent())
	response, err := (&http.Client{Transport: transport, CheckRedirect: sameHost}).Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { err = multi.Errors(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		return nil, answered(response.StatusCode)
	}
	data, err = io.ReadAll(io.LimitReader(meter(ctx, response.Body, memory, decoding), limit+1))
	if err == nil && int64(len(data)) > limit {
		err = ErrTooLarge
	}
	return data, err
}

// Program is the catalog's name in its requests.
const Program = "armature-catalog"

// UserAgent names the program and its version in every request.
func UserAgent() string { return version.UserAgent(Program) }

func reason(err error) string {
	const certificate = "its TLS certificate is not trusted: "
	var timeout net.Error
	var invalid x509.CertificateInvalidError
	switch {
	case errors.Is(err, ErrTooLarge):
		return ErrTooLarge.Error()
	case errors.Is(err, answers.ErrBusy):
		return answers.ErrBusy.Error()
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return certificate + "signed by an unknown authority"
	case errors.As(err, new(x509.HostnameError)):
		return certificate + "made for another name"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return certificate + "expired or not yet valid"
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return certificate + "it is invalid"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "it did not answer in time"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.As(err, new(*net.DNSError)):
		return "its host name is not known"
	}
	return "the connection failed or was interrupted"
}
