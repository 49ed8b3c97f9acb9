package answers

import (
	"context"
	"io"
	"sync/atomic"
)

// Upper bounds for the memory of decoding JSON, in bytes, measured with both decoders of answers:
// encoding/json and the MCP SDK's.
const (
	byteCost  = 12  // copies of each byte, until it is decoded and stored
	listCost  = 512 // an object or list, and its first value
	valueCost = 64  // each further value

	maxDepth = 64 // of nested objects and lists
)

// Metered counts the memory that decoding an answer needs while its bytes pass, before anything
// decodes them, and refuses answers beyond the limits. It reads JSON, and server-sent events, whose
// lines contain JSON.
type Metered struct {
	io.Reader
	Context context.Context
	Memory  *Share
	// Decoding counts the memory that is free again after the answer is decoded. An answer may
	// consist of several bodies.
	Decoding *atomic.Int64
	// Most is the maximum memory of decoding. Longest is the maximum number of values in an object
	// or list; 0 is no limit.
	Most, Longest int64

	depth           int
	values          [maxDepth + 1]int64 // after the first one, by depth
	longest         int64
	quoted, escaped bool
	// broken means that a string contains a control character, after which decoders disagree on its
	// end. From then on all bytes count as outside of strings.
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

// Cost returns the memory that decoding a text needs.
func Cost(text []byte) int64 { return (&Metered{}).scan(text) + int64(len(text))*byteCost }

// scan returns the memory that objects, lists and values need. It stops when the depth is exceeded.
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
