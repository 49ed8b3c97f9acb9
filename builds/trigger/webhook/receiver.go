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
	// maxBody of a delivery, in bytes. GitHub sends up to 25 MB for the largest pushes, which
	// the next poll finds.
	maxBody = 3 << 20
	// maxMemory of the deliveries that are read, in bytes, and what one takes at first.
	maxMemory, firstMemory = 96 << 20, 4 << 10
)

// errBusy: other deliveries take the memory.
var errBusy = errors.New("too many deliveries are read at the moment")

// Receiver takes deliveries at /hook/NAMESPACE/SECRET.
type Receiver struct {
	// Known reports whether a build names a hook, without asking anybody.
	Known func(hook types.NamespacedName) bool
	// Secrets of a hook that is known, for a delivery that has a signature.
	Secrets func(ctx context.Context, hook types.NamespacedName) [][]byte
	// Wake is called for each delivery that is signed and concerns a build, with its traceparent.
	Wake func(hook types.NamespacedName, trace string)
	// Counts deliveries by verdict.
	Counts *prometheus.CounterVec
	// Traces of builds; nil makes none.
	Traces *traces.Tracer

	memory *semaphore.Weighted
	accept http.Handler
}

// NewCounts returns the metric of deliveries.
func NewCounts() *prometheus.CounterVec {
	counts := new(metrics.Set).Counter("armature_webhook_deliveries_total")
	for _, verdict := range []string{"accepted", "ignored", "refused", "too_large", "busy"} {
		counts.WithLabelValues(verdict) // else the first one is no increase
	}
	return counts
}

// Server that takes deliveries on an address.
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

// ServeHTTP answers 202 for what was signed, before anything is done about it.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	arrived := time.Now()
	status, verdict := r.judge(w, request)
	r.Counts.WithLabelValues(verdict).Inc()
	if status == http.StatusAccepted { // strangers make no spans
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
	// What costs nothing comes first: strangers take no memory, and ask nobody.
	named, ok := hook(request.URL.Path)
	if !ok || !IsSigned(request.Header) || !r.Known(named) {
		return http.StatusUnauthorized, "refused"
	}
	body, held, err := r.read(http.MaxBytesReader(w, request.Body, maxBody))
	defer r.memory.Release(held)
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

// read a body. Its memory is taken as it arrives, so that who sends nothing takes none of it.
func (r *Receiver) read(body io.Reader) (text []byte, held int64, err error) {
	for {
		if len(text) == cap(text) {
			more := max(firstMemory, cap(text))
			if !r.memory.TryAcquire(int64(more)) {
				return nil, held, errBusy
			}
			held += int64(more)
			text = append(make([]byte, 0, cap(text)+more), text...)
		}
		n, err := body.Read(text[len(text):cap(text)])
		text = text[:len(text)+n]
		if errors.Is(err, io.EOF) {
			return text, held, nil
		} else if err != nil {
			return nil, held, err
		}
	}
}

// hook of a path.
func hook(path string) (named types.NamespacedName, ok bool) {
	parts := strings.Split(path, "/")
	if len(parts) != 4 || parts[0] != "" || parts[1] != "hook" || parts[2] == "" || parts[3] == "" {
		return named, false
	}
	return types.NamespacedName{Namespace: parts[2], Name: parts[3]}, true
}
