package tcpproxy_test

import (
	"io"
	"net"
	"strings"
	"testing"

	"github.com/armature-dev/armature/builds/local/tcpproxy"
)

// What a client writes before it closes its side arrives, and so does the answer that
// follows; nobody behind the relay ends the connection.
func TestServe(t *testing.T) {
	listen := func() *net.TCPListener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l.(*net.TCPListener)
	}
	server, front, nowhere := listen(), listen(), listen()
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			text, _ := io.ReadAll(c) // until the client's side is closed
			_, _ = c.Write([]byte(strings.ToUpper(string(text))))
			_ = c.Close()
		}
	}()
	gone := listen()
	_ = gone.Close()
	for l, to := range map[net.Listener]net.Addr{front: server.Addr(), nowhere: gone.Addr()} {
		go func() {
			_ = tcpproxy.Serve(l, func() (net.Conn, error) { return net.Dial("tcp", to.String()) })
		}()
	}
	for l, want := range map[net.Listener]string{front: "HELLO", nowhere: ""} {
		c, err := net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte("hello"))
		_ = c.CloseWrite()
		if got, _ := io.ReadAll(c); string(got) != want {
			t.Errorf("%q, want %q", got, want)
		}
		_ = c.Close()
	}
}
