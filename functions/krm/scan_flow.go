package krm

import "bytes"

// flow reads the flow collection or flow scalar at p and returns the position
// after it.
func (s *scanner) flow(p int, i int32, depth int) int {
	if depth > maxDepth {
		return s.fail(p, tooDeep)
	}
	n := &s.nodes[i]
	n.start = int32(p)
	open := s.src[p]
	if open != '[' && open != '{' {
		return s.flowScalar(p, i)
	}
	closing := byte(']')
	n.kind, n.style = sequenceNode, flowStyle
	if open == '{' {
		closing, n.kind = '}', mappingNode
	}
	q := s.flowSpace(p + 1)
	for q >= 0 {
		if q >= s.end {
			return s.fail(p, "a bracket that is never closed")
		}
		if s.src[q] == closing {
			s.nodes[i].end = int32(q + 1)
			return q + 1
		}
		var child int32
		if open == '{' {
			end := s.flowKey(q)
			if end < 0 || end-q > maxKey {
				return s.fail(q, "a very long key")
			}
			child = s.add(i, q, end)
			if s.duplicate(i, child) {
				return s.fail(q, "a duplicate key")
			}
			q = s.flowSpace(end + 1)
		} else {
			child = s.add(i, q, q)
		}
		if q < 0 || q >= s.end {
			return s.fail(p, "a bracket that is never closed")
		}
		if q = s.flow(q, child, depth+1); q < 0 {
			return -1
		}
		if q = s.flowSpace(q); q < 0 || q >= s.end {
			return s.fail(p, "a bracket that is never closed")
		}
		switch s.src[q] {
		case ',':
			if q = s.flowSpace(q + 1); q >= 0 && q < s.end && s.src[q] == closing && open == '{' {
				return s.fail(q, "a trailing comma")
			}
		case closing:
		default:
			return s.fail(q, "an entry without a comma")
		}
	}
	return -1
}

func (s *scanner) flowSpace(p int) int {
	for p < s.end {
		switch s.src[p] {
		case '\n':
			if p++; s.in.indicator(p) {
				return s.fail(p, "a document marker inside a value")
			}
		case ' ', '\r', '\t':
			p++
		case '#':
			return s.fail(p, "a comment inside brackets")
		default:
			return p
		}
	}
	return p
}

// flowKey returns the end of the key at p, which a colon must follow without a space.
func (s *scanner) flowKey(p int) int {
	end, quoted := 0, s.src[p] == '"' || s.src[p] == '\''
	if quoted {
		if end = s.quoted(p, true); end > 0 && s.escaped(p, end) {
			return -1
		}
	} else {
		end = s.flowPlain(p)
	}
	if end <= 0 || end >= s.end || s.src[end] != ':' || !quoted && !s.in.blank(end+1) {
		return s.fail(p, "a key inside brackets that is not plain")
	}
	return end
}

func (s *scanner) flowScalar(p int, i int32) int {
	n := &s.nodes[i]
	n.kind = scalarNode
	var end int
	switch s.src[p] {
	case '"':
		n.style, end = doubleStyle, s.quoted(p, true)
	case '\'':
		n.style, end = singleStyle, s.quoted(p, true)
	default:
		n.style, end = plainStyle, s.flowPlain(p)
	}
	if end <= 0 {
		return s.fail(p, "a value inside brackets that is not on one line")
	}
	n.end = int32(end)
	return end
}

// flowPlain returns the end of a plain scalar inside brackets. It accepts fewer characters than
// YAML does.
func (s *scanner) flowPlain(p int) int {
	q := p
scan:
	for ; q < s.end; q++ {
		switch c := s.src[q]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '.',
			c == '/', c == '+':
		case c == '-' && (q > p || !s.in.blank(q+1)):
		case c == ' ' && q > p, bytes.IndexByte([]byte("$()=~^;<"), c) >= 0:
		case q > p && bytes.IndexByte([]byte("%@*!&|>"), c) >= 0:
		case c == ':' && q > p && !s.in.blank(q+1) &&
			!bytes.ContainsRune([]byte(",[]{}"), rune(s.src[q+1])):
		default:
			break scan
		}
	}
	for q > p && s.src[q-1] == ' ' {
		q--
	}
	if q == p {
		return s.fail(p, "an unusual value inside brackets")
	}
	return q
}
