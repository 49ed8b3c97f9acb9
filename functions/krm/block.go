package krm

import (
	"bytes"
)

// Block is text that many objects get, alike but for one name. It keeps the
// text indented as it was last needed, so that filling it in is mostly copying.
type Block struct {
	parts [][]byte // at zero indentation; the name stands between them

	indent   int
	eol      string
	indented [][]byte
}

// NewBlock makes a block of lines in which a placeholder stands for the name.
func NewBlock(text []byte, placeholder string) *Block {
	return &Block{parts: bytes.Split(bytes.Clone(text), []byte(placeholder)), indent: -1}
}

// Append writes the block's lines with more indentation and the name filled in.
func (b *Block) Append(dst []byte, name string, indent int, eol string) []byte {
	if b.indent != indent || b.eol != eol {
		b.indent, b.eol = indent, eol
		const gap = "\x00" // stands in no YAML
		joined := AppendIndented(nil, bytes.Join(b.parts, []byte(gap)), indent, eol)
		b.indented = bytes.Split(joined, []byte(gap))
	}
	for i, part := range b.indented {
		if i > 0 {
			dst = append(dst, name...)
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
		return e.Block.Append(dst, e.Name, indent, eol)
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
