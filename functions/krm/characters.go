package krm

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// valid looks for bytes that YAML forbids, and for bytes that the scanner does not handle. It
// returns the offset of the first one, or -1.
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
		return at, controlCharacter
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
		switch {
		case r == 0x85, r == 0x2028, r == 0x2029, r == 0xfeff:
			return at, "an unusual line break or byte order mark"
		case r >= 0x80 && r < 0xa0, r == 0xfffe, r == 0xffff:
			return at, controlCharacter
		}
	}
	return -1, ""
}

// Reasons for bytes that YAML forbids.
const (
	invalidUTF8      = "not valid UTF-8"
	controlCharacter = "a control character"
)

// unreadable returns the error about a byte that YAML forbids.
func (o *Object) unreadable(text []byte, at int, reason string) error {
	if utf16Text(text) {
		err := o.syntaxError(o.start, "UTF-16, where manifests are UTF-8")
		err.Hint = "convert the file to UTF-8, as by iconv -f UTF-16 -t UTF-8 FILE"
		return err
	}
	if reason == invalidUTF8 {
		return o.syntaxError(o.start+at, reason+fmt.Sprintf(" (byte 0x%02x)", text[at]))
	}
	r, _ := utf8.DecodeRune(text[at:])
	err := o.syntaxError(o.start+at,
		fmt.Sprintf("the control character %U, which YAML does not have", r))
	err.Hint = fmt.Sprintf(`remove it, or write it between double quotes as "\u%04x"`, r)
	return err
}

// utf16Text reports whether a text begins as UTF-16 does: with its byte order mark, or with two
// characters that have a zero byte each.
func utf16Text(text []byte) bool {
	if len(text) < 4 {
		return false
	}
	mark := string(text[:2])
	return mark == "\xff\xfe" || mark == "\xfe\xff" || (text[0] == 0) != (text[1] == 0) &&
		(text[0] == 0) == (text[2] == 0) && (text[1] == 0) == (text[3] == 0)
}

// controls sets the top bit of each byte that is below a space and is not a line feed. The other
// bits mean nothing.
func controls(x uint64) uint64 {
	return ^((x | tops) - ' '*ones) & (((x ^ '\n'*ones) | tops) - ones) &^ x
}

// controlByte returns the first control character of b[from:to] that is not a tab or a line break.
func controlByte(b []byte, from, to int) (at int, reason string) {
	for at := from; at < to; at++ {
		switch c := b[at]; {
		case c >= ' ' || c == '\t' || c == '\n' || c == '\r' && at+1 < len(b) && b[at+1] == '\n':
		case c == '\r':
			return at, "a carriage return without a line feed"
		default:
			return at, controlCharacter
		}
	}
	return -1, ""
}

// yamlEscapes replaces the escapes of a JSON text that YAML lacks, a slash and surrogate pairs, by
// escapes that it has. A lone surrogate becomes the replacement character, as it does in the API
// server. Other text stays.
func yamlEscapes(text []byte) []byte {
	if !json.Valid(text) {
		return text
	}
	half := func(at int) (r rune) { // of \uXXXX, 0 for anything else
		if at+6 > len(text) || text[at] != '\\' || text[at+1] != 'u' {
			return 0
		}
		code, err := strconv.ParseUint(string(text[at+2:at+6]), 16, 16)
		if err != nil || !utf16.IsSurrogate(rune(code)) {
			return 0
		}
		return rune(code)
	}
	out := make([]byte, 0, len(text)+16)
	for at := 0; at < len(text); {
		switch first := half(at); {
		case text[at] != '\\':
			out = append(out, text[at])
			at++
		case text[at+1] == '/':
			out = append(out, '/')
			at += 2
		case first == 0:
			out = append(out, text[at:at+2]...)
			at += 2
		default:
			at += 6
			r := utf16.DecodeRune(first, half(at)) // U+FFFD unless it is a pair
			if r != '\ufffd' {
				at += 6
			}
			out = fmt.Appendf(out, `\U%08X`, r)
		}
	}
	return out
}
