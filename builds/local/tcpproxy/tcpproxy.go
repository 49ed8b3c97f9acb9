// Package tcpproxy passes connections on to another address.
package tcpproxy

import (
	"io"
	"net"
)

// Serve passes each connection of a listener on to one that dial makes, until the listener
// is closed. A client whose connection cannot be passed on sees it close.
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
