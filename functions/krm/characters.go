package krm

import (
	"bytes"
	"encoding/binary"
	"unicode/utf8"
)

// valid checks the bytes that no YAML may hold, and those that the scanner
// does not want to meet. It gives the offset of the first such byte, or -1.
func valid(b []byte) (at int, reason string) {
	var all uint64
	i := 0
	for ; i+32 <= len(b); i += 32 {
		words := b[i : i+32 : i+32]
		x0, x1 := binary.LittleEndian.Uint64(words), binary.LittleEndian.Uint64(words[8:])
		x2, x3 := binary.LittleEndian.Uint64(words[16:]), binary.LittleEndian.Uint64(words[24:])
		all |= x0 | x1 | x2 | x3
		if (controls(x0)|controls(x1)|controls(x2)|controls(x3))&tops == 0 {
			continue
		}
		if at, reason := controlByte(b, i, i+32); reason != "" {
			return at, reason
		}
	}
	for _, c := range b[i:] {
		all |= uint64(c)
	}
	if at, reason := controlByte(b, i, len(b)); reason != "" {
		return at, reason
	}
	if at := bytes.IndexByte(b, 0x7f); at >= 0 {
		return at, "a control character"
	}
	if all&tops == 0 {
		return -1, ""
	}
	if !utf8.Valid(b) {
		for at := 0; at < len(b); {
			r, n := utf8.DecodeRune(b[at:])
			if r == utf8.RuneError && n <= 1 {
				return at, invalidUTF8
			}
			at += n
		}
	}
	for at, r := range string(b) {
		if r >= 0x80 && r < 0xa0 || r == 0x2028 || r == 0x2029 || r == 0xfeff || r == 0xfffe || r == 0xffff {
			return at, "an unusual line break or control character"
		}
	}
	return -1, ""
}

const invalidUTF8 = "not valid UTF-8"

// controls has the top bit of those bytes set that are below a space and no line
// feeds. The other bits mean nothing.
func controls(x uint64) uint64 {
	return ^((x | tops) - ' '*ones) & (((x ^ '\n'*ones) | tops) - ones) &^ x
}

// controlByte gives the first control character of b[from:to] that is not welcome.
func controlByte(b []byte, from, to int) (at int, reason string) {
	for at := from; at < to; at++ {
		switch c := b[at]; {
		case c >= ' ' || c == '\t' || c == '\n' || c == '\r' && at+1 < len(b) && b[at+1] == '\n':
		case c == '\r':
			return at, "a carriage return without a line feed"
		default:
			return at, "a control character"
		}
	}
	return -1, ""
}
