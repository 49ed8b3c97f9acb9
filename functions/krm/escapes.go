package krm

import (
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf16"
)

// yamlEscapes writes the escapes of a JSON text that YAML does not have as those
// that it has: a slash, and characters of two halves. A half alone becomes the
// replacement character, as it does for the API server. Other text stays.
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
			r := utf16.DecodeRune(first, half(at)) // U+FFFD for what is not a pair
			if r != '\ufffd' {
				at += 6
			}
			out = fmt.Appendf(out, `\U%08X`, r)
		}
	}
	return out
}
