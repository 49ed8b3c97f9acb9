// Package foreign takes objects of other agent platforms to plain manifests:
// it says of every field what becomes of it, takes out what admission webhooks
// and clusters have put in, and compares what runs with what will.
package foreign

import (
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

// MovedTo returns the rules for fields that go to one place.
func MovedTo(to string, paths ...string) (rules []Rule) {
	for _, path := range paths {
		rules = append(rules, Rule{Path: path, Fate: Moved, To: to})
	}
	return rules
}

const clusters = "the cluster's own"

// metadata are the rules for every object.
var metadata = []Rule{
	{"apiVersion", Kept, "", ""}, {"kind", Kept, "", ""}, {"metadata", Kept, "", ""},
	{"metadata.uid", Dropped, "", clusters}, {"metadata.resourceVersion", Dropped, "", clusters},
	{"metadata.generation", Dropped, "", clusters}, {"metadata.creationTimestamp", Dropped, "", clusters},
	{"metadata.managedFields", Dropped, "", clusters}, {"metadata.selfLink", Dropped, "", clusters},
	{"metadata.ownerReferences", Dropped, "", "the owner is migrated, or creates the object again"},
	{"metadata.finalizers", Dropped, "", "the controller that clears it is gone"},
	{"metadata.annotations[kubectl.kubernetes.io/last-applied-configuration]", Dropped, "",
		"kubectl's books"},
	{"metadata.annotations[deployment.kubernetes.io/revision]", Dropped, "", clusters},
	{"status", Dropped, "", "observed, not declared"},
}

// custom are the rules for the resources that expand.
var custom = []Rule{
	{"apiVersion", Moved, "the apiVersion of each object", ""},
	{"kind", Moved, "the kind of each object", ""},
	{"metadata.name", Moved, "the names of the objects", ""}, {"metadata.namespace", Kept, "", ""},
	{"metadata.labels", Moved, "metadata.labels of the objects and of the pods", ""},
	{"metadata.annotations", Moved, "metadata.annotations of the workload", ""},
}

// Fields says of every field of an object what becomes of it. expands says that
// it expands, and by which rules; done are the fields that
// were dropped from it or added, with their reasons. A field for which there is
// no rule is an error, so that none is lost in silence.
func Fields(o *krm.Object, expands bool, rules []Rule, done []Field) ([]Field, error) {
	table := slices.Clone(metadata)
	if !expands {
		table = append(table, Rule{"", Kept, "", ""})
	} else {
		table = append(append(table, custom...), rules...)
	}
	var fields []Field
	var lost []string
	leaves(o.Root(), "", func(path string) {
		if i := slices.IndexFunc(done,
			func(f Field) bool { return f.Fate == Dropped && below(path, f.Path) }); i >= 0 {
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
		if below(path, r.Path) && (!found || len(r.Path) >= len(best.Path)) {
			best, found = r, true
		}
	}
	return best, found
}

var index = text.Pattern(`\[\d+\]`)

// below reports whether a field is another one, or inside it.
func below(path, above string) bool {
	rest, ok := strings.CutPrefix(path, above)
	return ok && (above == "" || rest == "" || rest[0] == '.' || rest[0] == '[')
}

// leaves visits every value that is not a collection, or an empty one.
func leaves(n krm.Node, path string, visit func(path string)) {
	switch {
	case n.IsMap() && n.Len() > 0:
		for key, value := range n.Fields() {
			leaves(value, join(path, key), visit)
		}
	case n.IsList() && n.Len() > 0:
		i := 0
		for item := range n.Items() {
			leaves(item, fmt.Sprintf("%s[%d]", path, i), visit)
			i++
		}
	case path != "":
		visit(path)
	}
}

func join(path, key string) string {
	switch {
	case strings.ContainsAny(key, "./"):
		return path + "[" + key + "]"
	case path == "":
		return key
	}
	return path + "." + key
}
