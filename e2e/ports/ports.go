// Package ports finds ports for programs that tests start.
package ports

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// reserved has the UDP ports of the ports that Free returned, which other test programs cannot
// reserve until this one ends.
var reserved struct {
	sync.Mutex
	ports []net.PacketConn
}

// Free returns a free port of 127.0.0.1 for a program that takes its port as a flag. The system
// assigns it neither to a program that asks for any port nor to a connection, and Free of no other
// test program returns it, so it is still free when the program starts, and when it starts again.
func Free() (string, error) {
	var last error
	for range 100 {
		port := strconv.Itoa(20000 + rand.IntN(10000)) // ephemeral ports begin at 32768
		address := net.JoinHostPort("127.0.0.1", port)
		reservation, err := net.ListenPacket("udp", address)
		if err != nil {
			last = err
			continue
		}
		reserved.Lock()
		reserved.ports = append(reserved.ports, reservation)
		reserved.Unlock()
		l, err := net.Listen("tcp", address)
		if err == nil {
			return port, l.Close()
		}
		last = err
	}
	return "", fmt.Errorf("looking for a free port: %w", last)
}
