package trigger

import (
	"context"
	"crypto/tls"
	"net"
	"path/filepath"

	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
)

// listen on an address; with a folder of a certificate by TLS, which is read again when the
// Secret behind it changes.
func listen(ctx context.Context, address, certDir string) (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil || certDir == "" {
		return listener, err
	}
	watcher, err := certwatcher.New(filepath.Join(certDir, "tls.crt"), filepath.Join(certDir, "tls.key"))
	if err != nil {
		_ = listener.Close()
		return nil, err
	}
	go func() { _ = watcher.Start(ctx) }() // it ends with ctx
	return tls.NewListener(listener, &tls.Config{GetCertificate: watcher.GetCertificate, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}), nil
}
