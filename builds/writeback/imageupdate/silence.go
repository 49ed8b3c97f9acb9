package imageupdate

import (
	"context"
	"net"
	"sync"
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

// connection whose reads end after a silence, or at the deadline that was set.
type connection struct {
	net.Conn
	silence time.Duration

	mu       sync.Mutex
	deadline time.Time
}

func (c *connection) Read(p []byte) (int, error) {
	c.mu.Lock()
	end := time.Now().Add(c.silence)
	if !c.deadline.IsZero() && c.deadline.Before(end) {
		end = c.deadline
	}
	err := c.Conn.SetReadDeadline(end)
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func (c *connection) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	return c.Conn.SetReadDeadline(t)
}

func (c *connection) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}
