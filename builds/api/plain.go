package api

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Plain is text that a stranger wrote, such as a log or a server's answer, made
// safe to show: what steers a terminal or turns the direction of writing is shown
// as an escape, such as \x1b. Lines and tabs stay, and a line may end in CR LF.
func Plain(text string) string {
	if strings.IndexFunc(text, steers) < 0 && utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for _, r := range strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\r\n", "\n") {
		if steers(r) {
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// steers reports whether a terminal would obey a character instead of showing it.
func steers(r rune) bool {
	return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029')
}
