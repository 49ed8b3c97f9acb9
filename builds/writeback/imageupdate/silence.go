package imageupdate

import (
	"context"
	"net"
	"time"

	"github.com/armature-dev/armature/builds/source/gitremote"
)

// impatient opens connections that end when nothing comes for a while; nil stays the network as
// it is.
func impatient(dial gitremote.Dial, silence time.Duration) gitremote.Dial {
	if dial == nil {
		return nil
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &connection{Conn: c, silence: silence}, nil
	}
}

// connection whose reads end after a silence.
type connection struct {
	net.Conn
	silence time.Duration
}

func (c *connection) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.silence)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}
