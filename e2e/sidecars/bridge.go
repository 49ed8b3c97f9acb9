package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/armature-dev/armature/e2e/sidecars/authbridge"
)

// authBridge is the container of the profile authbridge in its modes proxy-sidecar
// and lite. A key of the configuration that it does not know ends it.
func authBridge() error {
	if len(os.Args) != 4 || os.Args[2] != "--config" {
		return fmt.Errorf("the arguments are %q", os.Args[2:])
	}
	text, err := os.ReadFile(os.Args[3])
	if err != nil {
		return err
	}
	config, err := authbridge.Read(text, os.LookupEnv)
	if err != nil {
		return fmt.Errorf("%s: %w", os.Args[3], err)
	}
	if err := identify(config); err != nil {
		return err
	}
	backend, err := url.Parse(config.Listener.ReverseProxyBackend)
	if err != nil {
		return err
	}
	for _, address := range config.Addresses() {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		var handler http.Handler = http.NotFoundHandler()
		if address == config.Listener.ReverseProxyAddr {
			handler = inbound(config.Validation, httputil.NewSingleHostReverseProxy(backend))
		}
		go func() { log.Fatal(http.Serve(listener, handler)) }()
	}
	for _, probe := range []string{"/healthz", "/readyz"} {
		http.HandleFunc(probe, func(http.ResponseWriter, *http.Request) {})
	}
	return serve(":9091")
}

// identify looks whether the Workload API is there, and writes where SVIDs go.
func identify(config *authbridge.Config) error {
	if config.SPIFFE == nil {
		return nil
	}
	api, err := net.Dial("unix", strings.TrimPrefix(config.SPIFFE.Socket, "unix://"))
	if err != nil {
		return err
	}
	api.Close()
	return os.WriteFile(filepath.Join(config.SPIFFE.MirrorDir, "svid.pem"), nil, 0o600)
}

// inbound lets through what needs no token. Tokens are refused, for nobody issues
// any here.
func inbound(validation *authbridge.Validation, agent http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, pattern := range validation.BypassPaths {
			if found, _ := path.Match(pattern, r.URL.Path); found {
				agent.ServeHTTP(w, r)
				return
			}
		}
		http.Error(w, "no valid token", http.StatusUnauthorized)
	})
}
