package text

import "testing"

func TestPlain(t *testing.T) {
	for content, want := range map[string]string{
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
		if got := Plain(content); got != want {
			t.Errorf("%q became %q, want %q", content, got, want)
		}
		if once := Plain(content); Plain(once) != once {
			t.Errorf("%q changes again", once)
		}
	}
}

// TestFindingString: a finding is one line and its hint, whatever its names hold.

func TestShown(t *testing.T) {
	for value, want := range map[string]string{
		"":                                     "",
		"many":                                 "many",
		"web:v1":                               "web:v1",
		"http://user:word@host:80/path":        "…@host:80/path",
		"user:w@rd@registry/web":               "…@registry/web",
		"registry/web:v1@sha256:00":            "registry/web:v1@sha256:00",
		"user:word@registry/web@sha256:00":     "…@registry/web@sha256:00",
		"https://host/path?token=word&a=b@c":   "https://host/path…",
		"https://u:p@host/path#token=word?a=b": "…@host/path…",
	} {
		if have := Shown(value); have != want {
			t.Errorf("%q is shown as %q, want %q", value, have, want)
		}
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 files", 1: "1 file", 2: "2 files"} {
		if got := Count(n, "file"); got != want {
			t.Errorf("have %q, want %q", got, want)
		}
	}
}

func TestNear(t *testing.T) {
	for name, want := range map[string]bool{
		"inject": false, "inejct": true, "injct": true, "injject": true, "imject": true,
		"niejct": true, "niejtc": false, "tcejni": false, "": false,
	} {
		if got := Near(name, "inject"); got != want {
			t.Errorf("%s is near inject: %v", name, got)
		}
	}
	for name, want := range map[string]string{"wbe": "web", "wop": "", "weathr": "weather",
		"web": "web", "": ""} {
		if got := Nearest(name, []string{"weather", "shop", "web"}); got != want {
			t.Errorf("the nearest of %q is %q, want %q", name, got, want)
		}
	}
}
