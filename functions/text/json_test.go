package text

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// The examples of RFC 8785, sections 3.2.2 to 3.2.4, and what Go's own encoder writes
// otherwise.
func TestTransform(t *testing.T) {
	for in, want := range map[string]string{
		`{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],"string":"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}`:                                        `{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`,
		`{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}`: "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u0080\":\"Control\",\"ö\":\"Latin Small Letter O With Diaeresis\",\"€\":\"Euro Sign\",\"😀\":\"Emoji: Grinning Face\",\"\ufb33\":\"Hebrew Letter Dalet With Dagesh\"}",
		`{"html":"<a href=\"x\">&</a>"}`:                          `{"html":"<a href=\"x\">&</a>"}`,
		`["\u2028","\u2029"]`:                                     "[\"\u2028\",\"\u2029\"]",
		` [ -0, -0.0, 1.0, 10e0, 1e21, 1e20, 9007199254740993 ] `: `[0,0,1,10,1e+21,100000000000000000000,9007199254740992]`,
		`[5e-324,-1.7976931348623157e308,0.000001,1e-7]`:          `[5e-324,-1.7976931348623157e+308,0.000001,1e-7]`,
		`"\b\t\n\f\r\u0001\u007f"`:                                "\"\\b\\t\\n\\f\\r\\u0001\u007f\"",
	} {
		got, err := CanonicalJSON([]byte(in))
		if err != nil || string(got) != want {
			t.Errorf("%s\ngives %s\nwant  %s (%v)", in, got, want, err)
			continue
		}
		if again, err := CanonicalJSON(got); err != nil || !bytes.Equal(again, got) {
			t.Errorf("%s is not canonical: %s (%v)", got, again, err)
		}
	}
}

func TestRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"two fields of a name":         `{"a":1,"a":2}`,
		"two, one of them escaped":     `{"a":1,"\u0061":2}`,
		"two, deep":                    `{"x":[{"a":1,"a":2}]}`,
		"half a surrogate pair":        `"\ud800"`,
		"the other half":               `"\udc00"`,
		"invalid UTF-8":                "\"\xff\"",
		"a number that is too large":   `[1e400]`,
		"a number that is not JSON":    `[0x10]`,
		"NaN":                          `[NaN]`,
		"a leading zero":               `[01]`,
		"two texts":                    `{} {}`,
		"nothing":                      ``,
		"a text that ends":             `{"a":`,
		"a line feed in a string":      "\"\n\"",
		"a comma too many":             `[1,]`,
		"a depth that no reader takes": strings.Repeat("[", 1<<20) + strings.Repeat("]", 1<<20),
	} {
		if got, err := CanonicalJSON([]byte(text)); err == nil {
			t.Errorf("%s is accepted: %.80s", name, got)
		}
	}
}

// A megabyte of fields takes a moment, whatever their order.
func TestManyFields(t *testing.T) {
	var b strings.Builder
	b.WriteByte('{')
	for i := range 100_000 {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"` + strings.Repeat("z", 3) + string(rune('a'+i%26)) +
			strings.Repeat("9", i%7) + time.Duration(i).String() + `":0`)
	}
	b.WriteByte('}')
	begun := time.Now()
	if _, err := CanonicalJSON([]byte(b.String())); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("took %s", took)
	}
}
