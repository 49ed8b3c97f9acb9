package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// A PostgreSQL can be away while the catalog is asked. Follow keeps in memory what
// it holds, and Copy gives that to those who serve.

// Copy is what a store held when it last answered.
type Copy struct {
	// Store answers from memory; it is never written to through this field.
	Store *Store
	// AsOf is when the copied store last answered.
	AsOf time.Time
	// Missing is how many entries the copy has no room for.
	Missing int
}

// String says what an answer from the copy is worth.
func (c *Copy) String() string {
	text := "the catalog's store does not answer; this is what it held at " + c.AsOf.UTC().Format(time.RFC3339)
	if c.Missing > 0 {
		text += fmt.Sprintf(", without %d entries that did not fit into memory", c.Missing)
	}
	return text
}

const (
	copyLimit    = 32 << 20        // bytes of memory
	copyPeriod   = time.Second     // between two looks at what changed
	copyPatience = 5 * time.Second // for each answer of the store
	agesPeriod   = time.Minute     // between two looks at when entries were fetched
)

// Copy of the store, and whether the store did not answer when it was last asked.
// It is nil until Follow has read the store once, and for SQLite, which is never
// away.
func (s *Store) Copy() (c *Copy, away bool) { return s.copied.Load(), s.away.Load() }

// Ready is nil where the store, or its copy, can be asked.
func (s *Store) Ready(ctx context.Context) error {
	if s.copied.Load() != nil {
		return nil
	}
	return s.Ping(ctx)
}

// Follow keeps the copy of a PostgreSQL store until ctx ends. report is called
// with the error when the store can no longer be read, and with nil when it can
// again.
func (s *Store) Follow(ctx context.Context, report func(error)) error {
	if !s.postgres {
		<-ctx.Done()
		return nil
	}
	return s.follow(ctx, copyLimit, report)
}

func (s *Store) follow(ctx context.Context, limit int64, report func(error)) (err error) {
	memory, err := Open(ctx, Memory)
	if err != nil {
		return fmt.Errorf("making room for a copy of the catalog: %w", err)
	}
	f := &follower{from: s, to: memory, limit: limit, missing: map[Key]bool{}}
	defer func() {
		s.copied.Store(nil)
		err = errors.Join(err, memory.Close())
	}()
	ticker := time.NewTicker(copyPeriod)
	defer ticker.Stop()
	for failed := false; ; {
		asked := time.Now()
		latest, err := patient(ctx, s.Position)
		if ctx.Err() == nil {
			s.away.Store(err != nil)
		}
		if err == nil {
			err = f.catchUp(ctx, latest)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			s.copied.Store(&Copy{Store: memory, AsOf: asked, Missing: len(f.missing)})
		}
		if failed != (err != nil) {
			failed = err != nil
			report(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// follower brings a store's changes to its copy.
type follower struct {
	from, to *Store
	limit    int64
	at       Position
	missing  map[Key]bool
	removed  bool      // entries, whose words still take room
	ages     time.Time // when they were last looked at
}

// place of an entry in the store that is copied.
type place struct {
	Key
	revision int64
}

// catchUp with the store. Nothing is asked of it inside a transaction of the copy.
func (f *follower) catchUp(ctx context.Context, latest Position) error {
	if latest != f.at {
		if err := f.change(ctx, latest); err != nil {
			return err
		}
	}
	if time.Since(f.ages) < agesPeriod {
		return nil
	}
	if err := f.age(ctx); err != nil {
		return err
	}
	f.ages = time.Now()
	for key := range f.missing { // there may be room by now
		if err := f.bring(ctx, key); err != nil {
			return err
		}
		if f.missing[key] {
			break
		}
	}
	return nil
}

// bring an entry as it is now; one that is gone is a later change.
func (f *follower) bring(ctx context.Context, key Key) error {
	e, err := patient(ctx, func(ctx context.Context) (Entry, error) { return f.from.Get(ctx, key) })
	if errors.Is(err, ErrNotFound) {
		delete(f.missing, key)
		return nil
	}
	if err != nil {
		return err
	}
	return f.put(ctx, e)
}

// change brings what changed until latest, or everything where that is not known.
func (f *follower) change(ctx context.Context, latest Position) error {
	after := f.at.Revision
	whole := f.at.Store != latest.Store || after > latest.Revision || after < latest.Revision-keptTombs
	if whole {
		after = 0
		clear(f.missing)
	}
	gone, err := patient(ctx, func(ctx context.Context) ([]Change, error) { return f.from.deletions(ctx, after, latest.Revision) })
	if err != nil {
		return err
	}
	if err := f.remove(ctx, gone); err != nil { // it makes room
		return fmt.Errorf("copying the catalog: %w", err)
	}
	there := map[Key]bool{}
	for {
		places, err := patient(ctx, func(ctx context.Context) ([]place, error) { return f.from.places(ctx, after, latest.Revision) })
		if err != nil {
			return err
		}
		for _, p := range places {
			there[p.Key], after = true, p.revision
			if err := f.bring(ctx, p.Key); err != nil {
				return err
			}
		}
		if len(places) < placesPage {
			break
		}
	}
	if !whole {
		there = nil
	}
	if err := f.finish(ctx, latest, gone, there); err != nil {
		return fmt.Errorf("copying the catalog: %w", err)
	}
	f.at = latest
	return nil
}

const placesPage = 500

func (s *Store) places(ctx context.Context, after, until int64) ([]place, error) {
	rows, err := s.read.QueryContext(ctx, s.bind("SELECT resource, namespace, name, revision FROM entry WHERE revision > ? AND revision <= ? ORDER BY revision LIMIT ?"), after, until, placesPage)
	if err != nil {
		return nil, fmt.Errorf("reading changes: %w", err)
	}
	return scan(rows, func(rows *sql.Rows) (p place, err error) {
		return p, rows.Scan(&p.Resource, &p.Namespace, &p.Name, &p.revision)
	})
}

// put an entry into the copy, where there is room for it.
func (f *follower) put(ctx context.Context, e Entry) error {
	row, err := newRow(e, true)
	if err != nil {
		return err
	}
	tx, err := f.to.write.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("copying the catalog: %w", err)
	}
	fits, err := f.putIn(ctx, tx, row, e.Revision)
	if err != nil {
		return errors.Join(fmt.Errorf("copying the catalog: %w", err), tx.Rollback())
	}
	if delete(f.missing, e.Key); !fits {
		f.missing[e.Key] = true
	}
	return tx.Commit()
}

func (f *follower) putIn(ctx context.Context, tx *sql.Tx, row row, revision int64) (fits bool, err error) {
	if err := f.to.remove(ctx, tx, "resource = ? AND namespace = ? AND name = ?", row.entry.Resource, row.entry.Namespace, row.entry.Name); err != nil {
		return false, err
	}
	for {
		var used int64
		if err := tx.QueryRowContext(ctx, "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size").Scan(&used); err != nil {
			return false, err
		}
		if used+2*row.size <= f.limit { // its words take room as well
			f.removed = true // what was there of it
			return true, f.to.putRow(ctx, tx, row, revision, true)
		}
		if !f.removed {
			return false, nil
		}
		f.removed = false
		if _, err := tx.ExecContext(ctx, "INSERT INTO words (words) VALUES ('optimize')"); err != nil { // forgets the words of removed entries
			return false, err
		}
	}
}

// remove what is gone from the copy.
func (f *follower) remove(ctx context.Context, gone []Change) error {
	if len(gone) == 0 {
		return nil
	}
	tx, err := f.to.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	for _, c := range gone {
		delete(f.missing, c.Key) // one that was made again is brought again
		if err := f.to.remove(ctx, tx, "resource = ? AND namespace = ? AND name = ? AND revision <= ?", c.Resource, c.Namespace, c.Name, c.Revision); err != nil {
			return errors.Join(err, tx.Rollback())
		}
	}
	f.removed = true
	return tx.Commit()
}

// finish brings what watchers ask for: deletions, and the position. Where all is
// known that is there, the rest goes.
func (f *follower) finish(ctx context.Context, latest Position, gone []Change, there map[Key]bool) (err error) {
	tx, err := f.to.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tx.Rollback())
		}
	}()
	if there != nil {
		if _, err := tx.ExecContext(ctx, "DELETE FROM gone"); err != nil {
			return err
		}
		rows, err := tx.QueryContext(ctx, "SELECT resource, namespace, name FROM entry")
		if err != nil {
			return err
		}
		keys, err := scan(rows, func(rows *sql.Rows) (k Key, err error) { return k, rows.Scan(&k.Resource, &k.Namespace, &k.Name) })
		if err != nil {
			return err
		}
		for _, k := range keys {
			if there[k] {
				continue
			}
			if err := f.to.remove(ctx, tx, "resource = ? AND namespace = ? AND name = ?", k.Resource, k.Namespace, k.Name); err != nil {
				return err
			}
			f.removed = true
		}
	}
	for _, c := range gone {
		if _, err := tx.ExecContext(ctx, "INSERT INTO gone (revision, resource, type, namespace, name) VALUES (?, ?, ?, ?, ?)", c.Revision, c.Resource, string(c.Type), c.Namespace, c.Name); err != nil {
			return err
		}
	}
	for _, statement := range []struct {
		text string
		arg  any
	}{
		{"DELETE FROM gone WHERE revision < ?", latest.Revision - keptTombs},
		{"UPDATE identity SET id = ?", latest.Store},
		{"UPDATE revision SET latest = ?", latest.Revision},
	} {
		if _, err := tx.ExecContext(ctx, statement.text, statement.arg); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// age copies when entries were last confirmed: that alone is not a change.
func (f *follower) age(ctx context.Context) (err error) {
	type age struct {
		uid     string
		fetched int64
	}
	ages, err := patient(ctx, func(ctx context.Context) ([]age, error) {
		rows, err := f.from.read.QueryContext(ctx, "SELECT uid, fetched FROM entry")
		if err != nil {
			return nil, fmt.Errorf("reading the ages of entries: %w", err)
		}
		return scan(rows, func(rows *sql.Rows) (a age, err error) { return a, rows.Scan(&a.uid, &a.fetched) })
	})
	if err != nil {
		return err
	}
	tx, err := f.to.write.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("copying the catalog: %w", err)
	}
	for _, a := range ages {
		if _, err := tx.ExecContext(ctx, "UPDATE entry SET fetched = ? WHERE uid = ? AND fetched <> ?", a.fetched, a.uid, a.fetched); err != nil {
			return errors.Join(fmt.Errorf("copying the catalog: %w", err), tx.Rollback())
		}
	}
	return tx.Commit()
}

// patient gives one question to a store a deadline.
func patient[T any](ctx context.Context, ask func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, copyPatience)
	defer cancel()
	return ask(ctx)
}
