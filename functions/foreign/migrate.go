// Package foreign converts objects of other agent platforms into plain manifests: it reports the
// fate of every field, removes the additions of admission webhooks and clusters, and compares the
// running objects with the rendered ones.
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

// Field is the fate of one field.
type Field struct {
	// Path is as in findings: spec.servicePorts[0].port.
	Path string `json:"path"`
	// Fate is Kept, Moved, Dropped or Added.
	Fate string `json:"fate"`
	// To is the new place of a moved field.
	To string `json:"to,omitempty"`
	// Reason says why a field was dropped or added.
	Reason string `json:"reason,omitempty"`
	// Within is the dropped field that is or contains this one.
	Within string `json:"-"`
}

// Rule is the fate of a field and of all fields below it, unless a rule has a longer path. If To
// ends in "…", the rest of the field's path is appended to it.
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

// rulesOf reads rules, one on each line: "kept PATH…", "moved PATH…: TO" or "dropped PATH…:
// REASON".
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

// Fields returns the fate of every field of an object. expands says that it expands by the given
// rules, as text; done are the fields that were dropped from it or added, with their reasons. A
// field without a rule is an error, so that none is lost silently.
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

// Leaves visits all values that are not collections, and empty collections.
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
