package render_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/armature-dev/armature/render"
)

// TestUnreadable names the line of text that no YAML may hold, and what it is.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	object := "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n"
	encode := func(order binary.AppendByteOrder, mark string) string {
		var out []byte
		for _, unit := range utf16.Encode([]rune(mark + object + "  é: \"1\"\n")) {
			out = order.AppendUint16(out, unit)
		}
		return string(out)
	}
	nested := func(n int, open, close string) string {
		return object + "  x: " + strings.Repeat(open, n) + "1" + strings.Repeat(close, n) + "\n"
	}
	block := func(n int) string {
		b := strings.Builder{}
		b.WriteString(object)
		for i := range n {
			b.WriteString(strings.Repeat(" ", i+2) + "x:\n")
		}
		return b.String() + strings.Repeat(" ", n+2) + "x: y\n"
	}
	aliases := func(n int) string {
		b := strings.Builder{}
		b.WriteString(object + "  x0: &x0 [a]\n")
		for i := range n {
			fmt.Fprintf(&b, "  x%d: &x%d [*x%d]\n", i+1, i+1, i)
		}
		return b.String()
	}
	const toUTF8 = "convert the file to UTF-8, as by iconv -f UTF-16 -t UTF-8 FILE"
	for name, c := range map[string]struct{ text, line, message, hint string }{
		"NUL": {object + strings.Repeat("  # a comment\n", 11) +
			"  b: \"c\x00d\"\n", "17", "the control character U+0000, which YAML does not have",
			"remove it, or write it between double quotes as \"\\u0000\""},
		"escape": {object + "  b: \x1b[2J\n", "6",
			"the control character U+001B, which YAML does not have",
			"remove it, or write it between double quotes as \"\\u001b\""},
		"delete": {object + "  b: é\x7f\n", "6",
			"the control character U+007F, which YAML does not have",
			"remove it, or write it between double quotes as \"\\u007f\""},
		"C1": {object + "  b: é\n  c: \u0090\n", "7",
			"the control character U+0090, which YAML does not have",
			"remove it, or write it between double quotes as \"\\u0090\""},
		"NUL in the second": {object + "---\n" + object + "  b: \x00\n", "12",
			"the control character U+0000, which YAML does not have",
			"remove it, or write it between double quotes as \"\\u0000\""},
		"Latin-1": {object + "  b: c\xe9\n", "6", "not valid UTF-8 (byte 0xe9)",
			"correct the YAML"},
		"UTF-16": {encode(binary.LittleEndian, "\ufeff"), "1",
			"UTF-16, where manifests are UTF-8", toUTF8},
		"UTF-16 big": {encode(binary.BigEndian, "\ufeff"), "1",
			"UTF-16, where manifests are UTF-8", toUTF8},
		"UTF-16 without mark": {encode(binary.LittleEndian, ""), "1",
			"UTF-16, where manifests are UTF-8", toUTF8},
		"UTF-16 big, no mark": {encode(binary.BigEndian, ""), "1",
			"UTF-16, where manifests are UTF-8", toUTF8},
		"nested brackets": {nested(4000, "[", "]"), "6", "nested more than 200 levels deep",
			"correct the YAML"},
		"nested braces": {nested(4000, "{\"a\": ", "}"), "6",
			"nested more than 200 levels deep", "correct the YAML"},
		"nested dashes": {object + "  x:\n  " + strings.Repeat("- ", 4000) + "a\n", "7",
			"nested more than 200 levels deep", "correct the YAML"},
		"nested blocks": {block(4000), "205", "nested more than 200 levels deep",
			"correct the YAML"},
		"nested with an alias": {"x: &x 1\ny: *x\n" + nested(4000, "[", "]"), "8",
			"nested more than 200 levels deep", "correct the YAML"},
		"complex keys": {object + "  x:\n    " + strings.Repeat("? ", 4000) + "a\n", "7",
			"nested more than 200 levels deep", "correct the YAML"},
		"nested aliases": {aliases(600), "203", "nested more than 200 levels deep",
			"correct the YAML"},
		"not that deep":      {nested(190, "[", "]"), "", "", ""},
		"deep and rewritten": {"x: &x 1\ny: *x\n" + nested(190, "[", "]"), "", "", ""},
	} {
		started := time.Now()
		result, err := render.Run(
			render.Source{Files: []render.File{{Path: "a.yaml", Data: []byte(c.text)}}}, render.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range result.Findings {
			got = append(got, fmt.Sprintf("%s:%d: %s (%s)", f.File, f.Line, f.Message, f.Hint))
		}
		want := fmt.Sprintf("a.yaml:%s: %s (%s)", c.line, c.message, c.hint)
		if c.line == "" {
			want = ""
		}
		if strings.Join(got, "\n") != want {
			t.Errorf("%s: have %s, want %s", name, strings.Join(got, "\n"), want)
		}
		if took := time.Since(started); took > 20*time.Second {
			t.Errorf("%s: took %s", name, took)
		}
	}
}

// TestNoManifests: files of other programs do not stop a render, unless they may be objects
// after all.
func TestNoManifests(t *testing.T) {
	t.Parallel()
	const launch = "{\n  // a comment, as VS Code writes it\n  \"version\": \"0.2.0\"\n}\n"
	const broken = "a: !x y\nb:\n- c & d: e\n"
	for text, want := range map[string]string{
		"theme:\n  format: !!python/name:pymdownx.superfences.fence_code_format\nnav:\n" +
			"- Components & terminology: concepts.md\n": "",
		broken:                      "",
		launch:                      "warning: a.json:3: did not find expected ',' or '}'",
		"{// {{ a }}\n}":            "error",
		broken + "kind: Pod\n":      "error",
		broken + "apiVersion: v1\n": "error",
		broken + "!!binary YXBpVmVyc2lvbg==: v1\n":              "error",
		broken + "? [a]\n: b\n":                                 "error",
		strings.Replace(launch, "version", "api\\x56ersion", 1): "error",
		strings.Replace(launch, "version", "apiVersion", 1):     "error",
	} {
		file := "a.yaml"
		if text[0] == '{' {
			file = "a.json"
		}
		result, err := render.Run(
			render.Source{Files: []render.File{{Path: file, Data: []byte(text)}}}, render.Options{})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, f := range result.Findings {
			got += string(f.Severity) + ": " + f.String() + "\n"
		}
		if !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%q: have %q, want %q", text, got, want)
		}
	}
}
