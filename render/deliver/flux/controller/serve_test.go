package controller

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/armature-dev/armature/functions/multi"
)

// Flux's controllers fetch each archive by a connection of its own, which they leave idle: more of
// them than the server takes do not keep others waiting.
func TestServeToManyFetchers(t *testing.T) {
	store, err := OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	digest := "sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
	if err := store.Put("team", "app", digest, []byte("foo")); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- store.server(listener).Start(ctx) }()
	url := "http://" + listener.Addr().String() + "/externalartifact/team/app/" +
		digest[len("sha256:"):] + ".tar.gz"
	for i := range maxConnections + 20 {
		transport := &http.Transport{}
		defer transport.CloseIdleConnections()
		client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
		response, err := client.Get(url)
		if err != nil {
			t.Fatalf("fetch %d: %v", i, err)
		}
		if response.StatusCode != http.StatusOK {
			t.Fatalf("fetch %d: %s", i, response.Status)
		}
		_, err = io.Copy(io.Discard, response.Body) // else the client closes the connection
		if err := multi.Errors(err, response.Body.Close()); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
