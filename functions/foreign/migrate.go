// Package foreign takes objects of other agent platforms to plain manifests:
// it says of every field what becomes of it, takes out what admission webhooks
// and clusters have put in, and compares what runs with what will.
package foreign

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
)

// Fates of a field.
const (
	Kept    = "kept"
	Moved   = "moved"
	Dropped = "dropped"
	Added   = "added"
)

// Field says what becomes of one field.
type Field struct {
	// Path is as in findings: spec.servicePorts[0].port.
	Path string `json:"path"`
	// Fate is Kept, Moved, Dropped or Added.
	Fate string `json:"fate"`
	// To says where a moved field went.
	To string `json:"to,omitempty"`
	// Reason says why a field was dropped or added.
	Reason string `json:"reason,omitempty"`
	// Within is the field that is dropped as a whole, which this one is or is in.
	Within string `json:"-"`
}

// Rule is the fate of a field and of all below it, where no longer path has one.
// Where To ends in "…", what follows Path in the field follows it too.
type Rule struct{ Path, Fate, To, Reason string }

func (r Rule) destination(path string) string {
	to, deep := strings.CutSuffix(r.To, "…")
	if deep {
		return to + path[len(r.Path):]
	}
	return to
}

// Rules of every object, and of the resources that expand; see rulesOf.
var (
	//go:embed migrate.txt
	objectRules string
	//go:embed expand.txt
	expandRules string
)

// rulesOf reads rules, a line each: "kept PATH…", "moved PATH…: TO" or "dropped PATH…: REASON".
func rulesOf(text string) (rules []Rule) {
	for line := range strings.Lines(text) {
		fate, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		paths, says, _ := strings.Cut(rest, ": ")
		for path := range strings.FieldsSeq(paths) {
			r := Rule{Path: path, Fate: fate, To: says}
			if fate == Dropped {
				r.To, r.Reason = "", says
			}
			rules = append(rules, r)
		}
	}
	return rules
}

// Fields says of every field of an object what becomes of it. expands says that
// it expands, and by which rules, as text; done are the fields that
// were dropped from it or added, with their reasons. A field for which there is
// no rule is an error, so that none is lost in silence.
func Fields(o *krm.Object, expands bool, rules string, done []Field) ([]Field, error) {
	table := append(rulesOf(objectRules), Rule{"", Kept, "", ""})
	if expands {
		table = append(rulesOf(objectRules+expandRules), rulesOf(rules)...)
	}
	var fields []Field
	var lost []string
	Leaves(o.Root(), func(n krm.Node) {
		path := n.Path()
		if i := slices.IndexFunc(done,
			func(f Field) bool { return f.Fate == Dropped && text.Inside(path, f.Path) }); i >= 0 {
			fields = append(fields, Field{path, Dropped, "", done[i].Reason, done[i].Path})
			return
		}
		r, found := longest(table, path)
		if !found {
			lost = append(lost, path)
			return
		}
		fields = append(fields, Field{path, r.Fate, r.destination(path), r.Reason, ""})
	})
	for _, f := range done {
		if f.Fate == Added {
			fields = append(fields, f)
		}
	}
	if len(lost) > 0 {
		return nil, fmt.Errorf("no migration rule covers %s", strings.Join(lost, ", "))
	}
	return fields, nil
}

// longest returns the rule with the longest path at or above a field.
func longest(table []Rule, path string) (best Rule, found bool) {
	path = index().ReplaceAllString(path, "")
	for _, r := range table {
		if text.Inside(path, r.Path) && (!found || len(r.Path) >= len(best.Path)) {
			best, found = r, true
		}
	}
	return best, found
}

var index = text.Pattern(`\[\d+\]`)

// Leaves visits all values that are not a collection, or an empty one.
func Leaves(n krm.Node, visit func(krm.Node)) {
	switch {
	case n.IsMap() && n.Len() > 0:
		for _, value := range n.Fields() {
			Leaves(value, visit)
		}
	case n.IsList() && n.Len() > 0:
		for item := range n.Items() {
			Leaves(item, visit)
		}
	case n.Path() != "":
		visit(n)
	}
}
