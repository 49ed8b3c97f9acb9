package store

import (
	"fmt"
	"strconv"
	"strings"
)

// Change is one step of the catalog's history.
type Change struct {
	Revision int64 `json:"revision"`
	// Deleted entries have a key alone.
	Deleted bool `json:"deleted,omitempty"`
	Key
	Type  Type   `json:"type"`
	Entry *Entry `json:"entry,omitempty"`
}

// Position is a place in the history of one store. Its zero value is the beginning.
type Position struct {
	// Store is made up by each store when it is created, so that no position of
	// one that was lost means anything to the next; empty is any store's.
	Store    string
	Revision int64
}

// String returns the position as ParsePosition reads it.
func (p Position) String() string {
	if p.Store == "" {
		return strconv.FormatInt(p.Revision, 10)
	}
	return p.Store + "-" + strconv.FormatInt(p.Revision, 10)
}

// ParsePosition reads what String wrote.
func ParsePosition(text string) (p Position, err error) {
	number := text
	if at := strings.LastIndexByte(text, '-'); at > 0 {
		p.Store, number = text[:at], text[at+1:]
	}
	if p.Revision, err = strconv.ParseInt(number, 10, 64); err != nil || p.Revision < 0 {
		return Position{}, fmt.Errorf("%q is not a position in the catalog", text)
	}
	return p, nil
}

// KeptDeletions is how many deletions watchers can still learn of.
const KeptDeletions = 10000

// Known reports whether a store that is at latest knows all that changed after p.
func (p Position) Known(latest Position) bool {
	return (p.Store == "" || p.Store == latest.Store) && p.Revision <= latest.Revision &&
		(p.Revision == 0 || p.Revision >= latest.Revision-KeptDeletions)
}
