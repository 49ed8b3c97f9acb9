// Package finding defines findings: messages about a render with their place and remedy.
package finding

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/text"
)

// Severity ranks a finding with the names of the KRM Functions Specification.
type Severity string

// An Error stops the render; a Warning or an Info accompanies the output.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
	Info    Severity = "info"
)

// Ref names an object of the package.
type Ref struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name,omitempty"`
}

// String returns Kind namespace/name, or Kind name if there is no namespace.
func (r Ref) String() string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.Namespace + "/" + r.Name
}

// Home returns "" for the default namespace, so that it equals an omitted one.
func Home(namespace string) string {
	if namespace == "default" {
		return ""
	}
	return namespace
}

// Finding is one fact that the author should know: a skip, a default, a conflict or a mistake, with
// its place and its remedy.
type Finding struct {
	// Rule is the stable name of the check, function first: "inject/port-clash".
	Rule     string   `json:"rule"`
	Severity Severity `json:"severity"`
	// Message states the problem, without the place.
	Message string `json:"message"`
	// Hint says how to fix it; it is empty if there is nothing to do.
	Hint string `json:"hint,omitempty"`
	Place
}

// Place locates a finding: in a file, in an object, or in both. The zero Place is unknown.
type Place struct {
	// File is relative to the root of the package; "-" is standard input.
	File string `json:"file,omitempty"`
	// Line of the file counts from 1; 0 is unknown.
	Line int `json:"line,omitempty"`
	// Field is the path inside the object: spec.template.spec.containers[0].image. If Key is set,
	// it is the path inside the text of the key.
	Field  string `json:"field,omitempty"`
	Object Ref    `json:"object,omitzero"`
	// Key is a key of a ConfigMap's data: template.yaml. KeyLine counts its lines from 1; 0 is
	// unknown.
	Key     string `json:"key,omitempty"`
	KeyLine int    `json:"keyLine,omitempty"`
}

// At returns the place with another field.
func (p Place) At(field string) Place {
	p.Field = field
	return p
}

// Fault returns an error at the place.
func (p Place) Fault(rule, message, hint string) *Finding {
	return &Finding{Rule: rule, Severity: Error, Message: message, Hint: hint, Place: p}
}

// String returns the file with its line, the object, and the key with its line: the part of a
// finding before the field.
func (p Place) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(text.Printable(p.File))
		if p.Line > 0 {
			fmt.Fprintf(&b, ":%d", p.Line)
		}
	}
	if p.Object.Kind == "" {
		return b.String()
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	b.WriteString(text.Printable(strings.TrimSuffix(p.Object.String(), " ")))
	if p.Key != "" {
		b.WriteString(", ")
		b.WriteString(text.Printable(p.Key))
		if p.KeyLine > 0 {
			fmt.Fprintf(&b, ":%d", p.KeyLine)
		}
	}
	return b.String()
}

// Error returns the text of a finding, for callers that stop at the first one.
func (f *Finding) Error() string { return f.String() }

// String returns the place, the problem and, on a second line, the remedy. It escapes control
// characters in names: they would reach a terminal, or look like a separate line of a log.
func (f Finding) String() string {
	var b strings.Builder
	at := f.Place
	if strings.HasPrefix(f.Message, at.Object.String()) {
		at.Object = Ref{} // the message begins with it
	}
	if place := at.String(); place != "" {
		b.WriteString(place)
		b.WriteString(": ")
	}
	if f.Field != "" {
		b.WriteString(text.Printable(f.Field))
		b.WriteString(": ")
	}
	b.WriteString(text.Printable(f.Message))
	if f.Hint != "" {
		b.WriteString("\n  hint: ")
		b.WriteString(text.Printable(f.Hint))
	}
	return b.String()
}

// Failed reports whether any finding is an error.
func Failed(fs []Finding) bool {
	return slices.ContainsFunc(fs, func(f Finding) bool { return f.Severity == Error })
}

// Sort orders findings by place, then rule, so that output never depends on the order in which
// files were processed.
func Sort(fs []Finding) {
	slices.SortStableFunc(fs, func(a, b Finding) int {
		return cmp.Or(
			cmp.Compare(a.File, b.File),
			cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Rule, b.Rule),
			cmp.Compare(a.Field, b.Field),
			cmp.Compare(a.Message, b.Message),
		)
	})
}
