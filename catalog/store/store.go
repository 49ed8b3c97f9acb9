// Package store keeps the catalog: what agents and tool servers answered, by the
// object that made them known. It is SQLite in a file or in memory, or PostgreSQL.
//
// Every write is one transaction and one upsert keyed by the object's UID; an
// older generation than the stored one is ignored. Nobody asks a network inside
// a transaction.
package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite" // the driver "sqlite"
)

// Store is safe for concurrent use. Several processes may share one.
type Store struct {
	read, write *sql.DB
	postgres    bool
	copied      atomic.Pointer[Copy]
	away        atomic.Bool
}

// Memory is the address of a store that ends with the process.
const Memory = ":memory:"

// ErrNotFound reports that the entry does not exist.
var ErrNotFound = errors.New("not in the catalog")

// ErrExpired says that what changed after the given position is not known, so
// that a watcher has to begin again.
var ErrExpired = errors.New("this position is too old, or another store's: list again")

// Open the store at address: postgres://…, a file's path for SQLite, or Memory.
// It is brought to this version's schema; a newer schema is an error. A PostgreSQL
// that cannot be reached is not: each call fails until it can be, and Ping reports it.
func Open(ctx context.Context, address string) (*Store, error) {
	s, err := connect(address)
	if err != nil {
		return nil, err
	}
	if s.postgres {
		err = s.Ping(ctx) // the first connection migrates
		if unreachable(err) {
			err = nil
		}
	} else {
		err = s.migrate(ctx, s.write)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// unreachable reports whether no PostgreSQL answered, or one that is about to: not
// that it refused a login.
func unreachable(err error) bool {
	var answer *pgconn.PgError
	if errors.As(err, &answer) {
		return answer.Code == "57P03" // cannot_connect_now
	}
	return errors.As(err, new(*pgconn.ConnectError))
}

func connect(address string) (*Store, error) {
	if strings.HasPrefix(address, "postgres://") || strings.HasPrefix(address, "postgresql://") {
		config, err := pgx.ParseConfig(address)
		if err != nil {
			return nil, errors.New("opening PostgreSQL: the connection string cannot be read") // it may hold a password
		}
		s := &Store{postgres: true}
		db := sql.OpenDB(&migrating{Connector: stdlib.GetConnector(*config), migrate: s.migrate})
		db.SetMaxOpenConns(8)
		s.read, s.write = db, db
		return s, nil
	}
	// The write-ahead log lets readers go on beside the one writer; FULL waits for
	// the disk, so what was acknowledged survives a power cut.
	pragmas := url.Values{"_pragma": {"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(ON)", "cache_size(-8000)"}}
	name := "file:" + (&url.URL{Path: address}).EscapedPath() + "?" + pragmas.Encode()
	if address == Memory {
		name = "file::memory:?" + pragmas.Encode()
	}
	write, err := sql.Open("sqlite", name+"&_txlock=immediate")
	if err != nil {
		return nil, fmt.Errorf("opening SQLite %s: %w", address, err)
	}
	write.SetMaxOpenConns(1)
	if address == Memory { // each connection would have a memory of its own
		return &Store{read: write, write: write}, nil
	}
	read, err := sql.Open("sqlite", name+"&_pragma=query_only(ON)")
	if err != nil {
		return nil, fmt.Errorf("opening SQLite %s: %w", address, err)
	}
	read.SetMaxOpenConns(4)
	return &Store{read: read, write: write}, nil
}

// Close the store.
func (s *Store) Close() error {
	if s.read == s.write {
		return s.write.Close()
	}
	return errors.Join(s.read.Close(), s.write.Close())
}

// Ping asks whether the store answers.
func (s *Store) Ping(ctx context.Context) error { return s.read.PingContext(ctx) }

// bind numbers the placeholders as the database expects them.
func (s *Store) bind(query string) string {
	if !s.postgres {
		return query
	}
	var out strings.Builder
	n := 0
	for _, r := range query {
		if r != '?' {
			out.WriteRune(r)
			continue
		}
		n++
		fmt.Fprintf(&out, "$%d", n)
	}
	return out.String()
}

// transact runs do in one transaction with the catalog's next revision. The
// revision's row serialises writers, so revisions commit in their order and a
// watcher misses none.
func (s *Store) transact(ctx context.Context, do func(tx *sql.Tx, revision int64) error) error {
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("beginning a transaction: %w", err)
	}
	var revision int64
	err = tx.QueryRowContext(ctx, "UPDATE revision SET latest = latest + 1 RETURNING latest").Scan(&revision)
	if err == nil {
		err = do(tx, revision)
	}
	if errors.Is(err, errUnchanged) {
		return tx.Rollback()
	}
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

var errUnchanged = errors.New("nothing changed")

// Upsert writes an entry and leaves its items as they are. It reports whether
// anything changed; an older generation than the stored one changes nothing.
func (s *Store) Upsert(ctx context.Context, e Entry) (changed bool, err error) {
	return s.put(ctx, e, false)
}

// Replace writes an entry and all its items in one transaction.
func (s *Store) Replace(ctx context.Context, e Entry) (changed bool, err error) {
	return s.put(ctx, e, true)
}

func (s *Store) put(ctx context.Context, e Entry, items bool) (changed bool, err error) {
	row, err := newRow(e, items)
	if err != nil {
		return false, err
	}
	if _, same, err := s.compare(ctx, s.read, row, items); err == nil && same {
		return false, s.Touch(ctx, e.UID, e.Fetched) // most answers are the same as before: no lock for them
	}
	err = s.transact(ctx, func(tx *sql.Tx, revision int64) error {
		itemsHash, same, err := s.compare(ctx, tx, row, items)
		if err != nil {
			return err
		}
		if same {
			return errUnchanged
		}
		if !items {
			row.itemsHash = itemsHash
		}
		changed = true
		return s.putRow(ctx, tx, row, revision, items && itemsHash != row.itemsHash)
	})
	if err != nil {
		return false, fmt.Errorf("storing %s %s/%s: %w", e.Resource, e.Namespace, e.Name, err)
	}
	return changed, nil
}

// querier is a database or a transaction.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// compare a row with the stored one. The same is also what an older generation
// would write.
func (s *Store) compare(ctx context.Context, db querier, row row, items bool) (itemsHash string, same bool, err error) {
	var generation int64
	var content string
	err = db.QueryRowContext(ctx, s.bind("SELECT generation, hash, items_hash FROM entry WHERE uid = ?"), row.entry.UID).Scan(&generation, &content, &itemsHash)
	if errors.Is(err, sql.ErrNoRows) {
		return "", false, nil
	}
	same = generation > row.entry.Generation || content == row.hash && (!items || itemsHash == row.itemsHash)
	return itemsHash, same, err
}

// putRow writes what is known to differ.
func (s *Store) putRow(ctx context.Context, tx *sql.Tx, row row, revision int64, items bool) error {
	e := row.entry
	// An object that was made again under the same name has another UID.
	if err := s.remove(ctx, tx, "resource = ? AND namespace = ? AND name = ? AND uid <> ?", e.Resource, e.Namespace, e.Name, e.UID); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, s.bind(`
INSERT INTO entry (uid, resource, type, namespace, name, generation, health, fetched, hash, items_hash, revision, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (uid) DO UPDATE SET generation = excluded.generation, health = excluded.health, fetched = excluded.fetched,
  hash = excluded.hash, items_hash = excluded.items_hash, revision = excluded.revision, body = excluded.body
WHERE excluded.generation >= entry.generation`),
		e.UID, e.Resource, string(e.Type), e.Namespace, e.Name, e.Generation, string(e.Health), millis(e.Fetched), row.hash, row.itemsHash, revision, row.body)
	if err != nil {
		return err
	}
	if err := s.dropItems(ctx, tx, "uid = ? AND position < 0", e.UID); err != nil {
		return err
	}
	self := Item{Kind: string(e.Type), Name: e.Name, Title: e.Title, Description: e.Description, Tags: e.searchTags()}
	if err := s.putItem(ctx, tx, e, -1, self); err != nil {
		return err
	}
	if !items {
		return nil
	}
	if err := s.dropItems(ctx, tx, "uid = ? AND position >= 0", e.UID); err != nil {
		return err
	}
	for i, item := range e.Items {
		if err := s.putItem(ctx, tx, e, i, item); err != nil {
			return err
		}
	}
	return nil
}

// Touch records that the source confirmed an unchanged entry. To spare the disk
// it writes when the noted time is a minute old or more.
func (s *Store) Touch(ctx context.Context, uid string, at time.Time) error {
	if at.IsZero() {
		return nil
	}
	var fetched int64
	err := s.read.QueryRowContext(ctx, s.bind("SELECT fetched FROM entry WHERE uid = ?"), uid).Scan(&fetched)
	if errors.Is(err, sql.ErrNoRows) || err == nil && fetched > at.Add(-time.Minute).UnixMilli() {
		return nil
	}
	if err == nil {
		_, err = s.write.ExecContext(ctx, s.bind("UPDATE entry SET fetched = ? WHERE uid = ?"), millis(at), uid)
	}
	if err != nil {
		return fmt.Errorf("noting an answer: %w", err)
	}
	return nil
}

// Delete the entry of an object that is gone.
func (s *Store) Delete(ctx context.Context, key Key) error {
	err := s.transact(ctx, func(tx *sql.Tx, revision int64) error {
		return s.bury(ctx, tx, revision, "resource = ? AND namespace = ? AND name = ?", key.Resource, key.Namespace, key.Name)
	})
	if err != nil {
		return fmt.Errorf("deleting %s %s/%s from the catalog: %w", key.Resource, key.Namespace, key.Name, err)
	}
	return nil
}

// Sweep deletes the entries of a resource whose UID is not among those that
// current gives: they vanished while nobody watched. current is called after the
// entries are read, so that an entry that is stored meanwhile stays.
func (s *Store) Sweep(ctx context.Context, resource string, current func() (map[string]bool, error)) (gone int, err error) {
	uids, err := column[string](ctx, s.read, s.bind("SELECT uid FROM entry WHERE resource = ?"), resource)
	if err != nil {
		return 0, fmt.Errorf("sweeping %s: %w", resource, err)
	}
	keep, err := current()
	if err != nil {
		return 0, fmt.Errorf("sweeping %s: %w", resource, err)
	}
	for _, uid := range uids {
		if keep[uid] {
			continue
		}
		err := s.transact(ctx, func(tx *sql.Tx, revision int64) error { return s.bury(ctx, tx, revision, "uid = ?", uid) })
		if err != nil {
			return gone, fmt.Errorf("sweeping %s: %w", resource, err)
		}
		gone++
	}
	return gone, nil
}

// keptTombs is how many deletions watchers can still learn of.
const keptTombs = 10000

// bury deletes entries and remembers their names for watchers.
func (s *Store) bury(ctx context.Context, tx *sql.Tx, revision int64, where string, args ...any) error {
	result, err := tx.ExecContext(ctx, s.bind("INSERT INTO gone (revision, resource, type, namespace, name) SELECT ?, resource, type, namespace, name FROM entry WHERE "+where),
		append([]any{revision}, args...)...)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, errUnchanged)
	}
	if _, err := tx.ExecContext(ctx, s.bind("DELETE FROM gone WHERE revision < ?"), revision-keptTombs); err != nil {
		return err
	}
	return s.remove(ctx, tx, where, args...)
}

func (s *Store) remove(ctx context.Context, tx *sql.Tx, where string, args ...any) error {
	if err := s.dropItems(ctx, tx, "uid IN (SELECT uid FROM entry WHERE "+where+")", args...); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, s.bind("DELETE FROM entry WHERE "+where), args...)
	return err
}

func (s *Store) dropItems(ctx context.Context, tx *sql.Tx, where string, args ...any) error {
	if !s.postgres {
		if _, err := tx.ExecContext(ctx, "DELETE FROM words WHERE rowid IN (SELECT id FROM item WHERE "+where+")", args...); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, s.bind("DELETE FROM item WHERE "+where), args...)
	return err
}

func (s *Store) putItem(ctx context.Context, tx *sql.Tx, e Entry, position int, item Item) error {
	body, err := json.Marshal(item)
	if err != nil {
		return fmt.Errorf("item %s: %w", item.Name, err)
	}
	names := strings.Join([]string{item.Name, splitName(item.Name), item.Title}, " ")
	tags := strings.Join(item.Tags, " ")
	if s.postgres {
		_, err := tx.ExecContext(ctx, s.bind(`INSERT INTO item (uid, position, kind, name, body, words) VALUES (?, ?, ?, ?, ?,
setweight(to_tsvector('simple', ?), 'A') || setweight(to_tsvector('simple', ?), 'B') || setweight(to_tsvector('simple', ?), 'C'))`),
			e.UID, position, item.Kind, item.Name, body, names, tags, item.Description)
		return err
	}
	result, err := tx.ExecContext(ctx, "INSERT INTO item (uid, position, kind, name, body) VALUES (?, ?, ?, ?, ?)", e.UID, position, item.Kind, item.Name, body)
	if err != nil {
		return err
	}
	id, err := result.LastInsertId()
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO words (rowid, names, tags, description, scope) VALUES (?, ?, ?, ?, ?)",
		id, names, tags, item.Description, scopeToken(e.Resource, "")+" "+scopeToken(e.Resource, e.Namespace)+" "+kindToken(item.Kind))
	return err
}

// column reads the only column of a query.
func column[T any](ctx context.Context, db *sql.DB, query string, args ...any) (out []T, err error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var v T
		if err := rows.Scan(&v); err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}

func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}
