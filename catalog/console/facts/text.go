package facts

import (
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/armature-dev/armature/functions/text"
)

// Clip returns the beginning of a text that others wrote, in one line.
func Clip(length int, s string) string {
	s = strings.Join(strings.Fields(text.Plain(s)), " ")
	if utf8.RuneCountInString(s) <= length {
		return s
	}
	return strings.TrimRight(string([]rune(s)[:length]), " ,.;:") + "…"
}

// Shown returns a value in a line.
func Shown(v any) string {
	if s, ok := v.(string); ok {
		return Clip(200, s)
	}
	text, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return Clip(200, string(text))
}
