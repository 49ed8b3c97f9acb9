// Package store says what the catalog keeps: what agents and tool servers answered, by the
// object that made them known. Memory keeps it in this process; catalog/store/database has
// SQLite and PostgreSQL, which commands do not link.
package store

import (
	"context"
	"errors"
	"time"
)

// Store is safe for concurrent use. An older generation of an entry than the stored one is
// ignored.
type Store interface {
	// Upsert writes an entry and leaves its items as they are. It reports whether anything
	// changed.
	Upsert(ctx context.Context, e Entry) (changed bool, err error)
	// Replace writes an entry and all its items at once.
	Replace(ctx context.Context, e Entry) (changed bool, err error)
	// Delete the entry of an object that was deleted.
	Delete(ctx context.Context, key Key) error
	// Sweep deletes the entries of a resource whose UID is not among those that current
	// returns: their objects were deleted while no controller ran. current is called after the
	// entries are read, so that an entry that is stored meanwhile stays.
	Sweep(ctx context.Context, resource string,
		current func() (map[string]bool, error)) (gone int, err error)

	// List lists the entries that a query picks, by namespace and name, without items. More are
	// there when the answer is as long as the limit.
	List(ctx context.Context, q Query) ([]Entry, error)
	// Page returns List with how many entries the query picks, on this page and all others.
	Page(ctx context.Context, q Query) (entries []Entry, total int, err error)
	// Get one entry with its items, or ErrNotFound.
	Get(ctx context.Context, key Key) (Entry, error)
	// Summary returns one entry without its items, or ErrNotFound.
	Summary(ctx context.Context, key Key) (Entry, error)
	// Search searches for words in names, titles, descriptions, tags and skills, best match
	// first: what is named so, then what has the words in its names, its tags, its description.
	Search(ctx context.Context, q Query) ([]Hit, error)
	// Places are the namespaces with entries of a type, by resource; "" is any type.
	Places(ctx context.Context, of Type) (map[string][]string, error)
	// Tally counts the entries that a query picks, by health; Skill and Tag do not matter.
	Tally(ctx context.Context, q Query) (map[Health]int, error)
	// Counts returns the counts of entries, and how many items they have together.
	Counts(ctx context.Context) (counts []Count, items int, err error)

	// Changes returns the changes after a position, oldest first, as far as a query picks them.
	// latest is the position to go on from. An entry that changed twice is there once. After a
	// position that is too old, or another store's, it is ErrExpired.
	Changes(ctx context.Context, after Position,
		q Query) (changes []Change, latest Position, err error)
	// Position of the latest change.
	Position(ctx context.Context) (latest Position, err error)

	// BeginSession keeps a session until it expires.
	BeginSession(ctx context.Context, secret string, v Session, now time.Time) error
	// FindSession returns the session of a secret. The error is ErrNotFound where it does not
	// exist, or is over.
	FindSession(ctx context.Context, secret string, now time.Time) (Session, error)
	// EndSession of a secret; one that does not exist is over already.
	EndSession(ctx context.Context, secret string) error

	// Ping asks whether the store answers.
	Ping(ctx context.Context) error
	Close() error
}

// ErrNotFound reports that the entry does not exist.
var ErrNotFound = errors.New("not in the catalog")

// ErrExpired says that what changed after the given position is not known, so
// that a watcher has to begin again.
var ErrExpired = errors.New("this position is too old, or another store's: list again")
