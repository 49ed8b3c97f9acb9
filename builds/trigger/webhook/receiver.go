package webhook

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/builds/controller/traces"
	"github.com/armature-dev/armature/render/process/metrics"
)

const (
	// maxBody is the largest body of a delivery, in bytes. GitHub sends up to 25 MB for the largest
	// pushes, which the next poll finds.
	maxBody = 3 << 20
	// maxMemory bounds the memory of all deliveries that are being read, in bytes. firstMemory is
	// the first buffer of one delivery.
	maxMemory, firstMemory = 96 << 20, 4 << 10
)

// errBusy reports that other deliveries use the memory.
var errBusy = errors.New("too many deliveries are read at the moment")

// Receiver accepts deliveries at /hook/NAMESPACE/SECRET.
type Receiver struct {
	// Known reports whether a build names a hook, without a request.
	Known func(hook types.NamespacedName) bool
	// Secrets returns the secrets of a known hook. It is called only for deliveries with a
	// signature.
	Secrets func(ctx context.Context, hook types.NamespacedName) [][]byte
	// Wake is called with the traceparent of each valid delivery that concerns a build.
	Wake func(hook types.NamespacedName, trace string)
	// Counts counts deliveries by verdict.
	Counts *prometheus.CounterVec
	// Traces records the traces of builds. It may be nil.
	Traces *traces.Tracer

	memory *semaphore.Weighted
	accept http.Handler
}

// NewCounts returns the metric of deliveries.
func NewCounts() *prometheus.CounterVec {
	counts := new(metrics.Set).Counter("armature_webhook_deliveries_total")
	for _, verdict := range []string{"accepted", "ignored", "refused", "too_large", "busy"} {
		counts.WithLabelValues(verdict) // from 0, so that the first one is an increase
	}
	return counts
}

// Server returns a server that accepts deliveries on an address.
func (r *Receiver) Server(address string) *http.Server {
	r.memory = semaphore.NewWeighted(maxMemory)
	r.accept = r.Traces.Handler("webhook",
		http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
			named, _ := hook(request.URL.Path)
			r.Wake(named, traces.Of(request.Context()))
			answer(w, http.StatusAccepted)
		}))
	return &http.Server{Addr: address, Handler: r, ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout: 30 * time.Second, WriteTimeout: 40 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 64 << 10}
}

// ServeHTTP answers 202 for a signed delivery, before it has any effect.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	arrived := time.Now()
	status, verdict := r.judge(w, request)
	r.Counts.WithLabelValues(verdict).Inc()
	if status == http.StatusAccepted { // only authenticated senders may create spans
		r.accept.ServeHTTP(w, request.WithContext(traces.Since(request.Context(), arrived, "")))
		return
	}
	answer(w, status)
}

func answer(w http.ResponseWriter, status int) {
	if status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "5")
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	http.Error(w, http.StatusText(status), status)
}

func (r *Receiver) judge(w http.ResponseWriter,
	request *http.Request) (status int, verdict string) {
	if request.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return http.StatusMethodNotAllowed, "refused"
	}
	// The free checks come first, so that an unknown sender causes no allocation and no request.
	named, ok := hook(request.URL.Path)
	if !ok || !IsSigned(request.Header) || !r.Known(named) {
		return http.StatusUnauthorized, "refused"
	}
	body, acquired, err := r.read(http.MaxBytesReader(w, request.Body, maxBody))
	defer r.memory.Release(acquired)
	tooLarge := (*http.MaxBytesError)(nil)
	switch {
	case errors.As(err, &tooLarge):
		return http.StatusRequestEntityTooLarge, "too_large"
	case errors.Is(err, errBusy):
		return http.StatusTooManyRequests, "busy"
	case err != nil:
		return http.StatusBadRequest, "refused"
	}
	secrets := r.Secrets(request.Context(), named)
	if !Verify(request.Header, body, time.Now(), secrets...) {
		return http.StatusUnauthorized, "refused"
	}
	if !Concerns(request.Header) {
		return http.StatusOK, "ignored"
	}
	return http.StatusAccepted, "accepted"
}

// read reads a body. It acquires memory as the body arrives, so that a slow sender holds little,
// and returns how much the caller has to release.
func (r *Receiver) read(body io.Reader) (text []byte, acquired int64, err error) {
	for {
		if len(text) == cap(text) {
			more := max(firstMemory, cap(text))
			if !r.memory.TryAcquire(int64(more)) {
				return nil, acquired, errBusy
			}
			acquired += int64(more)
			text = append(make([]byte, 0, cap(text)+more), text...)
		}
		n, err := body.Read(text[len(text):cap(text)])
		text = text[:len(text)+n]
		if errors.Is(err, io.EOF) {
			return text, acquired, nil
		} else if err != nil {
			return nil, acquired, err
		}
	}
}

// hook returns the hook that a path names.
func hook(path string) (named types.NamespacedName, ok bool) {
	parts := strings.Split(path, "/")
	if len(parts) != 4 || parts[0] != "" || parts[1] != "hook" || parts[2] == "" || parts[3] == "" {
		return named, false
	}
	return types.NamespacedName{Namespace: parts[2], Name: parts[3]}, true
}
