package krm

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// input is the text that a scanner reads.
type input []byte

// blank reports whether p is a space, a line break or the end.
func (in input) blank(p int) bool {
	return p >= len(in) || in[p] == ' ' || in[p] == '\n' || in[p] == '\r'
}

func (in input) lineEnd(p int) bool {
	return p >= len(in) || in[p] == '\n' || in[p] == '\r'
}

func (in input) skipSpaces(p int) int {
	for p+8 <= len(in) {
		if other := binary.LittleEndian.Uint64(in[p:]) ^ ' '*ones; other != 0 {
			return p + bits.TrailingZeros64(other)/8
		}
		p += 8
	}
	for p < len(in) && in[p] == ' ' {
		p++
	}
	return p
}

func (in input) lineAfter(p int) int {
	if p < len(in) && in[p] == '\n' {
		return p + 1
	}
	if i := bytes.IndexByte(in[p:], '\n'); i >= 0 {
		return p + i + 1
	}
	return len(in)
}

// stop returns the next place, or len(in), where plain text may end: at a colon, a
// number sign or a line feed. It stops at some other characters as well.
func (in input) stop(p int) int {
	for ; p+8 <= len(in); p += 8 {
		x := binary.LittleEndian.Uint64(in[p:])
		// A line feed with the bits of '0' is a colon.
		colon, number := (x|'0'*ones)^':'*ones, x^'#'*ones
		if hit := ((colon-ones)&^colon | (number-ones)&^number) & tops; hit != 0 {
			return p + bits.TrailingZeros64(hit)/8
		}
	}
	for p < len(in) && in[p] != ':' && in[p] != '#' && in[p] != '\n' {
		p++
	}
	return p
}

func (in input) trimBreak(p int) int {
	if p > 0 && in[p-1] == '\n' {
		p--
		if p > 0 && in[p-1] == '\r' {
			p--
		}
	}
	return p
}

// indicator reports whether a line starts with a marker that ends a document at any place.
func (in input) indicator(p int) bool {
	if p+3 > len(in) || in[p] != in[p+1] || in[p] != in[p+2] {
		return false
	}
	return (in[p] == '.' || in[p] == '-') && (in.blank(p+3) || in[p+3] == '\t')
}

const (
	ones = 0x0101010101010101
	tops = 0x8080808080808080
)
