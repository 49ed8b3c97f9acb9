package krm

import (
	"bytes"
)

// Block is text that many objects get, alike but for a name or two. It keeps the
// text indented as it was last needed, so that filling it in is mostly copying.
type Block struct {
	parts [][]byte // at zero indentation; values go between them
	which []int    // value follows each part but the last

	indent   int
	eol      string
	indented [][]byte
}

// NewBlock makes a block of lines with placeholders for values.
func NewBlock(text []byte, placeholders ...string) *Block {
	b := &Block{indent: -1}
	rest := bytes.Clone(text)
	for {
		next, which := -1, 0
		for i, placeholder := range placeholders {
			if at := bytes.Index(rest, []byte(placeholder)); at >= 0 && (next < 0 || at < next) {
				next, which = at, i
			}
		}
		if next < 0 {
			b.parts = append(b.parts, rest)
			return b
		}
		b.parts, b.which = append(b.parts, rest[:next]), append(b.which, which)
		rest = rest[next+len(placeholders[which]):]
	}
}

// Append writes the block's lines with more indentation and the values, one for
// each placeholder, filled in.
func (b *Block) Append(dst []byte, indent int, eol string, values ...string) []byte {
	if b.indent != indent || b.eol != eol {
		b.indent, b.eol, b.indented = indent, eol, b.parts
		if indent > 0 || eol != "\n" {
			const gap = "\x00" // never occurs in YAML
			joined := AppendIndented(nil, bytes.Join(b.parts, []byte(gap)), indent, eol)
			b.indented = bytes.Split(joined, []byte(gap))
		}
	}
	for i, part := range b.indented {
		if i > 0 {
			dst = append(dst, values[b.which[i-1]]...)
		}
		dst = append(dst, part...)
	}
	return dst
}

// Entries are what Insert adds: block-style YAML without indentation, each line
// ended by a line feed, as items ("- name: x") or fields ("key: value"). Either
// Text or Block is set; Name fills the block.
type Entries struct {
	Text  []byte
	Block *Block
	Name  string
}

func (e *Entries) append(dst []byte, indent int, eol string) []byte {
	if e.Block != nil {
		return e.Block.Append(dst, indent, eol, e.Name)
	}
	return AppendIndented(dst, e.Text, indent, eol)
}

func (e *Entries) items() bool {
	if e.Block != nil {
		return e.Block.parts[0][0] == '-'
	}
	return e.Text[0] == '-'
}

// appendWrapped writes the entries below keys, at a column.
func (e *Entries) appendWrapped(dst []byte, o *Object, keys []string, col int) []byte {
	for i, key := range keys {
		dst = appendSpaces(dst, col)
		dst = append(dst, key...)
		dst = append(dst, ':')
		dst = append(dst, o.eol...)
		if i == len(keys)-1 && e.items() {
			col += o.listIndent()
		} else {
			col += 2
		}
	}
	return e.append(dst, col, o.eol)
}
