package answers

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

	maxDepth = 64 // of objects and lists in each other
)

// Metered counts what an answer takes as its bytes pass, before anything decodes
// them, and refuses what is beyond the limits. It reads JSON, and server-sent events,
// whose lines have JSON.
type Metered struct {
	io.Reader
	Context context.Context
	Memory  *Share
	// Decoding counts the memory that is free again once the answer is decoded. An answer may
	// consist of several bodies.
	Decoding *atomic.Int64
	// Most is what decoding may take, and Longest how many values an object or list may have;
	// 0 sets none.
	Most, Longest int64

	depth           int
	values          [maxDepth + 1]int64 // after the first one, by depth
	longest         int64
	quoted, escaped bool
	// broken is JSON with a control character in a string, where decoders differ on
	// what ends it. From there on, everything counts as if it were in no string.
	broken bool
}

func (m *Metered) Read(p []byte) (int, error) {
	n, err := m.Reader.Read(p)
	cost := m.scan(p[:n]) + int64(n)*byteCost
	if m.depth > maxDepth || m.Decoding.Add(cost) > m.Most ||
		m.Longest > 0 && m.longest >= m.Longest {
		return 0, ErrTooLarge
	}
	if short := m.Memory.Add(m.Context, cost); short != nil {
		return 0, short
	}
	return n, err
}

// Cost is what decoding a text takes.
func Cost(text []byte) int64 { return (&Metered{}).scan(text) + int64(len(text))*byteCost }

// scan returns the memory that objects, lists and values take. It stops at the depth that is too
// much.
func (m *Metered) scan(p []byte) (cost int64) {
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
			m.values[m.depth] = 0
		case '}', ']':
			m.depth = max(0, m.depth-1)
		case ',':
			cost += valueCost
			m.values[m.depth]++
			m.longest = max(m.longest, m.values[m.depth])
		}
	}
	return cost
}
