package store

import (
	"context"
	"slices"
	"strings"
	"unicode"
)

// Scope is what a caller may see: by resource the namespaces, or All. Its zero value sees nothing.
type Scope map[string]Namespaces

// Namespaces are those of a resource that a caller may list.
type Namespaces struct {
	All   bool
	Names []string
}

// Everything returns the scope of all that a store has, for callers that no rights limit.
func Everything() Scope { return Scope{"*": {All: true}} }

// Allows reports whether the scope covers an entry.
func (s Scope) Allows(key Key) bool {
	for _, resource := range []string{"*", key.Resource} {
		n := s[resource]
		if n.All || slices.Contains(n.Names, key.Namespace) {
			return true
		}
	}
	return false
}

// Query picks entries or items.
type Query struct {
	// Scope of the caller; nothing is found outside.
	Scope Scope
	// Type, Resource, Namespace and Health that an entry has to have; empty is any.
	Type      Type
	Resource  string
	Namespace string
	Health    Health
	// Skill and Tag are words of a skill's name and of a tag that the entry has; empty is any.
	Skill, Tag string
	// Drifted picks the servers whose tools differ from the lock.
	Drifted bool
	// Kind of the item, for Search: tool, skill, agent, …; empty is any.
	Kind string
	// Text to search for: every word, or the beginning of one.
	Text string
	// Limit of the answer; zero is 100, and 1000 the most.
	Limit int
	// After is the key that the answer before this one ended with.
	After Key
	// Latest is the order of List by what changed last, without After.
	Latest bool
}

// Names reports whether a query picks entries with a key and a type.
func (q Query) Names(key Key, of Type) bool {
	return (q.Type == "" || q.Type == of) && (q.Resource == "" || q.Resource == key.Resource) &&
		(q.Namespace == "" || q.Namespace == key.Namespace)
}

// Most returns how long an answer may be.
func (q Query) Most() int {
	if q.Limit <= 0 {
		return 100
	}
	return min(q.Limit, 1000)
}

// EntryList is a page of entries, as the catalog's HTTP API answers.
type EntryList struct {
	Items []Entry `json:"items"`
	// Next asks for the page after this one, as the parameter after; empty is the end.
	Next string `json:"next,omitempty"`
}

// Hit is one thing that a search found: an entry, or an item of it.
type Hit struct {
	Entry Entry   `json:"entry"`
	Item  *Item   `json:"item,omitempty"`
	Score float64 `json:"score"`
}

// HitList is what a search found, best first, as the catalog's HTTP API answers.
type HitList struct {
	Items []Hit `json:"items"`
}

// Words returns the words of a text, as all stores split them. They have no characters with a
// meaning for a database.
func Words(text string) []string {
	words := strings.FieldsFunc(strings.ToLower(text),
		func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	return words[:min(len(words), 16)]
}

// Group is how many entries of a resource, a namespace and a type are in a state.
type Group struct {
	Resource, Namespace string
	Type                Type
	Health              Health
	ToolLock            ToolLock
	Entries             int
}

// Places returns the namespaces with entries of a type, by resource; "" is any type.
func Places(ctx context.Context, s Store, of Type) (map[string][]string, error) {
	groups, err := s.Groups(ctx)
	out := map[string][]string{}
	for _, g := range groups {
		if of != "" && of != g.Type {
			continue
		}
		if in := out[g.Resource]; len(in) == 0 || in[len(in)-1] != g.Namespace {
			out[g.Resource] = append(in, g.Namespace)
		}
	}
	return out, err
}

// Tally counts the entries that a query picks, by health; Skill and Tag do not matter.
func Tally(ctx context.Context, s Store, q Query) (map[Health]int, error) {
	groups, err := s.Groups(ctx)
	named := map[[2]string]bool{} // namespaces by resource
	for resource, n := range q.Scope {
		for _, name := range n.Names {
			named[[2]string{resource, name}] = true
		}
	}
	out := map[Health]int{}
	for _, g := range groups {
		allowed := q.Scope["*"].All || q.Scope[g.Resource].All ||
			named[[2]string{g.Resource, g.Namespace}] || named[[2]string{"*", g.Namespace}]
		if allowed && q.Names(Key{Resource: g.Resource, Namespace: g.Namespace}, g.Type) &&
			(q.Health == "" || q.Health == g.Health) &&
			(!q.Drifted || g.ToolLock == ToolsDrifted) {
			out[g.Health] += g.Entries
		}
	}
	return out, err
}
