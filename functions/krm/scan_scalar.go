package krm

import (
	"bytes"
	"strconv"
	"unicode/utf8"
)

// inline reads a scalar or a flow collection that starts at p.
func (s *scanner) inline(p int, i int32, parentCol int) int {
	n := &s.nodes[i]
	n.kind, n.start = scalarNode, int32(p)
	switch c := s.src[p]; c {
	case '"', '\'':
		end := s.quoted(p, false)
		if end < 0 {
			return -1
		}
		n.end, n.style = int32(end), singleStyle
		if c == '"' {
			n.style = doubleStyle
		}
		return s.rest(end)
	case '|', '>':
		return s.blockScalar(p, i, parentCol)
	case '[', '{':
		end := s.flow(p, i, 0)
		if end < 0 {
			return -1
		}
		return s.rest(end)
	case '&', '*', '!', '%', '@', '`', ',', ']', '}':
		return s.fail(p, "an anchor, alias, tag or reserved character")
	case '?', ':': // as in ::/0
		if s.in.blank(p+1) || s.src[p+1] == '\t' {
			return s.fail(p, "an anchor, alias, tag or reserved character")
		}
	case '-':
		if s.in.blank(p+1) || s.src[p+1] == '\t' {
			return s.fail(p, "a list item where a value should be")
		}
	case '\t':
		return s.fail(p, "a tab before a value")
	}
	return s.plain(p, i, parentCol)
}

// plain reads a plain scalar, which continues on all lines that are indented deeper than its
// collection.
func (s *scanner) plain(p int, i int32, parentCol int) int {
	n := &s.nodes[i]
	n.kind, n.style, n.start = scalarNode, plainStyle, int32(p)
	for {
		end, next := s.plainLine(p)
		if end < 0 {
			return -1
		}
		n.end = int32(end)
		p2, col2 := s.content(next)
		switch {
		case p2 < 0:
			return -1
		case p2 >= s.end || col2 <= parentCol:
			return next
		case s.src[end] == ' ' && s.src[s.in.skipSpaces(end)] == '#',
			bytes.IndexByte(s.src[next:p2], '#') >= 0:
			return s.fail(p2, "text after a commented value")
		}
		n.style = plainLinesStyle
		p = p2
	}
}

// plainLine returns the end of the plain text at p and the start of the next line.
func (s *scanner) plainLine(p int) (end, next int) {
	src := s.src[:s.end]
	q := s.in.stop(p)
	for ; q < len(src) && src[q] != '\n'; q = s.in.stop(q + 1) {
		if src[q] == ':' && (s.in.blank(q+1) || src[q+1] == '\t') {
			return s.fail(q, "a colon inside a plain value"), -1
		}
		if src[q] == '#' && (src[q-1] == ' ' || src[q-1] == '\t') {
			break
		}
	}
	if q < len(src) && src[q] == '\n' && src[q-1] > ' ' {
		return q, q + 1
	}
	end = q
	if q < len(src) && src[q] == '\n' && src[q-1] == '\r' {
		end--
	}
	for end > p && (src[end-1] == ' ' || src[end-1] == '\t') {
		if src[end-1] == '\t' {
			return s.fail(end-1, "a tab after a value"), -1
		}
		end--
	}
	return end, s.in.lineAfter(q)
}

// quoted returns the end of the quoted scalar at p, just past its closing quote. If oneLine is set,
// it returns 0 for a scalar that continues on further lines.
func (s *scanner) quoted(p int, oneLine bool) int {
	src := s.src[:s.end]
	quote := src[p]
	for q := p + 1; q < len(src); q++ {
		switch c := src[q]; {
		case c == quote:
			if quote == '\'' && q+1 < len(src) && src[q+1] == '\'' {
				q++
				continue
			}
			return q + 1
		case c == '\\' && quote == '"':
			q++
			if q < len(src) && !escape(src[q:]) {
				return s.fail(q, "an unknown escape")
			}
			if q >= len(src) || src[q] != '\n' {
				continue
			}
			fallthrough
		case c == '\n':
			if oneLine {
				return 0
			}
			if r := s.in.skipSpaces(q + 1); r < len(src) && src[r] == '\t' {
				return s.fail(r, "a tab in the indentation")
			}
			if s.in.indicator(q + 1) {
				return s.fail(q+1, "a document marker inside a value")
			}
		}
	}
	if oneLine {
		return 0
	}
	return s.fail(p, "a quote that is never closed")
}

// escape reports whether b starts with what may follow a backslash between
// double quotes.
func escape(b []byte) bool {
	digits := 0
	switch b[0] {
	case '0', 'a', 'b', 't', 'n', 'v', 'f', 'r', 'e', ' ', '"', '\\', 'N', '_', 'L', 'P', '\n':
		return true
	case 'x':
		digits = 2
	case 'u':
		digits = 4
	case 'U':
		digits = 8
	}
	if digits == 0 || len(b) <= digits {
		return false
	}
	code, err := strconv.ParseUint(string(b[1:1+digits]), 16, 32)
	return err == nil && utf8.ValidRune(rune(code)) // kyaml decodes surrogates
}

// blockScalar reads a literal or folded scalar whose header is at p.
func (s *scanner) blockScalar(p int, i int32, parentCol int) int {
	src := s.src[:s.end]
	n := &s.nodes[i]
	n.style = literalStyle
	if src[p] == '>' {
		n.style = foldedStyle
	}
	q, indent, chomp, keep, strip := p+1, 0, false, false, false
	for ; q < len(src); q++ {
		if c := src[q]; c >= '1' && c <= '9' && indent == 0 {
			indent = int(c-'0') + max(parentCol, 0)
		} else if (c == '-' || c == '+') && !chomp {
			chomp, keep, strip = true, c == '+', c == '-'
		} else {
			break
		}
	}
	next := s.rest(q)
	if next < 0 {
		return -1
	}
	end, blankIndent := q, 0
	for next < len(src) {
		r := s.in.skipSpaces(next)
		if s.in.lineEnd(r) {
			deeper := indent > 0 && r-next > indent // spaces that belong to the text
			if indent == 0 {
				blankIndent = max(blankIndent, r-next)
			}
			next = s.in.lineAfter(r)
			if deeper {
				end = next
			}
			continue
		}
		col := r - next
		if indent == 0 {
			if col <= parentCol {
				break
			}
			if src[r] == '\t' {
				return s.fail(r, "a tab in the indentation")
			}
			if blankIndent > col {
				return s.fail(r, "a block scalar that starts with deeper blank lines")
			}
			indent = col
		}
		if col < indent {
			if src[r] == '\t' {
				return s.fail(r, "a tab in the indentation")
			}
			break
		}
		next = s.in.lineAfter(r)
		end = next
	}
	if end == len(src) && end > q && src[end-1] != '\n' && !strip {
		// A line after the scalar would add the missing line feed to its text.
		return s.fail(p, "a block scalar whose last line does not end")
	}
	if keep { // blank lines at the end belong to the text
		if end == q || next == len(src) && src[next-1] != '\n' {
			return s.fail(p, "a block scalar of blank lines")
		}
		end = next
	}
	n.end, n.col = int32(s.in.trimBreak(end)), int32(indent)
	if end == q {
		n.end = int32(q)
		return s.in.lineAfter(q)
	}
	return end
}
