package krm

import (
	"bytes"
	"iter"

	"github.com/armature-dev/armature/functions/api/keys"
)

// Document is one document of a YAML stream: the bytes src[Start:End], which
// are whole lines without the "---" that leads them.
type Document struct {
	// Lead is where the separator line starts; equal to Start for a first
	// document without one.
	Lead, Start, End int
}

// Documents yields the documents of a stream. Together with their separators
// they are all of it: each End is the next one's Lead.
func Documents(src []byte) iter.Seq[Document] { return DocumentsOf(src, false) }

// DocumentsOf is Documents of a stream that may be known to hold one only.
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

// EndLine ends the last line of a text.
func EndLine(text []byte, eol string) []byte {
	if len(text) > 0 && text[len(text)-1] != '\n' {
		text = append(text, eol...)
	}
	return text
}

// FirstStart is the Start of a stream's first document.
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

// markerLine returns the start of the next line that begins with "---", -1 for
// none. The line at the position counts. One of three bytes is enough to look at.
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

// separator reports whether b starts with a document marker that holds nothing
// but a comment. A marker with content stays part of the document, for the
// scanner to stumble over.
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

// Head is what the top of a document shows.
type Head struct {
	APIVersion, Kind, Namespace, Name string
	// Rendered says that the metadata hold keys.RenderedFor.
	Rendered bool
}

// ReadHead reads apiVersion, kind, metadata.name and metadata.namespace from
// the lines of a block-style document, and stops when it has them. It does not
// judge the rest; ok is false where it is not certain of what it read.
func ReadHead(src []byte) (h Head, ok bool) {
	metadata := false
	for p := 0; p < len(src) && !(metadata && h.Kind != "" && h.APIVersion != ""); {
		next := nextLine(src, p)
		line := trimLine(src[p:next])
		at := p
		p = next
		if len(line) == 0 || line[0] == ' ' || line[0] == '#' || line[0] == '-' {
			continue
		}
		key, value, found := bytes.Cut(line, []byte{':'})
		if !found || len(value) > 0 && value[0] != ' ' {
			return h, false
		}
		switch string(key) {
		case "apiVersion":
			h.APIVersion, ok = headScalar(value)
		case "kind":
			h.Kind, ok = headScalar(value)
		case "metadata":
			metadata, ok = true, len(bytes.TrimSpace(value)) == 0
			if ok {
				ok = h.readMetadata(src[nextLine(src, at):])
			}
		default:
			ok = len(key) > 0 && key[0] >= 'A' && key[0] <= 'z'
		}
		if !ok {
			return h, false
		}
	}
	return h, true
}

// HeadOf is ReadHead, with nil where that is not certain.
func HeadOf(src []byte) *Head {
	if h, ok := ReadHead(src); ok {
		return &h
	}
	return nil
}

func (h *Head) readMetadata(src []byte) (ok bool) {
	col := -1
	for p := 0; p < len(src); {
		next := nextLine(src, p)
		line := trimLine(src[p:next])
		p = next
		text := bytes.TrimLeft(line, " ")
		if len(text) == 0 || text[0] == '#' {
			continue
		}
		indent := len(line) - len(text)
		if col < 0 {
			col = indent
		}
		if indent < col { // the next key, or a quoted text that goes on to the left
			return indent == 0
		}
		if indent == 0 {
			return true
		}
		if indent > col {
			h.Rendered = h.Rendered || bytes.HasPrefix(text, []byte(keys.RenderedFor+":"))
			continue
		}
		key, value, found := bytes.Cut(text, []byte{':'})
		if !found {
			return false
		}
		switch string(key) {
		case "name":
			h.Name, ok = headScalar(value)
		case "namespace":
			h.Namespace, ok = headScalar(value)
		default:
			ok = len(key) > 0 && key[0] >= 'A' && key[0] <= 'z'
		}
		if !ok {
			return false
		}
	}
	return true
}

func trimLine(line []byte) []byte {
	line = bytes.TrimSuffix(line, []byte{'\n'})
	return bytes.TrimSuffix(line, []byte{'\r'})
}

// HeadOfItem is the part of a list item, from its dash to its spec or data, that
// holds apiVersion, kind and metadata in that order. ok is false where it is not
// certain of that.
func HeadOfItem(src []byte, item Document) (head Document, ok bool) {
	text := src[item.Start:item.End]
	dash := bytes.IndexByte(text, '-')
	if dash < 0 {
		return item, false
	}
	col := dash + 2
	metadata := false
	for p := nextLine(text, 0); p < len(text); p = nextLine(text, p) {
		if len(text)-p <= col || text[p+col] <= ' ' || text[p+col] == '-' ||
			len(bytes.TrimLeft(text[p:p+col], " ")) > 0 {
			continue
		}
		if metadata {
			return Document{item.Lead, item.Start, item.Start + p}, true
		}
		metadata = bytes.HasPrefix(text[p+col:], []byte("metadata:"))
	}
	return item, false
}

// headScalar reads a plain or simply quoted scalar with an optional comment.
func headScalar(value []byte) (string, bool) {
	if i := bytes.Index(value, []byte(" #")); i >= 0 {
		value = value[:i]
	}
	value = bytes.TrimSpace(value)
	if n := len(value); n > 1 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
		value = value[1 : n-1]
	}
	for _, c := range value {
		if c <= ' ' || oddScalar[c] {
			return "", false
		}
	}
	switch string(value) { // what most documents say takes no memory
	case "v1":
		return "v1", true
	case "apps/v1":
		return "apps/v1", true
	case "Deployment":
		return "Deployment", true
	}
	return string(value), true
}

// oddScalar are the characters that may give a scalar a special meaning.
var oddScalar = [256]bool{
	'"': true, '\'': true, '\\': true, '&': true, '*': true, '!': true, '|': true, '>': true, '{': true,
	'}': true,
	'[': true, ']': true, '%': true, '@': true, '`': true, ':': true,
}

// Items splits a block-style list (List, ResourceList) at the dashes of its
// top-level "items". Each span is whole lines, the first with its dash. From
// and to enclose all of them; ok is false where the list is of another style.
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
		case col < 0 && indent == 0 && (text[0]|0x20 < 'a' || text[0]|0x20 > 'z'):
			return nil, 0, 0, false // it may be the value, which libyaml takes in this column too
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

// withBlanks adds to items the lines of spaces that follow them, which would
// become part of a block scalar if another item came in between.
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
