package krm

import (
	"bytes"
	"iter"
)

// Document is one document of a YAML stream: the bytes src[Start:End], which are whole lines
// without the "---" that leads them.
type Document struct {
	// Lead is where the separator line starts. It equals Start for a first document without one.
	Lead, Start, End int
}

// Documents yields the documents of a stream. Together with their separators they cover all of it:
// each End is the next document's Lead.
func Documents(src []byte) iter.Seq[Document] { return DocumentsOf(src, false) }

// DocumentsOf yields the documents of a stream. The caller sets one if the stream holds only one
// document.
func DocumentsOf(src []byte, one bool) iter.Seq[Document] {
	return func(yield func(Document) bool) {
		lead, start := 0, FirstStart(src)
		for at := start; ; {
			line := -1
			if !one {
				line = markerLine(src, at)
			}
			if line < 0 {
				yield(Document{lead, start, len(src)})
				return
			}
			if !separator(src[line:]) {
				at = nextLine(src, line)
				continue
			}
			if !yield(Document{lead, start, line}) {
				return
			}
			lead, start = line, nextLine(src, line)
			at = start
		}
	}
}

// EndLine appends a line break to a text whose last line has none.
func EndLine(text []byte, eol string) []byte {
	if len(text) > 0 && text[len(text)-1] != '\n' {
		text = append(text, eol...)
	}
	return text
}

// FirstStart returns the Start of a stream's first document.
func FirstStart(src []byte) int {
	start := 0
	if bytes.HasPrefix(src, byteOrderMark) {
		start = len(byteOrderMark)
	}
	if separator(src[start:]) {
		start = nextLine(src, start)
	}
	return start
}

// markerLine returns the start of the next line, from the position on, that begins with "---", or
// -1. It tests only every third byte.
func markerLine(src []byte, at int) int {
	for p := uint(at) + 2; p < uint(len(src)); p += 3 {
		if src[p] != '-' {
			continue
		}
		from, to := int(p), int(p)+1
		for from > at && src[from-1] == '-' {
			from--
		}
		for to < len(src) && src[to] == '-' {
			to++
		}
		if to-from >= 3 && (from == 0 || src[from-1] == '\n') {
			return from
		}
		p = uint(to) - 1
	}
	return -1
}

var byteOrderMark = []byte("\xef\xbb\xbf")

// separator reports whether b starts with a document marker that holds nothing but a comment. A
// marker with content stays part of the document, where the scanner rejects it.
func separator(b []byte) bool {
	if !bytes.HasPrefix(b, []byte("---")) {
		return false
	}
	line := b[3:]
	if i := bytes.IndexByte(line, '\n'); i >= 0 {
		line = line[:i]
	}
	line = bytes.TrimRight(line, "\r")
	text := bytes.TrimLeft(line, " \t")
	return len(text) == 0 || text[0] == '#' && len(text) < len(line)
}

func nextLine(src []byte, p int) int {
	if i := bytes.IndexByte(src[p:], '\n'); i >= 0 {
		return p + i + 1
	}
	return len(src)
}

// KindOf returns the kind of a document in block style, or "" if it is not certain.
func KindOf(document []byte) string {
	at := 0
	if !bytes.HasPrefix(document, []byte("kind:")) {
		if at = 1 + bytes.Index(document, []byte("\nkind:")); at == 0 {
			return ""
		}
	}
	value, _, _ := bytes.Cut(trimLine(document[at+len("kind:"):nextLine(document, at)]), []byte(" #"))
	value = bytes.Trim(value, ` "'`)
	if bytes.ContainsFunc(value, func(r rune) bool { return r|0x20 < 'a' || r|0x20 > 'z' }) {
		return ""
	}
	return string(value)
}

func trimLine(line []byte) []byte {
	line = bytes.TrimSuffix(line, []byte{'\n'})
	return bytes.TrimSuffix(line, []byte{'\r'})
}

// HeadOf returns the part of a document, from its start to its spec or data, that holds apiVersion,
// kind and metadata. ok is false if that is not certain. The caller sets dash if the text is an
// item of a list.
func HeadOf(src []byte, d Document, dash bool) (head Document, ok bool) {
	text, col, p := src[d.Start:d.End], 0, 0
	if dash {
		col, p = bytes.IndexByte(text, '-')+2, nextLine(text, 0)
	}
	for ; p < len(text); p = nextLine(text, p) {
		if len(text)-p <= col || text[p+col] <= ' ' || text[p+col] == '-' || text[p+col] == '#' ||
			len(bytes.TrimLeft(text[p:p+col], " ")) > 0 {
			continue
		}
		if ok {
			return Document{d.Lead, d.Start, d.Start + p}, true
		}
		ok = bytes.HasPrefix(text[p+col:], []byte("metadata:"))
	}
	return d, ok
}

// Items splits a block-style list (List, ResourceList) at the dashes of its top-level "items". Each
// span is whole lines, the first with its dash. From and to enclose all of them. ok is false if the
// list has another style.
func Items(src []byte, start, end int) (spans []Document, from, to int, ok bool) {
	p := start
	for p < end && !bytes.HasPrefix(src[p:end], []byte("items:")) {
		p = nextLine(src, p)
	}
	if p >= end || len(bytes.TrimSpace(trimLine(src[p+len("items:"):nextLine(src, p)]))) > 0 {
		return nil, 0, 0, false
	}
	p = nextLine(src, p)
	from, to = p, p
	col := -1
	for p < end {
		next := min(nextLine(src, p), end)
		q := p
		for q < next && src[q] == ' ' {
			q++
		}
		indent := q - p
		if col >= 0 && indent > col && q < next && src[q] > ' ' { // most lines of most items
			spans[len(spans)-1].End, to, p = next, next, next
			continue
		}
		text := trimLine(src[q:next])
		switch {
		case len(text) == 0 || text[0] == '#' && (col < 0 || indent <= col):
		case text[0] == '\t':
			return nil, 0, 0, false
		case text[0] == '-' && (len(text) == 1 || text[1] == ' ') && (col < 0 || indent == col):
			col = indent
			spans = append(spans, Document{Lead: p, Start: p, End: next})
			to = next
		case indent == 0 && (text[0]|0x20 < 'a' || text[0]|0x20 > 'z'):
			return nil, 0, 0, false // it may be a value, which libyaml takes in this column too
		case col < 0 && indent == 0:
			return nil, from, to, true // items: null
		case col < 0:
			return nil, 0, 0, false
		case indent > col:
			spans[len(spans)-1].End = next
			to = next
		case indent == 0:
			return spans, from, to, true
		default:
			return nil, 0, 0, false
		}
		p = next
	}
	return spans, from, to, true
}

// withBlanks extends items by the lines of spaces that follow them. If another item were inserted
// before these lines, they would become part of a block scalar.
func withBlanks(src []byte, items []Document, end int) {
	for i := range items {
		limit := end
		if i+1 < len(items) {
			limit = items[i+1].Start
		}
		for p := items[i].End; p < limit; {
			next := min(nextLine(src, p), limit)
			line := trimLine(src[p:next])
			if len(bytes.TrimSpace(line)) > 0 {
				break
			}
			if p = next; len(line) > 0 {
				items[i].End = p
			}
		}
	}
}
