// Package scalar writes untrusted strings as scalars of the formats of rendered files, so that
// their content cannot end a string, start a key or be expanded. The appended text is always a
// single line.
package scalar

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// form is a format of strings between double quotes.
type form int

const (
	yaml form = iota
	json
	hcl
	otel
)

// dollars are the escapes of a dollar sign before a brace, in formats that expand ${NAME}.
var dollars = [...]string{hcl: `\u0024`, otel: "$$"}

// AppendYAML appends s as a double-quoted YAML scalar, which is also JSON if s is printable.
func AppendYAML(dst []byte, s string) []byte { return appendQuoted(dst, s, yaml) }

func appendQuoted(dst []byte, s string, f form) []byte {
	dst = append(dst, '"')
	if clean(s) && (dollars[f] == "" || !strings.Contains(s, "${")) {
		dst = append(dst, s...)
		return append(dst, '"')
	}
	return append(appendEscaped(dst, s, f), '"')
}

// AppendPlain appends s as a plain YAML scalar if YAML reads it as that string, and double-quoted
// otherwise.
func AppendPlain(dst []byte, s string) []byte {
	if Plain(s) {
		return append(dst, s...)
	}
	return AppendYAML(dst, s)
}

// PlainText returns s as AppendPlain writes it.
func PlainText(s string) string { return string(AppendPlain(nil, s)) }

// AppendSpaces appends n spaces.
func AppendSpaces(dst []byte, n int) []byte {
	const spaces = "                                                                "
	for ; n > len(spaces); n -= len(spaces) {
		dst = append(dst, spaces...)
	}
	return append(dst, spaces[:n]...)
}

// AppendInner appends s for the inside of a double-quoted YAML scalar.
func AppendInner(dst []byte, s string) []byte {
	if clean(s) {
		return append(dst, s...)
	}
	return appendEscaped(dst, s, yaml)
}

// AppendJSON appends s as a JSON string.
func AppendJSON(dst []byte, s string) []byte { return appendQuoted(dst, s, json) }

// AppendHCL appends s as an HCL 1 string for spiffe-helper's helper.conf, where "${" starts an
// interpolation.
func AppendHCL(dst []byte, s string) []byte { return appendQuoted(dst, s, hcl) }

// AppendOTel appends s as a double-quoted YAML scalar of an OpenTelemetry configuration file, where
// ${NAME} is an environment variable and $$ a dollar sign. It requires that s is Portable.
func AppendOTel(dst []byte, s string) []byte { return appendQuoted(dst, s, otel) }

// Portable reports whether every OpenTelemetry loader reads the output of AppendOTel as s. Loaders
// differ on a doubled dollar sign, on "${" without a variable's name and "}", and on a name after
// "{" that takes its "}" from a variable.
func Portable(s string) bool {
	for {
		i := strings.IndexAny(s, "${")
		if i < 0 || i == len(s)-1 {
			return true
		}
		mark := s[i]
		if s = s[i+1:]; mark == '{' {
			if end := strings.IndexByte(s, '}'); (letter(s[0]) || s[0] == '_') &&
				(end < 0 || strings.Contains(s[:end], "${")) {
				return false
			}
			continue
		}
		if s[0] == '$' {
			return false
		}
		if s[0] != '{' {
			continue
		}
		end := strings.IndexByte(s, '}')
		if end < 0 || !variable(s[1:end]) {
			return false
		}
		s = s[end+1:]
	}
}

// variable reports whether s is the name of an environment variable.
func variable(s string) bool {
	for _, c := range []byte(s) {
		if !letter(c) && !digit(c) && c != '_' {
			return false
		}
	}
	return s != "" && !digit(s[0])
}

// AppendEnv appends s as the double-quoted value of a container's environment variable, where
// Kubernetes expands $(NAME) and reads $$ as a dollar sign.
func AppendEnv(dst []byte, s string) []byte {
	return append(AppendEnvInner(append(dst, '"'), s), '"')
}

// AppendEnvInner appends s for the inside of an environment variable's double-quoted value.
func AppendEnvInner(dst []byte, s string) []byte {
	for {
		literal, rest, found := strings.Cut(s, "$")
		dst = AppendInner(dst, literal)
		if !found {
			return dst
		}
		dst = append(dst, '$', '$')
		s = rest
	}
}

// AppendPath appends an absolute path as a plain YAML scalar if it has no special characters, and
// double-quoted otherwise.
func AppendPath(dst []byte, p string) []byte {
	if len(p) > 1 && p[0] == '/' {
		for i := 1; ; i++ {
			if i == len(p) {
				return append(dst, p...)
			}
			if c := p[i]; !letter(c) && !digit(c) && c != '/' && c != '-' && c != '_' && c != '.' {
				break
			}
		}
	}
	return AppendYAML(dst, p)
}

// appendEscaped appends s for the inside of quotes.
func appendEscaped(dst []byte, s string, f form) []byte {
	short := f == yaml || f == otel // escapes of their own for line breaks and tabs
	for i, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r == '$' && dollars[f] != "" && strings.HasPrefix(s[i+1:], "{"):
			dst = append(dst, dollars[f]...)
		case r == '\n' && short:
			dst = append(dst, '\\', 'n')
		case r == '\t' && short:
			dst = append(dst, '\\', 't')
		case printable(r):
			dst = utf8.AppendRune(dst, r)
		default:
			dst = fmt.Appendf(dst, `\u%04x`, r)
		}
	}
	return dst
}

// clean reports whether s is printable ASCII without quotes and backslashes.
func clean(s string) bool {
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// printable reports whether YAML 1.2 allows r unescaped in every scalar and no reader treats it as
// a line break. All runes that it does not allow have four hexadecimal digits.
func printable(r rune) bool {
	switch {
	case r < ' ', r >= 0x7f && r < 0xa0, r == 0x2028, r == 0x2029, r == 0xfeff:
		return false
	case r == 0xfffe || r == 0xffff, r >= 0xd800 && r < 0xe000:
		return false
	}
	return true
}

// Plain reports whether s needs no quotes in YAML: it is a letter followed by characters without a
// meaning in YAML, and not a word that YAML 1.1 reads as a boolean or null.
func Plain(s string) bool {
	if s == "" || !letter(s[0]) {
		return false
	}
	for _, c := range []byte(s[1:]) {
		if !letter(c) && !digit(c) && c != '-' && c != '.' && c != '_' && c != '/' {
			return false
		}
	}
	switch len(s) {
	case 1, 2, 3, 4, 5:
		switch strings.ToLower(s) {
		case "y", "n", "yes", "no", "on", "off", "true", "false", "null":
			return false
		}
	}
	return true
}

func letter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

func digit(c byte) bool { return c >= '0' && c <= '9' }

// Int returns the whole number that the API server reads from a plain YAML scalar: decimal, octal,
// hexadecimal or binary, with underscores between the digits, or a float that is whole.
func Int(s string) (int, bool) {
	if s == "" || strings.IndexByte("+-.0123456789", s[0]) < 0 {
		return 0, false
	}
	digits := strings.ReplaceAll(s, "_", "")
	if n, err := strconv.ParseInt(digits, 0, 0); err == nil {
		return int(n), true
	}
	if strings.Trim(digits, "+-.eE0123456789") != "" {
		return 0, false // no infinity, and no float in hexadecimal
	}
	f, err := strconv.ParseFloat(digits, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > math.MaxInt32 {
		return 0, false
	}
	return int(f), true
}
