package render_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/armature-dev/armature/functions/finding"
)

// spelt is an opted-in workload, with marks around what a spelling replaces.
const spelt = `«apiVersion»: ‹apps/v1›
«kind»: ‹Deployment›
«metadata»:
  «name»: ‹a›
  «labels»:
    «kagenti.io/inject»: ‹enabled›
«spec»:
  «template»:
    «spec»:
      «containers»:
      - «name»: ‹c›
        «image»: ‹d›
`

// spellings are ways to write a text that YAML reads as the same text. Each knows
// the column of the key that it writes, or that its value belongs to.
var spellings = map[string]func(text string, col int) string{
	"double": func(s string, _ int) string { return `"` + s + `"` },
	"single": func(s string, _ int) string { return "'" + s + "'" },
	"escaped": func(s string, _ int) string {
		return fmt.Sprintf(`"%s\u%04x%s"`, s[:len(s)/2], s[len(s)/2], s[len(s)/2+1:])
	},
	"hexadecimal": func(s string, _ int) string { return fmt.Sprintf(`"\x%02x%s"`, s[0], s[1:]) },
	"slash": func(s string, _ int) string {
		return `"` + strings.ReplaceAll(s, "/", `\/`) + `"`
	},
	"tagged":   func(s string, _ int) string { return "!!str " + s },
	"anchored": func(s string, _ int) string { return "&x " + s },
	"complex": func(s string, col int) string {
		return "? " + s + "\n" + strings.Repeat(" ", col)
	},
	"folded": func(s string, col int) string {
		return ">-\n" + strings.Repeat(" ", col+2) + s
	},
	"literal": func(s string, col int) string {
		return "|-\n" + strings.Repeat(" ", col+2) + s
	},
	"next line": func(s string, col int) string { return "\n" + strings.Repeat(" ", col+2) + s },
	"continued": func(s string, col int) string {
		return `"` + s[:1] + "\\\n" + strings.Repeat(" ", col+2) + s[1:] + `"`
	},
}

// spell replaces one of the marked texts, and removes the other marks.
func spell(nth int, as func(string, int) string) (text, what string) {
	var b strings.Builder
	col, i := 0, 0
	for line := range strings.Lines(spelt) {
		col = len(line) - len(strings.TrimLeft(line, " -"))
		for line != "" {
			at := strings.IndexAny(line, "«‹")
			if at < 0 {
				b.WriteString(line)
				break
			}
			b.WriteString(line[:at])
			open := []rune(line[at:])[0]
			word, rest, _ := strings.Cut(line[at+len(string(open)):],
				map[rune]string{'«': "»", '‹': "›"}[open])
			if i == nth {
				what = word
				word = as(word, col)
			}
			b.WriteString(word)
			line = rest
			i++
		}
	}
	return b.String(), what
}

// TestSpellings renders a workload however its keys and values are spelt: it is
// injected, or the render fails and says why. It is never passed over.
func TestSpellings(t *testing.T) {
	t.Parallel()
	marks := strings.Count(spelt, "«") + strings.Count(spelt, "‹")
	texts := map[string]string{
		"merged labels": "x-labels: &l\n  kagenti.io/inject: enabled\n" +
			strings.ReplaceAll(plainSpelt(), "    kagenti.io/inject: enabled\n", "    <<: *l\n"),
		"aliased labels": "x-labels: &l\n  kagenti.io/inject: enabled\n" +
			strings.ReplaceAll(plainSpelt(), "  labels:\n    kagenti.io/inject: enabled\n",
				"  labels: *l\n"),
		"aliased value": "x-on: &on enabled\n" +
			strings.ReplaceAll(plainSpelt(), "inject: enabled", "inject: *on"),
		"aliased key": "x-key: &key kagenti.io/inject\n" +
			strings.ReplaceAll(plainSpelt(), "kagenti.io/inject:", "*key :"),
		"odd key": strings.ReplaceAll(plainSpelt(), "spec:\n  template",
			"x-odd: {\"a\\tb\": c, \"\\U0001f600\": d, 'it''s: x': e}\nspec:\n  template"),
	}
	for name, as := range spellings {
		for i := range marks {
			text, what := spell(i, as)
			texts[fmt.Sprintf("%s %s", name, what)] = text
		}
	}
	c := config(t, small)
	for name, text := range texts {
		isKey := name != "odd key" &&
			!strings.Contains(spelt, "‹"+name[strings.LastIndexByte(name, ' ')+1:]+"›")
		if isKey &&
			(strings.HasPrefix(name, "folded") || strings.HasPrefix(name, "literal") ||
				strings.HasPrefix(name, "next line") || strings.HasPrefix(name, "continued")) ||
			!isKey && strings.HasPrefix(name, "complex") {
			continue // not YAML
		}
		indented := "  " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n  ") + "\n"
		for layout, text := range map[string]string{
			"document":      text,
			"item":          "apiVersion: v1\nkind: List\nitems:\n- " + indented[2:],
			"escaped items": "apiVersion: v1\nkind: List\n\"\\u0069tems\":\n- " + indented[2:],
			"escaped List":  "apiVersion: v1\nkind: \"\\u004cist\"\nitems:\n- " + indented[2:],
			"list in list": "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: List\n" +
				"  items:\n  - " + strings.ReplaceAll(indented[2:], "\n", "\n  "),
		} {
			if layout != "document" &&
				(strings.HasPrefix(name, "double") || !isKey && name != "odd key") {
				continue
			}
			result, problem := checkRenderAs(t, "x.yaml", []byte(text), c)
			if problem != "" {
				t.Errorf("%s, %s: %s\ninput:\n%s", name, layout, problem, text)
			}
			if failed := finding.Failed(result.Findings); result.Stats.Workloads == 0 && !failed ||
				failed && name == "odd key" && layout != "escaped items" {
				t.Errorf("%s, %s: passed over without a finding, or refused without need: %v\n"+
					"input:\n%s", name, layout, result.Findings, text)
			}
		}
	}
}

func plainSpelt() string {
	return strings.NewReplacer("«", "", "»", "", "‹", "", "›", "").Replace(spelt)
}
