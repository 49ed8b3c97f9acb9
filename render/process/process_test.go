package process

import (
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A server has no more connections than its listener is bounded to, and goes on when one ends.
func TestConnectionsAreBounded(t *testing.T) {
	const most = 8
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	began := make(chan net.Conn, 100)
	server := &http.Server{ReadHeaderTimeout: time.Hour, Handler: http.NotFoundHandler(),
		ConnState: func(c net.Conn, s http.ConnState) {
			if s == http.StateNew {
				began <- c
			}
		}}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(Bounded(plain, most)) }()
	var silent []net.Conn
	for range 3 * most { // the system accepts them, the server does not
		c, err := net.Dial("tcp", plain.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		silent = append(silent, c)
	}
	take := func() {
		t.Helper()
		select {
		case <-began:
		case <-time.After(time.Minute):
			t.Fatal("no further connection is served")
		}
	}
	for range most {
		take()
	}
	select {
	case <-began:
		t.Fatalf("more than %d connections are served", most)
	case <-time.After(100 * time.Millisecond): // the more there are, the sooner it fails
	}
	for _, c := range silent[:most] {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		take()
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != http.ErrServerClosed {
		t.Error(err)
	}
	for _, c := range silent[most:] {
		_, _ = io.Copy(io.Discard, c) // it was closed
	}
}

// Every server that others reach bounds its connections; that of a local build is for its own run.
func TestServersAreBounded(t *testing.T) {
	root := filepath.Join("..", "..")
	serves := regexp.MustCompile(
		`[sS]erver\.(Serve|ServeTLS|ListenAndServe|ListenAndServeTLS)\(|manager\.Server\{`)
	found := 0
	for _, folder := range []string{"builds", "catalog", "cmd", "render"} {
		err := filepath.WalkDir(filepath.Join(root, folder),
			func(name string, e os.DirEntry, err error) error {
				if err != nil || e.IsDir() || !strings.HasSuffix(name, ".go") ||
					strings.HasSuffix(name, "_test.go") ||
					strings.HasSuffix(filepath.ToSlash(name), "builds/local/servers.go") {
					return err
				}
				text, err := os.ReadFile(name)
				if serves.Match(text) {
					if found++; !strings.Contains(string(text), "process.Bounded(") {
						t.Errorf("%s serves any number of connections: use process.Bounded", name)
					}
				}
				return err
			})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 4 {
		t.Errorf("%d servers are found: those of webhooks, the catalog, the console and archives "+
			"are expected", found)
	}
}
