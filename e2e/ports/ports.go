// Package ports finds ports for programs that tests start.
package ports

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// reserved holds the UDP ports of the ports that Free returned open until this test program ends,
// so that no other one reserves them.
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
		l, err := net.Listen("tcp", address)
		if err == nil {
			reserved.Lock()
			defer reserved.Unlock()
			reserved.ports = append(reserved.ports, reservation)
			return port, l.Close()
		}
		last = errors.Join(err, reservation.Close())
	}
	return "", fmt.Errorf("looking for a free port: %w", last)
}
