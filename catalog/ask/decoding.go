package ask

import (
	"context"
	"io"
	"sync/atomic"
)

// What decoding JSON takes at most, in bytes of memory: measured with both decoders
// that read answers, encoding/json and the MCP SDK's.
const (
	byteCost  = 12  // copies of each byte, until it is decoded and stored
	listCost  = 512 // an object or list, and its first value
	valueCost = 64  // each further value
	itemCost  = 256 // a tool, resource or prompt that was decoded, beside its text

	// MaxDecoding is what one answer may take; a text without structure may have 2.6 MiB.
	MaxDecoding = 32 << 20
	maxDepth    = 64 // of objects and lists in each other
)

// metered counts what an answer takes as its bytes pass, before anything decodes
// them, and refuses what is beyond the limits. It reads JSON, and server-sent events,
// whose lines have JSON.
type metered struct {
	io.Reader
	ctx    context.Context
	memory *Share
	// decoding counts the memory that is free again once the answer is decoded. An answer may
	// consist of several bodies.
	decoding *atomic.Int64

	depth           int
	quoted, escaped bool
	// broken is JSON with a control character in a string, where decoders differ on
	// what ends it. From there on, everything counts as if it were in no string.
	broken bool
}

func (m *metered) Read(p []byte) (int, error) {
	n, err := m.Reader.Read(p)
	cost := m.scan(p[:n]) + int64(n)*byteCost
	if m.depth > maxDepth || m.decoding.Add(cost) > MaxDecoding {
		return 0, ErrTooLarge
	}
	if short := m.memory.Add(m.ctx, cost); short != nil {
		return 0, short
	}
	return n, err
}

// DecodingCost is what decoding a text takes.
func DecodingCost(text []byte) int64 { return (&metered{}).scan(text) + int64(len(text))*byteCost }

// scan gives what objects, lists and values take. It leaves off at the depth that is
// too much.
func (m *metered) scan(p []byte) (cost int64) {
	for _, c := range p {
		if m.quoted {
			switch {
			case c < ' ':
				m.broken, m.quoted = true, false
			case m.escaped:
				m.escaped = false
			case c == '\\':
				m.escaped = true
			case c == '"':
				m.quoted = false
			}
			continue
		}
		switch c {
		case '"':
			m.quoted = !m.broken
		case '{', '[':
			cost += listCost
			if m.depth++; m.depth > maxDepth {
				return cost
			}
		case '}', ']':
			m.depth = max(0, m.depth-1)
		case ',':
			cost += valueCost
		}
	}
	return cost
}
