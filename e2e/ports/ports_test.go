package ports

import (
	"net"
	"runtime"
	"testing"
)

// Another test program, for which the UDP port is taken, does not get a port again.
func TestReserved(t *testing.T) {
	port, err := Free()
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	if other, err := net.ListenPacket("udp", net.JoinHostPort("127.0.0.1", port)); err == nil {
		_ = other.Close()
		t.Errorf("port %s is not reserved", port)
	}
}
