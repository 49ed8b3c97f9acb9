// Package store defines what the catalog stores: the answers of agents and tool servers, by the
// object that registers them. Memory stores them in this process; catalog/store/database has SQLite
// and PostgreSQL, which commands do not link.
package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Store is safe for concurrent use. An older generation of an entry than the stored one is ignored.
type Store interface {
	// Put writes an entry, with all its items, or without changing the stored ones. It reports
	// whether anything changed.
	Put(ctx context.Context, e Entry, items bool) (changed bool, err error)
	// Sweep deletes the entries of a resource whose UID is not among those that current
	// returns: their objects were deleted while no controller ran. current is called after the
	// entries are read, so that an entry that is stored meanwhile stays.
	Sweep(ctx context.Context, resource string,
		current func() (map[string]bool, error)) (deleted int, err error)

	// List lists the entries that a query picks, by namespace and name, without items. More are
	// there when the answer is as long as the limit.
	List(ctx context.Context, q Query) ([]Entry, error)
	// Page returns the entries of List, and how many the query picks, on this page and all others.
	Page(ctx context.Context, q Query) (entries []Entry, total int, err error)
	// Get returns one entry with its items, or ErrNotFound.
	Get(ctx context.Context, key Key) (Entry, error)
	// Search searches for words in names, titles, descriptions, tags and skills, best match first:
	// exact names, then matches in names, in tags, and in descriptions.
	Search(ctx context.Context, q Query) ([]Hit, error)
	// Groups counts all entries, by resource and namespace. They are shared: do not change them.
	Groups(ctx context.Context) ([]Group, error)
	// Position returns the position of the latest change.
	Position(ctx context.Context) (latest Position, err error)

	// BeginSession keeps a session until it expires.
	BeginSession(ctx context.Context, secret string, v Session, now time.Time) error
	// FindSession returns the session of a secret. The error is ErrNotFound if it does not exist,
	// or is over.
	FindSession(ctx context.Context, secret string, now time.Time) (Session, error)
	// EndSession ends the session of a secret; one that does not exist is over already.
	EndSession(ctx context.Context, secret string) error

	Close() error
}

// Followed is the store of a server: a controller fills it object by object, and watchers follow
// it.
type Followed interface {
	Store
	// Delete deletes the entry of an object that was deleted.
	Delete(ctx context.Context, key Key) error
	// Summary returns one entry without its items, or ErrNotFound.
	Summary(ctx context.Context, key Key) (Entry, error)
	// Items counts the items of all entries.
	Items(ctx context.Context) (int, error)
	// Changes returns the changes after a position, oldest first, that a query picks. latest is the
	// position to continue from. An entry that changed twice is there once. The error is ErrExpired
	// after a position that is too old, or that is another store's.
	Changes(ctx context.Context, after Position,
		q Query) (changes []Change, latest Position, err error)
}

// ErrNotFound reports that the entry does not exist.
var ErrNotFound = errors.New("not in the catalog")

// ErrExpired reports that the changes after the given position are not known, so that a watcher has
// to begin again.
var ErrExpired = errors.New("this position is too old, or another store's: list again")

// Session is the session of a person who signed in. It has no credential.
type Session struct {
	Name    string    `json:"name"`
	Groups  []string  `json:"groups,omitempty"`
	Expires time.Time `json:"expires"`
}

// Bounds of the sessions that are kept, of one person and of all. Those that expire first
// make room.
const (
	MaxOwnSessions = 20
	MaxSessions    = 10000
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
	// Store is a random name that each store gets when it is created, so that a position of a lost
	// store means nothing to its successor; empty is any store's.
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

// ParsePosition parses the result of String.
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
