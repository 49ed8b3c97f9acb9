package store

import "slices"

// Scope is what a caller may see: by resource the namespaces, or All. Its zero
// value sees nothing.
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
	// Skill and Tag are words of a skill's name and of a tag that the entry has; empty is
	// any.
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

// Names reports whether a query picks what has a key and a type.
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

// Count is how many entries of a resource have a health.
type Count struct {
	Resource string
	Health   Health
	Entries  int
}
