package scalar_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/hashicorp/hcl"
	"go.yaml.in/yaml/v3"
	kyaml "sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/internal/scalar"
)

// awkward are strings that end a scalar, start a key or get expanded wherever
// they are written without care.
func awkward() []string {
	return []string{
		"", " ", "plain", "a b", "true", "null", "~", "1e3", "0x10", "1_000", "12:30", "- x",
		"key: value", "#no", "a #comment", `"`, `'`, `\`, `\n`, "a\nb: c", "a\r\nb", "tab\there",
		"trailing\n\n", "\x00", "\x1b[31m", "\x7f", "\u0085", "\u2028", "\ufeff", "\u00a0",
		"${HOME}", "$HOME", "$(POD_NAME)", "$$(X)", "$${X}", "${", "${unclosed", `${"nested"}`,
		"{{ .Values }}", "%{ if }", "a$", "$$", "ä€𝄞", "\U000e0001", "\U0010ffff", "<<", "*alias",
		"&anchor", "!tag", "|", ">", "%", "@", "`", "---", "...", "{a: b}", "[a]", "a,b",
	}
}

func TestYAML(t *testing.T) {
	for _, s := range awkward() {
		checkYAML(t, s)
	}
}

func checkYAML(t *testing.T, s string) {
	t.Helper()
	for name, scalarText := range map[string]string{
		"AppendYAML":  string(scalar.AppendYAML(nil, s)),
		"AppendPlain": string(scalar.AppendPlain(nil, s)),
		"AppendPath":  string(scalar.AppendPath(nil, s)),
	} {
		if strings.ContainsAny(scalarText, "\n\r\u0085\u2028\u2029") {
			t.Errorf("%s(%q) breaks the line: %q", name, s, scalarText)
		}
		var got map[string]any
		if err := yaml.Unmarshal([]byte("k: "+scalarText+"\nnext: 1\n"), &got); err != nil {
			t.Errorf("%s(%q) = %s: %v", name, s, scalarText, err)
		} else if got["k"] != s || len(got) != 2 {
			t.Errorf("%s(%q) = %s, read back as %#v", name, s, scalarText, got)
		}
		// Kubernetes' tools read YAML 1.1.
		got = nil
		if err := kyaml.Unmarshal([]byte("k: "+scalarText+"\n"), &got); err != nil || got["k"] != s {
			t.Errorf("%s(%q) = %s, read as YAML 1.1: %#v, %v", name, s, scalarText, got, err)
		}
		// The same inside a block scalar of another document.
		got = nil
		if err := yaml.Unmarshal([]byte("file: |\n  k: "+scalarText+"\nnext: 1\n"),
			&got); err != nil || got["file"] != "k: "+scalarText+"\n" {
			t.Errorf("%s(%q) = %s, inside a block scalar: %#v, %v", name, s, scalarText, got, err)
		}
	}
}

func TestPlain(t *testing.T) {
	for s, want := range map[string]string{
		"weather-agent": "weather-agent", "Deployment/x": "Deployment/x", "a.b": "a.b",
		"nullable": "nullable", "123": `"123"`, "1e3": `"1e3"`, "true": `"true"`, "No": `"No"`,
		"y": `"y"`, "a:b": `"a:b"`, "": `""`, "-a": `"-a"`,
	} {
		if got := string(scalar.AppendPlain(nil, s)); got != want {
			t.Errorf("AppendPlain(%q) = %s, want %s", s, got, want)
		}
	}
}

func TestJSON(t *testing.T) {
	for _, s := range awkward() {
		checkJSON(t, s)
	}
}

func checkJSON(t *testing.T, s string) {
	t.Helper()
	var got string
	if text := scalar.AppendJSON(nil, s); json.Unmarshal(text, &got) != nil || got != s {
		t.Errorf("AppendJSON(%q) = %s, read back as %q", s, text, got)
	}
}

func TestHCL(t *testing.T) {
	for _, s := range awkward() {
		checkHCL(t, s)
	}
}

func checkHCL(t *testing.T, s string) {
	t.Helper()
	text := string(scalar.AppendHCL(nil, s))
	var got struct {
		K    string `hcl:"k"`
		Next int    `hcl:"next"`
	}
	if err := hcl.Decode(&got, "k = "+text+"\nnext = 1\n"); err != nil {
		t.Errorf("AppendHCL(%q) = %s: %v", s, text, err)
	} else if got.K != s || got.Next != 1 {
		t.Errorf("AppendHCL(%q) = %s, read back as %+v", s, text, got)
	}
}

func TestEnv(t *testing.T) {
	for _, s := range awkward() {
		checkEnv(t, s)
	}
}

func checkEnv(t *testing.T, s string) {
	t.Helper()
	text := scalar.AppendEnv(nil, s)
	var got string
	if err := yaml.Unmarshal(text, &got); err != nil {
		t.Errorf("AppendEnv(%q) = %s: %v", s, text, err)
		return
	}
	if got = expand(got); got != s {
		t.Errorf("AppendEnv(%q) = %s, expanded to %q", s, text, got)
	}
}

// expand expands a variable's value as the kubelet does, with every variable set to "<expanded>".
func expand(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] != '$' || i+1 == len(s):
			b.WriteByte(s[i])
		case s[i+1] == '$':
			b.WriteByte('$')
			i++
		case s[i+1] == '(' && strings.Contains(s[i:], ")"):
			b.WriteString("<expanded>")
			i += strings.IndexByte(s[i:], ')')
		default:
			b.WriteByte('$')
		}
	}
	return b.String()
}

func TestPortable(t *testing.T) {
	for s, want := range map[string]bool{
		"": true, "a$": true, "$a": true, "a$b": true, "${NAME}": true, "x${N_1}y": true,
		"$(NAME)": true, "{a}": true, `{"a": {"b": "${NAME}"}}`: true, "{a: {b: c}}": true,
		"{": true, "{ ${NAME}": true, "{a": false, "{a${NAME}": false, "{a}${NAME}": true,
		"{a$$b}": false, "$$": false, "a$$b": false, "${": false, "${}": false, "${1}": false,
		"${a-b}": false, "${NAME:-x}": false, "$${NAME}": false,
	} {
		if got := scalar.Portable(s); got != want {
			t.Errorf("Portable(%q) = %v, want %v", s, got, want)
		}
	}
}

func FuzzScalars(f *testing.F) {
	for _, s := range awkward() {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !utf8.ValidString(s) {
			// YAML is Unicode: what was read from it is valid. Anything else must
			// still end up as one valid scalar.
			var got string
			if err := yaml.Unmarshal(scalar.AppendYAML(nil, s), &got); err != nil {
				t.Errorf("AppendYAML(%q): %v", s, err)
			}
			s = strings.ToValidUTF8(s, "\ufffd")
		}
		checkYAML(t, s)
		checkJSON(t, s)
		checkHCL(t, s)
		checkEnv(t, s)
	})
}

// TestInt compares with the API server's clients.
func TestInt(t *testing.T) {
	for _, s := range append(awkward(), "8080", "0x1F90", "0X1f90", "017620", "0o17620", "0b1111",
		"8_080", "+8080", "-1", "0", "8080.0", "8.08e3", "8080.5", "0x", "0x1p4", ".inf", "inf",
		"nan", "_1", "1_", "08", "8080a", "99999999999") {
		var read struct {
			Port *int32 `json:"port"`
		}
		err := kyaml.Unmarshal([]byte("port: "+s), &read)
		want := err == nil && read.Port != nil
		got, ok := scalar.Int(s)
		if ok && (got < -1<<31 || got > 1<<31-1) {
			ok = false // a number, which no port can be
		}
		if ok != want || want && got != int(*read.Port) {
			t.Errorf("%q is %d, %t to us, and %v, %v to Kubernetes", s, got, ok, read.Port, err)
		}
	}
}
