// Package tcpproxy forwards connections to another address.
package tcpproxy

import (
	"io"
	"net"
)

// Serve forwards each connection of a listener to a connection that dial opens, until the listener
// is closed. If dial fails, it closes the connection of the client.
func Serve(listener net.Listener, dial func() (net.Conn, error)) error {
	for {
		from, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer from.Close()
			to, err := dial()
			if err != nil {
				return
			}
			defer to.Close()
			go func() {
				_, _ = io.Copy(to, from)
				if half, ok := to.(interface{ CloseWrite() error }); ok {
					_ = half.CloseWrite()
				} else {
					_ = to.Close()
				}
			}()
			_, _ = io.Copy(from, to)
		}()
	}
}
