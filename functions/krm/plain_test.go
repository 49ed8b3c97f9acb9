package krm_test

import (
	"testing"

	"github.com/armature-dev/armature/functions/krm"
)

func TestPlain(t *testing.T) {
	for text, want := range map[string]string{
		"built ünïcode 世界\n\tat once": "built ünïcode 世界\n\tat once",
		"\x1b[31mred\x1b[0m":          `\x1b[31mred\x1b[0m`,
		"title \x1b]0;x\x07":          `title \x1b]0;x\a`,
		"100%\rok":                    `100%\rok`,
		"dos\r\nlines\r\n":            "dos\nlines\n",
		"\u009b2J":                    `\u009b2J`,
		"a\u202eb\u2066c\u200fd":      `a\u202eb\u2066c\u200fd`,
		"del\x7f\x00\b":               `del\x7f\x00\b`,
		"bad \xff\xfe":                "bad \uFFFD",
		"":                            "",
	} {
		if got := krm.Plain(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
		if once := krm.Plain(text); krm.Plain(once) != once {
			t.Errorf("%q changes again", once)
		}
	}
}
