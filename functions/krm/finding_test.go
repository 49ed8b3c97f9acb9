package krm

import "testing"

// TestFindingString: a finding is one line and its hint, whatever its names hold.
func TestFindingString(t *testing.T) {
	web := Ref{APIVersion: "v1", Kind: "Pod", Namespace: "team", Name: "web"}
	for want, f := range map[string]Finding{
		"a.yaml:3: Pod team/web: spec.x: is bad\n  hint: correct it": {Message: "is bad", Hint: "correct it", Place: Place{File: "a.yaml", Line: 3, Field: "spec.x", Object: web}},
		"Pod team/web is bad": {Message: "Pod team/web is bad", Place: Place{Object: web}},
		"Pod: is bad":         {Message: "is bad", Place: Place{Object: Ref{Kind: "Pod"}}},
		"is bad":              {Message: "is bad"},
		`a\n.yaml: Pod \x1b[31m: \u202e: x\r\n::error::y` + "\n" + `  hint: \a\u0085\u2028`: {Message: "x\r\n::error::y", Hint: "\a\u0085\u2028",
			Place: Place{File: "a\n.yaml", Object: Ref{Kind: "Pod", Name: "\x1b[31m"}, Field: "\u202e"}},
		"a.yaml:3: ConfigMap team/scan, scan.yaml:12: steps[0]: is bad": {Message: "is bad",
			Place: Place{File: "a.yaml", Line: 3, Field: "steps[0]", Object: Ref{Kind: "ConfigMap", Namespace: "team", Name: "scan"}, Key: "scan.yaml", KeyLine: 12}},
		"Ä ☃ \U0001f680 … “x” keeps": {Message: "Ä ☃ \U0001f680 … “x” keeps"},
	} {
		if got := f.String(); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
}

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
