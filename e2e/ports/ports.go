// Package ports finds ports for programs that tests start.
package ports

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Free returns a free port of 127.0.0.1 for a program that takes its port as a flag. The system
// assigns it neither to a program that asks for any port nor to a connection, so it is still free
// when the program starts, and when it starts again.
func Free() (string, error) {
	var last error
	for range 100 {
		port := strconv.Itoa(20000 + rand.IntN(10000)) // ephemeral ports begin at 32768
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
		if err == nil {
			return port, l.Close()
		}
		last = err
	}
	return "", fmt.Errorf("looking for a free port: %w", last)
}
