package finding

import "testing"

func TestFindingString(t *testing.T) {
	web := Ref{APIVersion: "v1", Kind: "Pod", Namespace: "team", Name: "web"}
	for want, f := range map[string]Finding{
		"a.yaml:3: Pod team/web: spec.x: is bad\n  hint: correct it": {Message: "is bad",
			Hint:  "correct it",
			Place: Place{File: "a.yaml", Line: 3, Field: "spec.x", Object: web}},
		"Pod team/web is bad": {Message: "Pod team/web is bad", Place: Place{Object: web}},
		"Pod: is bad":         {Message: "is bad", Place: Place{Object: Ref{Kind: "Pod"}}},
		"is bad":              {Message: "is bad"},
		`a\n.yaml: Pod \x1b[31m: \u202e: x\r\n::error::y` + "\n" +
			`  hint: \a\u0085\u2028`: {Message: "x\r\n::error::y", Hint: "\a\u0085\u2028",
			Place: Place{File: "a\n.yaml", Object: Ref{Kind: "Pod", Name: "\x1b[31m"},
				Field: "\u202e"}},
		"a.yaml:3: ConfigMap team/scan, scan.yaml:12: steps[0]: is bad": {Message: "is bad",
			Place: Place{File: "a.yaml", Line: 3, Field: "steps[0]",
				Object: Ref{Kind: "ConfigMap", Namespace: "team", Name: "scan"}, Key: "scan.yaml",
				KeyLine: 12}},
		"Ä ☃ \U0001f680 … “x” keeps": {Message: "Ä ☃ \U0001f680 … “x” keeps"},
	} {
		if got := f.String(); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
}
