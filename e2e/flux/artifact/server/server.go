// Package server serves the stored archives.
package server

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/fluxcd/pkg/artifact/config"
)

// Start serves the files of the storage that is open, until ctx ends.
func Start(ctx context.Context, o *config.Options) error {
	server := &http.Server{Handler: http.FileServer(http.Dir(o.StoragePath)),
		ReadHeaderTimeout: 10 * time.Second, WriteTimeout: 5 * time.Minute}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(o.Listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
