package webhook

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// maxBody of a delivery, in bytes. GitHub sends up to 25 MB for the largest pushes, which
	// the next poll finds.
	maxBody = 3 << 20
	// maxAtOnce deliveries are read; they take at most 96 MiB.
	maxAtOnce = 32
)

// Receiver takes deliveries at /hook/NAMESPACE/SECRET.
type Receiver struct {
	// Secrets of a hook; none for an unknown one.
	Secrets func(namespace, name string) [][]byte
	// Wake is called for each delivery that is signed and concerns a build.
	Wake func(namespace, name string)
	// Counts deliveries by verdict.
	Counts *prometheus.CounterVec

	slots chan struct{}
}

// NewCounts gives the metric of deliveries.
func NewCounts() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "armature_webhook_deliveries_total",
		Help: "Deliveries of webhooks, by verdict: accepted, ignored (not about a branch, a tag or a pull request), refused (wrong signature or path), too_large, busy."}, []string{"verdict"})
}

// Server that takes deliveries on an address.
func (r *Receiver) Server(address string) *http.Server {
	r.slots = make(chan struct{}, maxAtOnce)
	return &http.Server{Addr: address, Handler: r, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second,
		WriteTimeout: 40 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10}
}

// ServeHTTP answers 202 for what was signed, before anything is done about it.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	status, verdict := r.judge(w, request)
	r.Counts.WithLabelValues(verdict).Inc()
	if status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "5")
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	http.Error(w, http.StatusText(status), status)
}

func (r *Receiver) judge(w http.ResponseWriter, request *http.Request) (status int, verdict string) {
	if request.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return http.StatusMethodNotAllowed, "refused"
	}
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	default:
		return http.StatusTooManyRequests, "busy"
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, request.Body, maxBody))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return http.StatusRequestEntityTooLarge, "too_large"
	} else if err != nil {
		return http.StatusBadRequest, "refused"
	}
	namespace, name, ok := hook(request.URL.Path)
	secrets := r.Secrets(namespace, name)
	if len(secrets) == 0 { // an unknown path takes as long as a wrong signature
		secrets, ok = [][]byte{[]byte("no such hook is known")}, false
	}
	if !Verify(request.Header, body, time.Now(), secrets...) || !ok {
		return http.StatusUnauthorized, "refused"
	}
	if !Concerns(request.Header) {
		return http.StatusOK, "ignored"
	}
	r.Wake(namespace, name)
	return http.StatusAccepted, "accepted"
}

// hook of a path.
func hook(path string) (namespace, name string, ok bool) {
	rest, ok := strings.CutPrefix(path, "/hook/")
	namespace, name, both := strings.Cut(rest, "/")
	return namespace, name, ok && both && namespace != "" && name != "" && !strings.Contains(name, "/")
}
