package migrate

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/foreign"
	"github.com/armature-dev/armature/functions/text"
)

// Report describes the migration of one object of the input.
type Report struct {
	File   string      `json:"file,omitempty"`
	Line   int         `json:"line,omitempty"`
	Object finding.Ref `json:"object"`
	// Becomes are the objects that replace it; empty if it is dropped.
	Becomes []finding.Ref `json:"becomes"`
	// Fields are all its fields with a value.
	Fields []foreign.Field `json:"fields"`
	// Lost are settings of sidecars that the next render does not set.
	Lost []Lost `json:"lost,omitempty"`
	// Rolls are the running workloads, with the effect of applying the result.
	Rolls []Roll `json:"rolls,omitempty"`
}

// Roll says whether applying the migrated manifests restarts a workload.
type Roll struct {
	Workload finding.Ref `json:"workload"`
	Rolls    bool        `json:"rolls"`
	Why      string      `json:"why"`
}

// Lost lists the settings of an injected container that the rendered container lacks. Settings are
// variables, mounts and fields whose values differ.
type Lost struct {
	Container string   `json:"container"`
	Settings  []string `json:"settings"`
}

func (l Lost) String() string { return l.Container + ": " + strings.Join(l.Settings, ", ") }

// remedy is the hint about lost settings.
const remedy = "a render does not produce these as they ran; set those that must stay with a " +
	"TokenExchange, an annotation or armature.yaml"

// Formats returns the names of the formats of Write.
func Formats() []string { return []string{"text", "json", "markdown"} }

// Write writes reports. Text and Markdown count the fields that are kept, and name a value that is
// dropped as a whole once. JSON names all fields.
func Write(w io.Writer, format string, reports []Report) error {
	if format == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		if reports == nil {
			reports = []Report{}
		}
		return e.Encode(reports)
	}
	s, known := styles[format]
	if !known {
		return fmt.Errorf("unknown format %q: choose from %s", format, strings.Join(Formats(), ", "))
	}
	var b strings.Builder
	b.WriteString(s.title)
	for _, r := range reports {
		place := fmt.Sprintf("%s:%d", r.File, r.Line)
		if reason, same := leftOut(r); same {
			fmt.Fprintf(&b, s.leftOut, place, r.Object, text.Count(len(r.Fields), "field"), reason)
			continue
		}
		fmt.Fprintf(&b, s.report, place, r.Object, becomes(r))
		count := 0
		for _, f := range grouped(r.Fields) {
			if f.Fate == foreign.Kept {
				count++
				continue
			}
			fmt.Fprintf(&b, s.field, f.Fate, f.Path, why(f), cell(f.To+f.Reason))
		}
		if count > 0 {
			fmt.Fprintf(&b, s.kept, text.Count(count, "field"))
		}
		for _, l := range r.Lost {
			fmt.Fprintf(&b, s.lost, l, cell(l.String()), remedy)
		}
		for _, roll := range r.Rolls {
			verb := "does not roll"
			if roll.Rolls {
				verb = "rolls"
			}
			fmt.Fprintf(&b, s.roll, verb, roll.Workload, roll.Why)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// styles are the formats of the parts of a report, by name.
var styles = map[string]struct{ title, leftOut, report, field, kept, lost, roll string }{
	"text": {
		leftOut: "%s: %s is left out\n  dropped all %s (%s)\n", report: "%s: %s %s\n",
		field: "  %-7[1]s %[2]s%[3]s\n", kept: "  kept    %s\n", lost: "  lost    %[1]s (%[3]s)\n",
		roll: "  %s %s: %s\n",
	},
	"markdown": {
		title: "# Migration\n", leftOut: "\n## %[2]s\n\n`%[1]s` is left out: %[4]s.\n",
		report: "\n## %[2]s\n\n`%[1]s` %[3]s.\n\n| Field | Fate | Where, or why |\n|---|---|---|\n",
		field:  "| `%[2]s` | %[1]s | %[4]s |\n", kept: "| %s | kept | |\n",
		lost: "| %[2]s | lost | %[3]s |\n", roll: "\n**%s** %s: %s\n",
	},
}

// cell escapes a text for a Markdown table.
func cell(text string) string { return strings.ReplaceAll(text, "|", "\\|") }

// grouped returns the fields with one entry for each value that is dropped as a whole.
func grouped(all []foreign.Field) (fields []foreign.Field) {
	for _, f := range all {
		if n := len(fields); f.Within != "" && n > 0 && fields[n-1].Within == f.Within {
			continue
		}
		if f.Within != "" {
			f.Path = f.Within
		}
		fields = append(fields, f)
	}
	return fields
}

// leftOut returns the reason for which all fields of an object are dropped, if there is only one.
func leftOut(r Report) (reason string, same bool) {
	if len(r.Becomes) > 0 || len(r.Fields) == 0 {
		return "", false
	}
	for _, f := range r.Fields {
		if f.Fate != foreign.Dropped || f.Reason != r.Fields[0].Reason {
			return "", false
		}
	}
	return r.Fields[0].Reason, true
}

func becomes(r Report) string {
	if len(r.Becomes) == 0 {
		return "is left out"
	}
	if len(r.Becomes) == 1 && r.Becomes[0] == r.Object {
		return "is cleaned"
	}
	var names []string
	for _, ref := range r.Becomes {
		names = append(names, ref.Kind+" "+ref.Name)
	}
	return "becomes " + strings.Join(names, ", ")
}

func why(f foreign.Field) string {
	switch {
	case f.To != "":
		return " -> " + f.To
	case f.Reason != "":
		return " (" + f.Reason + ")"
	}
	return ""
}
