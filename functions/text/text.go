// Package text formats names and numbers for messages: text that is safe to print, counts, the name
// that was probably meant, and patterns.
package text

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Printable escapes characters that do not print, including line breaks and invalid UTF-8.
func Printable(s string) string {
	return escaped(s, func(r rune) bool { return r == utf8.RuneError || unprintable(r) })
}

// Plain escapes characters that do not print in a text of several lines, and normalizes its line
// breaks.
func Plain(s string) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\r\n", "\n")
	return escaped(s, func(r rune) bool { return r != '\n' && r != '\t' && unprintable(r) })
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) && r != '\u00a0' && r != '\u3000' }

func escaped(s string, odd func(rune) bool) string {
	if strings.IndexFunc(s, odd) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if odd(r) {
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Shown returns an address or image without its query, fragment and user, which may be secret.
func Shown(value string) string {
	rest := ""
	if i := strings.IndexAny(value, "?#"); i >= 0 {
		value, rest = value[:i], "…"
	}
	if name, digest, found := strings.Cut(value, "@sha256:"); found {
		value, rest = name, "@sha256:"+digest+rest
	}
	if i := strings.LastIndexByte(value, '@'); i >= 0 {
		value = "…" + value[i:]
	}
	return value + rest
}

// Cut returns a valid text of at most n bytes, of which the last three are "…" if the rest is cut. n
// is at least 3.
func Cut(s string, n int) string {
	if len(s) > n {
		return strings.ToValidUTF8(s[:n-len("…")], "") + "…"
	}
	return strings.ToValidUTF8(s, "")
}

// Count returns a number with its noun: "1 file", "2 files".
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// Quote returns a word quoted for a shell.
func Quote(word string) string {
	if plain().MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

var plain = Pattern(`^[A-Za-z0-9_@%+=:,./-]+$`)

// Pattern returns a regular expression that is compiled on first use. Most renders use few of them,
// and armature-fn starts for each package.
func Pattern(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}
