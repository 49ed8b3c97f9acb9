package krm

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
	"strconv"
	"unicode/utf8"
)

// The scanner reads the YAML that people write in Kubernetes manifests into a
// tree of byte positions, so that an edit can splice the text and leave the
// rest of it alone. It accepts only what it is certain of. Anchors, aliases,
// tags, directives, merge keys, complex keys, tabs in indentation, comments
// inside flow collections and everything malformed make it give up: such text
// goes through kyaml, which stays the authority on what YAML means.

type nodeKind uint8

const (
	nullNode nodeKind = iota
	scalarNode
	mappingNode
	sequenceNode
)

type nodeStyle uint8

const (
	blockStyle nodeStyle = iota // of collections
	flowStyle                   // of collections
	plainStyle
	plainLinesStyle // a plain scalar on several lines
	singleStyle
	doubleStyle
	literalStyle
	foldedStyle
)

// node is a value with its key. All positions are offsets into tree.src.
type node struct {
	kind  nodeKind
	style nodeStyle
	// parent, first, last and next link the tree; 0 is none, as node 0 is the root.
	parent, first, last, next int32
	// keyStart and keyEnd span the key as written in a mapping, the dash in a
	// block sequence; equal in a flow sequence.
	keyStart, keyEnd int32
	// start and end span the value as written; of a null, both are after the colon or dash.
	start, end int32
	// col is the column of a block collection's entries, and of a block scalar's text.
	col int32
	// sum is the key's, which is enough to distinguish most keys.
	sum uint32
}

// tree is one document, or one item of a list, as the scanner read it.
type tree struct {
	src   []byte
	nodes []node
	// Places that every function asks for: 0 as long as nobody has, -1 for none.
	metadata, annotations int32
	pod                   int32 // of the pod template, at podTemplates[podAt]
	podAt                 int8
}

const (
	maxDepth = 100
	maxKey   = 1000 // YAML allows 1,024 characters
)

// scanner fills a tree. A position of -1 means that it gave up, at badAt for
// the reason bad.
type scanner struct {
	tree
	end  int
	line int // start of the line that is being read
	seen seen

	bad   string
	badAt int
	depth int
}

// seen is what content found last. Every collection that ends before a line asks
// for the same.
type seen struct{ from, pos, col int }

// scan reads src[from:to] into t, reusing its memory. The text starts at the
// beginning of a line; where dash is set, that line starts with the dash of a
// list item. The reason is empty when the scanner is certain.
func (t *tree) scan(src []byte, from, to int, dash bool) (reason string, at int) {
	s := scanner{tree: tree{src: src, nodes: t.nodes[:0]}, end: to, seen: seen{from: -1}}
	s.nodes = append(s.nodes, node{})
	s.document(from, dash)
	*t = s.tree
	return s.bad, s.badAt
}

func (s *scanner) document(from int, dash bool) {
	p, col := s.content(from)
	if dash && p >= 0 && p < s.end {
		p = s.skipSpaces(p + 1)
		col = p - s.line
		if s.lineEnd(p) || s.src[p] == '#' { // kpt puts an item's comment there
			p, col = s.content(s.lineAfter(p))
		}
	}
	if p < 0 || p >= s.end {
		return // empty: the root stays null
	}
	next := s.block(p, col, 0, -1)
	if next < 0 {
		return
	}
	if s.nodes[0].kind == scalarNode {
		s.fail(p, "a document that is a single value")
		return
	}
	if p, _ = s.content(next); p >= 0 && p < s.end {
		s.fail(p, "text after the end of the document")
	}
}

func (s *scanner) fail(at int, reason string) int {
	if s.bad == "" {
		s.bad, s.badAt = reason, at
	}
	return -1
}

func (s *scanner) add(parent int32, keyStart, keyEnd int) int32 {
	i := int32(len(s.nodes))
	if len(s.nodes) == cap(s.nodes) {
		s.nodes = slices.Grow(s.nodes, 1)
	}
	s.nodes = s.nodes[:i+1]
	s.nodes[i] = node{parent: parent, keyStart: int32(keyStart), keyEnd: int32(keyEnd)}
	n := &s.nodes[parent]
	if n.first == 0 {
		n.first = i
	} else {
		s.nodes[n.last].next = i
	}
	n.last = i
	return i
}

// content finds the first character that is neither blank nor comment, from
// the start of a line on.
func (s *scanner) content(p int) (pos, col int) {
	if p == s.seen.from {
		return s.seen.pos, s.seen.col
	}
	return s.look(p)
}

func (s *scanner) look(p int) (pos, col int) {
	pos, col = s.find(p)
	s.seen = seen{p, pos, col}
	return pos, col
}

func (s *scanner) find(p int) (pos, col int) {
	for p < s.end {
		q := s.skipSpaces(p)
		if q == s.end {
			return s.end, -1
		}
		switch s.src[q] {
		case '\n':
			p = q + 1
		case '\r':
			p = q + 2 // valid() saw to it that a line feed follows
		case '#':
			p = s.lineAfter(q)
		case '\t':
			return s.fail(q, "a tab in the indentation"), -1
		default:
			s.line = p
			return q, q - p
		}
	}
	return s.end, -1
}

func (s *scanner) lineAfter(p int) int {
	if p < s.end && s.src[p] == '\n' {
		return p + 1
	}
	if i := bytes.IndexByte(s.src[p:s.end], '\n'); i >= 0 {
		return p + i + 1
	}
	return s.end
}

func (s *scanner) skipSpaces(p int) int {
	src := s.src[:s.end]
	for p+8 <= len(src) {
		if other := binary.LittleEndian.Uint64(src[p:]) ^ ' '*ones; other != 0 {
			return p + bits.TrailingZeros64(other)/8
		}
		p += 8
	}
	for p < len(src) && src[p] == ' ' {
		p++
	}
	return p
}

// blank reports whether p is a space, a line break or the end.
func (s *scanner) blank(p int) bool {
	return p >= s.end || s.src[p] == ' ' || s.src[p] == '\n' || s.src[p] == '\r'
}

func (s *scanner) lineEnd(p int) bool {
	return p >= s.end || s.src[p] == '\n' || s.src[p] == '\r'
}

// rest demands that nothing but a comment follows a value, and gives the next line.
func (s *scanner) rest(p int) int {
	q := s.skipSpaces(p)
	switch {
	case s.lineEnd(q):
		return s.lineAfter(q)
	case s.src[q] == '#' && q > p:
		return s.lineAfter(q)
	}
	return s.fail(q, "text after a value")
}

// block reads the value at p, in column col, into node i. The value belongs to
// a collection in column parentCol. All block readers give the start of the
// line that follows.
func (s *scanner) block(p, col int, i int32, parentCol int) int {
	if s.depth++; s.depth > maxDepth {
		return s.fail(p, "deeper than 100 levels")
	}
	next := -1
	if s.src[p] == '-' && s.blank(p+1) {
		next = s.sequence(p, col, i)
	} else if end := s.key(p); end > 0 {
		next = s.mapping(p, end, col, i)
	} else if s.bad == "" {
		next = s.inline(p, i, parentCol)
	}
	s.depth--
	return next
}

// key gives the end of the mapping key at p, or 0 where p starts no key.
func (s *scanner) key(p int) int {
	if !letter(s.src[p]) {
		if end, known := s.oddKey(p); known {
			return end
		}
	}
	for q := s.stop(p); q < s.end && s.src[q] != '\n'; q = s.stop(q + 1) {
		switch s.src[q] {
		case ':':
			if s.blank(q + 1) {
				if s.src[q-1] == ' ' || s.src[q-1] == '\t' {
					s.fail(q, "a space before the colon of a key")
					return 0
				}
				return q
			}
			if s.src[q+1] == '\t' {
				s.fail(q, "a tab after a colon")
				return 0
			}
		case '#':
			if s.src[q-1] == ' ' || s.src[q-1] == '\t' {
				return 0
			}
		}
	}
	return 0
}

// oddKey is key for what does not start with a letter. known is false where it
// may be a plain key all the same.
func (s *scanner) oddKey(p int) (end int, known bool) {
	src := s.src[:s.end]
	if p == s.line && (bytes.HasPrefix(src[p:], []byte("---")) || bytes.HasPrefix(src[p:], []byte("..."))) {
		s.fail(p, "a document marker with text")
		return 0, true
	}
	switch src[p] {
	case '"', '\'':
		end := s.quoted(p, true)
		if end <= 0 {
			return 0, true
		}
		q := s.skipSpaces(end)
		if q < s.end && src[q] == ':' && s.blank(q+1) {
			if q != end {
				s.fail(q, "a space before the colon of a key")
				return 0, true
			}
			return end, true
		}
		return 0, true
	case '&', '*', '!', '%', '@', '`':
		s.fail(p, "an anchor, alias, tag or reserved character")
		return 0, true
	case '[', '{', '|', '>', '#', ',', ']', '}':
		return 0, true
	case '-':
		if s.blank(p + 1) {
			return 0, true
		}
		if src[p+1] == '\t' {
			s.fail(p, "a tab after a dash")
			return 0, true
		}
	case '?', ':':
		if s.blank(p+1) || src[p+1] == '\t' {
			s.fail(p, "a complex key")
			return 0, true
		}
	case '<':
		if p+2 < s.end && src[p+1] == '<' && src[p+2] == ':' {
			s.fail(p, "a merge key")
			return 0, true
		}
	}
	return 0, false
}

func letter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// stop gives the next place, or s.end, where plain text may end: at a colon, a
// number sign or a line feed. It stops at some other characters as well.
func (s *scanner) stop(p int) int {
	src := s.src[:s.end]
	for ; p+8 <= len(src); p += 8 {
		x := binary.LittleEndian.Uint64(src[p:])
		colon, number := (x|'0'*ones)^':'*ones, x^'#'*ones // a line feed with the bits of '0' is a colon
		if hit := ((colon-ones)&^colon | (number-ones)&^number) & tops; hit != 0 {
			return p + bits.TrailingZeros64(hit)/8
		}
	}
	for p < len(src) && src[p] != ':' && src[p] != '#' && src[p] != '\n' {
		p++
	}
	return p
}

func (s *scanner) mapping(p, keyEnd, col int, i int32) int {
	n := &s.nodes[i]
	n.kind, n.style, n.col, n.start = mappingNode, blockStyle, int32(col), int32(p)
	for {
		if keyEnd-p > maxKey {
			return s.fail(p, "a very long key")
		}
		child := s.add(i, p, keyEnd)
		if s.duplicate(i, child) {
			return s.fail(p, "a duplicate key")
		}
		q := keyEnd + 1
		if q < s.end && s.src[q] == ' ' {
			q++
		}
		var next int
		if q < s.end && letter(s.src[q]) { // most values
			next = s.plain(q, child, col)
		} else if q = s.skipSpaces(q); s.lineEnd(q) || s.src[q] == '#' {
			next = s.lineAfter(q)
			p2, col2 := s.content(next)
			switch {
			case p2 < 0:
				return -1
			case p2 < s.end && col2 > col:
				next = s.block(p2, col2, child, col)
			case p2 < s.end && col2 == col && s.src[p2] == '-' && s.blank(p2+1):
				next = s.sequence(p2, col2, child)
			default:
				s.nodes[child].start, s.nodes[child].end = int32(keyEnd+1), int32(keyEnd+1)
			}
		} else {
			next = s.inline(q, child, col)
		}
		if next < 0 {
			return -1
		}
		p2, col2 := s.content(next)
		switch {
		case p2 < 0:
			return -1
		case p2 == s.end || col2 < col:
			s.nodes[i].end = max(s.nodes[child].end, s.nodes[child].keyEnd)
			return next
		case col2 > col:
			return s.fail(p2, "an indentation that fits no collection")
		}
		if keyEnd = s.key(p2); keyEnd <= 0 {
			return s.fail(p2, "a line that is neither key nor item")
		}
		p = p2
	}
}

func (s *scanner) sequence(p, col int, i int32) int {
	s.nodes[i].kind, s.nodes[i].style, s.nodes[i].col = sequenceNode, blockStyle, int32(col)
	s.nodes[i].start = int32(p)
	for {
		child := s.add(i, p, p+1)
		q := s.skipSpaces(p + 1)
		var next int
		if s.lineEnd(q) || s.src[q] == '#' {
			next = s.lineAfter(q)
			p2, col2 := s.content(next)
			switch {
			case p2 < 0:
				return -1
			case p2 < s.end && col2 > col:
				next = s.block(p2, col2, child, col)
			default:
				s.nodes[child].start, s.nodes[child].end = int32(p+1), int32(p+1)
			}
		} else {
			next = s.block(q, q-s.line, child, col)
		}
		if next < 0 {
			return -1
		}
		s.nodes[i].end = max(s.nodes[child].end, s.nodes[child].keyEnd)
		p2, col2 := s.content(next)
		switch {
		case p2 < 0:
			return -1
		case p2 == s.end || col2 < col:
			return next
		case col2 > col:
			return s.fail(p2, "an indentation that fits no collection")
		case s.src[p2] != '-' || !s.blank(p2+1):
			return next // the mapping that contains this compact sequence goes on
		}
		p = p2
	}
}

// duplicate compares the key of child with its elder siblings.
func (s *scanner) duplicate(i, child int32) bool {
	nodes, key := s.nodes, s.rawKey(child)
	sum := keySum(key)
	nodes[child].sum = sum
	for c := nodes[i].first; c != child; {
		n := &nodes[c]
		if n.sum == sum && bytes.Equal(s.rawKey(c), key) {
			return true
		}
		c = n.next
	}
	return false
}

// keySum is of the length of a key and three of its characters.
func keySum[T string | []byte](key T) uint32 {
	n := len(key)
	if n == 0 {
		return 0
	}
	return uint32(n)<<24 ^ uint32(key[0])<<16 ^ uint32(key[n/2])<<8 ^ uint32(key[n-1])
}

func (t *tree) rawKey(i int32) []byte {
	n := &t.nodes[i]
	key := t.src[n.keyStart:n.keyEnd]
	if len(key) > 1 && (key[0] == '"' || key[0] == '\'') {
		key = key[1 : len(key)-1]
	}
	return key
}

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
		if s.blank(p+1) || s.src[p+1] == '\t' {
			return s.fail(p, "an anchor, alias, tag or reserved character")
		}
	case '-':
		if s.blank(p+1) || s.src[p+1] == '\t' {
			return s.fail(p, "a list item where a value should be")
		}
	case '\t':
		return s.fail(p, "a tab before a value")
	}
	return s.plain(p, i, parentCol)
}

// plain reads a plain scalar, which goes on over all lines that are indented
// deeper than its collection.
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
		case s.src[end] == ' ' && s.src[s.skipSpaces(end)] == '#', bytes.IndexByte(s.src[next:p2], '#') >= 0:
			return s.fail(p2, "text after a commented value")
		}
		n.style = plainLinesStyle
		p = p2
	}
}

// plainLine gives the end of the plain text at p and the start of the next line.
func (s *scanner) plainLine(p int) (end, next int) {
	src := s.src[:s.end]
	q := s.stop(p)
	for ; q < len(src) && src[q] != '\n'; q = s.stop(q + 1) {
		if src[q] == ':' && (s.blank(q+1) || src[q+1] == '\t') {
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
	return end, s.lineAfter(q)
}

// quoted gives the end of the quoted scalar at p, just past its closing quote.
// Where oneLine is set, a scalar that goes on over lines gives 0.
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
			if q < len(src) && src[q] == '\n' {
				if oneLine {
					return 0
				}
				if r := s.skipSpaces(q + 1); r < len(src) && src[r] == '\t' {
					return s.fail(r, "a tab in the indentation")
				}
				if s.indicator(q + 1) {
					return s.fail(q+1, "a document marker inside a value")
				}
			}
		case c == '\n':
			if oneLine {
				return 0
			}
			if r := s.skipSpaces(q + 1); r < len(src) && src[r] == '\t' {
				return s.fail(r, "a tab in the indentation")
			}
			if s.indicator(q + 1) {
				return s.fail(q+1, "a document marker inside a value")
			}
		}
	}
	if oneLine {
		return 0
	}
	return s.fail(p, "a quote that is never closed")
}

// indicator reports whether a line starts with a marker that ends a document,
// wherever it is.
func (s *scanner) indicator(p int) bool {
	if p+3 > s.end || s.src[p] != s.src[p+1] || s.src[p] != s.src[p+2] {
		return false
	}
	return (s.src[p] == '.' || s.src[p] == '-') && (s.blank(p+3) || s.src[p+3] == '\t')
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
	return err == nil && utf8.ValidRune(rune(code)) // surrogates are kyaml's business
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
		r := s.skipSpaces(next)
		if s.lineEnd(r) {
			deeper := indent > 0 && r-next > indent // spaces that belong to the text
			if indent == 0 {
				blankIndent = max(blankIndent, r-next)
			}
			next = s.lineAfter(r)
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
		next = s.lineAfter(r)
		end = next
	}
	if end == len(src) && end > q && src[end-1] != '\n' && !strip {
		// A line after it would give its text a line feed that it lacks.
		return s.fail(p, "a block scalar whose last line does not end")
	}
	if keep { // blank lines at the end belong to the text
		if end == q || next == len(src) && src[next-1] != '\n' {
			return s.fail(p, "a block scalar of blank lines")
		}
		end = next
	}
	n.end, n.col = int32(s.trimBreak(end)), int32(indent)
	if end == q {
		n.end = int32(q)
		return s.lineAfter(q)
	}
	return end
}

func (s *scanner) trimBreak(p int) int {
	if p > 0 && s.src[p-1] == '\n' {
		p--
		if p > 0 && s.src[p-1] == '\r' {
			p--
		}
	}
	return p
}

// flow reads the flow collection or flow scalar at p and gives the position
// after it.
func (s *scanner) flow(p int, i int32, depth int) int {
	if depth > maxDepth {
		return s.fail(p, "deeper than 100 levels")
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
			if p++; s.indicator(p) {
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

// flowKey gives the end of the key at p, which its colon must follow at once.
func (s *scanner) flowKey(p int) int {
	end, quoted := 0, s.src[p] == '"' || s.src[p] == '\''
	if quoted {
		end = s.quoted(p, true)
	} else {
		end = s.flowPlain(p)
	}
	if end <= 0 || end >= s.end || s.src[end] != ':' || !quoted && !s.blank(end+1) {
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

// flowPlain gives the end of a plain scalar inside brackets. It takes fewer
// characters than YAML does.
func (s *scanner) flowPlain(p int) int {
	q := p
scan:
	for ; q < s.end; q++ {
		switch c := s.src[q]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '.', c == '/', c == '+':
		case c == '-' && (q > p || !s.blank(q+1)):
		case c == ' ' && q > p, bytes.IndexByte([]byte("$()=~^;<"), c) >= 0:
		case q > p && bytes.IndexByte([]byte("%@*!&|>"), c) >= 0:
		case c == ':' && q > p && !s.blank(q+1) && !bytes.ContainsRune([]byte(",[]{}"), rune(s.src[q+1])):
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

const (
	ones = 0x0101010101010101
	tops = 0x8080808080808080
)
