package contract

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
)

// Kind is a kind of custom resource that a function reads.
type Kind struct {
	Name string
	// Groups are the API groups in which it is read.
	Groups []Group
	// Versions are the known versions.
	Versions []string
	Use      Use
	// Fields is a value whose type has the fields of the kind, with JSON tags, to explain the
	// defaults of omitted fields. It is nil if nothing explains them.
	Fields any
	// Config is the field of the RenderConfig that configures the expansion of the kind: spec.asya.
	// It is empty if there is none.
	Config string
	// Shared says that a resource may affect objects in other files, without a reference in either
	// direction.
	Shared bool
	// Cluster says that the kind is cluster-scoped.
	Cluster bool
	// Own says that no other project has a kind of this name, so that one of another group is a
	// mistake.
	Own bool
}

// Use says how a custom resource is processed.
type Use int

// Uses of custom resources.
const (
	// Input is collected, and leaves the output.
	Input Use = iota
	// Stays is collected, and stays in the output.
	Stays
	// Expands is replaced by the objects that it generates.
	Expands
	// Refers is referenced by resources that expand, and stays in the output.
	Refers
	// Elsewhere is known, but read by another program.
	Elsewhere
)

// Group is an API group.
type Group struct {
	// Name is the group, "" for the one that is named after the label prefix.
	Name string
	// Open says that other projects define kinds in the group as well, so that a kind which no
	// function reads is not a mistake.
	Open bool
}

// Pillars are the groups of 001, one named after the label prefix; Agents are those of the
// published agents.
var (
	Pillars = []Group{{Name: keys.LabelPrefix}, {}}
	Agents  = []Group{{Name: keys.Kagenti}, {Name: keys.Rossoctl}}
)

// is reports whether an apiVersion belongs to the group.
func (g Group) is(apiVersion, prefix string) bool {
	have, _, _ := strings.Cut(apiVersion, "/")
	return have == cmp.Or(g.Name, prefix)
}

// Owned is a kind with the function that owns it.
type Owned struct {
	*Kind
	// Row is the index of the function in the table.
	Row int
}

// Kinds are the kinds of all functions.
type Kinds struct {
	all    []Owned
	prefix string
}

// NewKinds collects the kinds of functions for a label prefix.
func NewKinds(table []Function, prefix string) *Kinds {
	k := &Kinds{prefix: prefix}
	for row := range table {
		for i := range table[row].Kinds {
			k.all = append(k.all, Owned{&table[row].Kinds[i], row})
		}
	}
	return k
}

// Find returns the kind that a function reads. Its version may be unknown.
func (k *Kinds) Find(apiVersion, name string) (Owned, bool) {
	for _, kind := range k.all {
		if kind.Name == name && kind.Use != Elsewhere && slices.ContainsFunc(kind.Groups,
			func(g Group) bool { return g.is(apiVersion, k.prefix) }) {
			return kind, true
		}
	}
	return Owned{}, false
}

// Read reports whether a function reads the kind.
func (k *Kinds) Read(apiVersion, name string) bool {
	_, read := k.Find(apiVersion, name)
	return read
}

// Expand reports whether objects of the kind generate others.
func (k *Kinds) Expand(apiVersion, name string) bool {
	kind, read := k.Find(apiVersion, name)
	return read && kind.Use.Resource()
}

// Resource reports whether a custom resource generates other objects, or is
// referenced by one that does.
func (u Use) Resource() bool { return u == Expands || u == Refers }

// Own returns a hint for the apiVersion of a kind that no other project has.
func (k *Kinds) Own(name string) (hint string, own bool) {
	for _, kind := range k.all {
		if kind.Name != name || !kind.Own {
			continue
		}
		for _, g := range kind.Groups {
			if g.Name == "" {
				return "write apiVersion: " + k.prefix + "/" + kind.Versions[0] +
					", or set spec.profile or spec.labelPrefix in the configuration", true
			}
		}
		return "write apiVersion: " + kind.Groups[0].Name + "/" + kind.Versions[0], true
	}
	return "", false
}

// InGroup returns the kinds of an apiVersion's group, unless other projects define kinds in it.
func (k *Kinds) InGroup(apiVersion string) (names []string) {
	for _, kind := range k.all {
		if slices.ContainsFunc(kind.Groups,
			func(g Group) bool { return !g.Open && g.is(apiVersion, k.prefix) }) {
			names = append(names, kind.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Input reports whether a function collects the custom resources of a kind.
func (k *Kinds) Input(name string) bool {
	return slices.ContainsFunc(k.all,
		func(kind Owned) bool { return kind.Name == name && kind.Use == Input })
}

// Shared returns the names of the shared kinds.
func (k *Kinds) Shared() (names []string) {
	for _, kind := range k.all {
		if kind.Shared {
			names = append(names, kind.Name)
		}
	}
	return names
}

// CheckVersion returns a finding about an unknown version of a kind.
func (k *Kind) CheckVersion(o *krm.Object) (f finding.Finding, known bool) {
	if _, version, _ := strings.Cut(o.APIVersion, "/"); !slices.Contains(k.Versions, version) {
		return o.Finding(finding.Error, "package/unknown-version", o.Get("apiVersion"),
				fmt.Sprintf("%s has no version %q", k.Name, version),
				"write "+strings.Join(k.Versions, " or ")),
			false
	}
	return finding.Finding{}, true
}
