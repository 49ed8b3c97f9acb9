package controller

import (
	"net"
	"net/http"
	"path"
	"regexp"
	"strings"
	"time"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/armature-dev/armature/render/process"
)

var served = regexp.MustCompile(
	`^/externalartifact(/[a-z0-9]([a-z0-9.-]*[a-z0-9])?){2}/[0-9a-f]{64}\.tar\.gz$`)

// ServeHTTP serves archives: whole files by their name, nothing else. Their names
// contain their digests, so they never change.
func (s *Store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
	case !served.MatchString(r.URL.Path):
		http.NotFound(w, r)
	default:
		h.Set("Content-Type", "application/gzip")
		h.Set("Cache-Control", "private, max-age=31536000, immutable")
		h.Set("ETag", `"`+strings.TrimSuffix(path.Base(r.URL.Path), ".tar.gz")+`"`)
		http.ServeFileFS(w, r, s.root.FS(), strings.TrimPrefix(r.URL.Path, "/"))
	}
}

// maxConnections of the server of archives.
const maxConnections = 256

// server of archives. It keeps no connection: Flux's controllers make a new one for each fetch, and
// leave it idle for longer than a minute, so that those of the others would have to wait.
func (s *Store) server(l net.Listener) *manager.Server {
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second,
		WriteTimeout: 5 * time.Minute, MaxHeaderBytes: 16 << 10,
	}
	server.SetKeepAlivesEnabled(false)
	return &manager.Server{
		Name: "archives", Listener: process.Bounded(l, maxConnections),
		ShutdownTimeout: ptr.To(5 * time.Second), Server: server,
	}
}
