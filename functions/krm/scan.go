package krm

import (
	"bytes"
	"slices"
	"strconv"
)

// The scanner reads the YAML that people write in Kubernetes manifests into a tree of byte
// positions, so that an edit can splice the text and leave the rest of it alone. It accepts only
// text that it is certain of. Anchors, aliases, tags, directives, merge keys, complex keys, keys
// with escapes of letters, tabs in indentation, comments inside flow collections and everything
// malformed make it give up. Such text goes through kyaml, which defines the meaning of all YAML.

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
	// keyStart and keyEnd span the key as written in a mapping, and the dash in a block sequence.
	// They are equal in a flow sequence.
	keyStart, keyEnd int32
	// start and end span the value as written. For a null, both are after the colon or dash.
	start, end int32
	// col is the column of a block collection's entries, and of a block scalar's text.
	col int32
	// sum is the keySum of the key, which distinguishes most keys.
	sum uint32
}

// tree is one document, or one item of a list, as the scanner read it.
type tree struct {
	src   []byte
	nodes []node
	// Cached node indexes: 0 is not looked up yet, -1 is absent.
	metadata, annotations int32
	pod                   int32 // of the pod template, at workload.Templates()[podAt]
	podAt                 int8
}

const (
	maxDepth = 200
	maxKey   = 1000 // YAML allows 1,024 characters
	tooDeep  = "nested more than 200 levels deep"
)

// scanner fills a tree. A position of -1 means that it gave up, at badAt for the reason bad.
type scanner struct {
	tree
	in   input // tree.src until end
	end  int
	line int // start of the line that is being read
	seen seen

	bad   string
	badAt int
	depth int
}

// seen caches the last result of content, which every collection that ends before a line requests.
type seen struct{ from, pos, col int }

// scan reads src[from:to] into t, reusing its memory. The text starts at the beginning of a line;
// if dash is set, that line starts with the dash of a list item. The reason is empty when the
// scanner is certain.
func (t *tree) scan(src []byte, from, to int, dash bool) (reason string, at int) {
	s := scanner{tree: tree{src: src, nodes: t.nodes[:0]}, in: src[:to], end: to, seen: seen{from: -1}}
	s.nodes = append(s.nodes, node{})
	s.document(from, dash)
	*t = s.tree
	return s.bad, s.badAt
}

func (s *scanner) document(from int, dash bool) {
	p, col := s.content(from)
	if dash && p >= 0 && p < s.end {
		p = s.in.skipSpaces(p + 1)
		col = p - s.line
		if s.in.lineEnd(p) || s.src[p] == '#' { // kpt puts an item's comment there
			p, col = s.content(s.in.lineAfter(p))
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

// content returns the position of the first character that is neither blank nor comment, from the
// start of a line on.
func (s *scanner) content(p int) (pos, col int) {
	if p == s.seen.from {
		return s.seen.pos, s.seen.col
	}
	return s.searchContent(p)
}

// searchContent searches for content and caches the result. content stays small enough to inline.
func (s *scanner) searchContent(p int) (pos, col int) {
	pos, col = s.find(p)
	s.seen = seen{p, pos, col}
	return pos, col
}

func (s *scanner) find(p int) (pos, col int) {
	for p < s.end {
		q := s.in.skipSpaces(p)
		if q == s.end {
			return s.end, -1
		}
		switch s.src[q] {
		case '\n':
			p = q + 1
		case '\r':
			p = q + 2 // valid() saw to it that a line feed follows
		case '#':
			p = s.in.lineAfter(q)
		case '\t':
			return s.fail(q, "a tab in the indentation"), -1
		default:
			s.line = p
			return q, q - p
		}
	}
	return s.end, -1
}

// rest checks that only a comment follows a value, and returns the start of the next line.
func (s *scanner) rest(p int) int {
	q := s.in.skipSpaces(p)
	switch {
	case s.in.lineEnd(q):
		return s.in.lineAfter(q)
	case s.src[q] == '#' && q > p:
		return s.in.lineAfter(q)
	}
	return s.fail(q, "text after a value")
}

// block reads the value at p, in column col, into node i. The value belongs to a collection in
// column parentCol. All block readers return the start of the line that follows.
func (s *scanner) block(p, col int, i int32, parentCol int) int {
	if s.depth++; s.depth > maxDepth {
		return s.fail(p, tooDeep)
	}
	next := -1
	if s.src[p] == '-' && s.in.blank(p+1) {
		next = s.sequence(p, col, i)
	} else if end := s.key(p); end > 0 {
		next = s.mapping(p, end, col, i)
	} else if s.bad == "" {
		next = s.inline(p, i, parentCol)
	}
	s.depth--
	return next
}

// key returns the end of the mapping key at p, or 0 if p starts no key.
func (s *scanner) key(p int) int {
	if !letter(s.src[p]) {
		if end, known := s.oddKey(p); known {
			return end
		}
	}
	for q := s.in.stop(p); q < s.end && s.src[q] != '\n'; q = s.in.stop(q + 1) {
		switch s.src[q] {
		case ':':
			if s.in.blank(q + 1) {
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

// oddKey returns the end of a key at p that does not start with a letter, or 0. known is false if
// it may still be a plain key.
func (s *scanner) oddKey(p int) (end int, known bool) {
	src := s.src[:s.end]
	if p == s.line &&
		(bytes.HasPrefix(src[p:], []byte("---")) || bytes.HasPrefix(src[p:], []byte("..."))) {
		s.fail(p, "a document marker with text")
		return 0, true
	}
	switch src[p] {
	case '"', '\'':
		end := s.quoted(p, true)
		if end <= 0 {
			return 0, true
		}
		q := s.in.skipSpaces(end)
		if q < s.end && src[q] == ':' && s.in.blank(q+1) {
			if s.escaped(p, end) {
				return 0, true
			}
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
		if s.in.blank(p + 1) {
			return 0, true
		}
		if src[p+1] == '\t' {
			s.fail(p, "a tab after a dash")
			return 0, true
		}
	case '?', ':':
		if s.in.blank(p+1) || src[p+1] == '\t' {
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

// escaped reports whether a key in double quotes writes a letter as a number, and fails then:
// lookups compare keys as written. The other escapes stand for characters that such a key never
// has.
func (s *scanner) escaped(p, end int) bool {
	if s.src[p] != '"' {
		return false
	}
	for {
		at := bytes.IndexByte(s.src[p+1:end], '\\')
		if at < 0 {
			return false
		}
		p += 1 + at
		digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[s.src[p+1]]
		code, err := strconv.ParseUint(string(s.src[p+2:p+2+digits]), 16, 32)
		if err == nil && code >= ' ' && code <= '~' {
			s.fail(p, "a key with a letter written as a number")
			return true
		}
		p++
	}
}

func letter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

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
		} else if q = s.in.skipSpaces(q); s.in.lineEnd(q) || s.src[q] == '#' {
			next = s.in.lineAfter(q)
			p2, col2 := s.content(next)
			switch {
			case p2 < 0:
				return -1
			case p2 < s.end && col2 > col:
				next = s.block(p2, col2, child, col)
			case p2 < s.end && col2 == col && s.src[p2] == '-' && s.in.blank(p2+1):
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
		q := s.in.skipSpaces(p + 1)
		var next int
		if s.in.lineEnd(q) || s.src[q] == '#' {
			next = s.in.lineAfter(q)
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
		case s.src[p2] != '-' || !s.in.blank(p2+1):
			return next // the mapping that contains this compact sequence goes on
		}
		p = p2
	}
}

// duplicate reports whether an earlier entry has the key of child.
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

// keySum combines the length of a key and three of its characters.
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
