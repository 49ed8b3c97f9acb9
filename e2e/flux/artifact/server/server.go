// Package server serves the stored archives.
package server

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path"
	"strings"
	"time"

	"github.com/fluxcd/pkg/artifact/config"
)

// Start serves files of the storage that is open, and no listings, until ctx ends. The
// root answers with nothing: Flux's manifests ask it whether the controller is ready.
func Start(ctx context.Context, o *config.Options) error {
	root, err := os.OpenRoot(o.StoragePath)
	if err != nil {
		return err
	}
	defer root.Close()
	files := root.FS()
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, WriteTimeout: 5 * time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			return
		}
		file := strings.TrimPrefix(path.Clean("/"+r.URL.Path), "/")
		if info, err := root.Stat(file); err != nil || !info.Mode().IsRegular() {
			http.NotFound(w, r)
			return
		}
		http.ServeFileFS(w, r, files, file)
	})}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(o.Listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
