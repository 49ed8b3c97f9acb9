// Package database keeps the catalog in SQLite or PostgreSQL.
//
// Both understand the same statements, with placeholders from $1, but for the search index and for
// what their planners have to be told. Every write is one transaction and one upsert keyed by the
// object's UID; an older generation than the stored one is ignored. No network is asked inside a
// transaction.
package database

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/functions/multi"
)

// Store is safe for concurrent use. Several processes may share one.
type Store struct {
	read, write session
	counted     atomic.Pointer[counted]
}

// session is a pool of connections or a transaction, of either database.
type session struct {
	querier
	postgres bool
}

type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Open opens the store at address: postgres://…, or a file's path for SQLite. It brings the
// store to this version's schema; a newer schema is an error. A PostgreSQL that cannot be
// reached is not: each call fails until it can be, and Ping reports it.
func Open(ctx context.Context, address string) (*Store, error) {
	s, err := connect(address)
	if err != nil {
		return nil, err
	}
	if s.read.postgres {
		err = s.Ping(ctx) // the first connection migrates
		if unreachable(err) {
			err = nil
		}
	} else {
		err = migrate(ctx, s.write)
	}
	if err != nil {
		return nil, multi.Errors(err, s.Close())
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
			// it may hold a password
			return nil, errors.New("opening PostgreSQL: the connection string cannot be read")
		}
		db := sql.OpenDB(&migrating{Connector: stdlib.GetConnector(*config)})
		db.SetMaxOpenConns(8)
		return &Store{read: session{db, true}, write: session{db, true}}, nil
	}
	// The write-ahead log lets readers read while the one writer writes; FULL waits for the disk,
	// so that acknowledged changes survive a power cut.
	pragmas := url.Values{"_pragma": {"busy_timeout(10000)", "journal_mode(WAL)",
		"synchronous(FULL)", "foreign_keys(ON)", "cache_size(-8000)"}}
	name := "file:" + (&url.URL{Path: address}).EscapedPath() + "?" + pragmas.Encode()
	write, err := sql.Open("sqlite", name+"&_txlock=immediate")
	if err != nil {
		return nil, fmt.Errorf("opening SQLite %s: %w", address, err)
	}
	write.SetMaxOpenConns(1)
	read, err := sql.Open("sqlite", name+"&_pragma=query_only(ON)")
	if err != nil {
		return nil, fmt.Errorf("opening SQLite %s: %w", address, err)
	}
	read.SetMaxOpenConns(4)
	return &Store{read: session{read, false}, write: session{write, false}}, nil
}

// Shared reports whether processes on several machines can share the store.
func (s *Store) Shared() bool { return s.read.postgres }

// Close closes the store.
func (s *Store) Close() error {
	if s.read == s.write {
		return s.write.pool().Close()
	}
	return multi.Errors(s.read.pool().Close(), s.write.pool().Close())
}

// Ping asks whether the store answers.
func (s *Store) Ping(ctx context.Context) error { return s.read.pool().PingContext(ctx) }

// pool returns the connections of a session that is no transaction.
func (s session) pool() *sql.DB { return s.querier.(*sql.DB) }

func (s session) exec(ctx context.Context, query string, args ...any) error {
	_, err := s.ExecContext(ctx, query, args...)
	return err
}

// list returns the value that one reads from each row.
func list[T any](ctx context.Context, s session, one func(*sql.Rows) (T, error), query string,
	args ...any) (out []T, err error) {
	rows, err := s.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = multi.Errors(err, rows.Close()) }()
	for rows.Next() {
		v, err := one(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}

func scanText(rows *sql.Rows) (text string, err error) { return text, rows.Scan(&text) }

// arguments are those of a statement. Its placeholders are numbered, so that one may be used twice.
type arguments []any

// add returns the placeholder of a value.
func (a *arguments) add(v any) string {
	*a = append(*a, v)
	return "$" + strconv.Itoa(len(*a))
}

// transact runs do in one transaction, which is undone if do fails.
func (s session) transact(ctx context.Context, options *sql.TxOptions,
	do func(tx session) error) error {
	tx, err := s.pool().BeginTx(ctx, options)
	if err != nil {
		return fmt.Errorf("beginning a transaction: %w", err)
	}
	if err := do(session{tx, s.postgres}); err != nil {
		return multi.Errors(err, tx.Rollback())
	}
	return tx.Commit()
}

// change runs do in one transaction with the catalog's next revision. The revision's row
// serialises writers, so revisions commit in their order and a watcher misses none.
func (s *Store) change(ctx context.Context, do func(tx session, revision int64) error) error {
	err := s.write.transact(ctx, nil, func(tx session) error {
		var revision int64
		if err := tx.QueryRowContext(ctx,
			"UPDATE revision SET latest = latest + 1 RETURNING latest").Scan(&revision); err != nil {
			return err
		}
		return do(tx, revision)
	})
	if errors.Is(err, errUnchanged) {
		return nil
	}
	return err
}

var errUnchanged = errors.New("nothing changed")

// Put implements store.Store, in one transaction.
func (s *Store) Put(ctx context.Context, e store.Entry, items bool) (changed bool, err error) {
	row, err := store.NewRow(e, items)
	if err != nil {
		return false, err
	}
	if _, same, err := compare(ctx, s.read, row, items); err == nil && same {
		// most answers are the same as before: no lock for them
		return false, s.touch(ctx, e.UID, e.Fetched)
	}
	err = s.change(ctx, func(tx session, revision int64) error {
		itemsHash, same, err := compare(ctx, tx, row, items)
		if err != nil {
			return err
		}
		if same {
			return errUnchanged
		}
		if !items {
			row.ItemsHash = itemsHash
		}
		changed = true
		return putRow(ctx, tx, row, revision, items && itemsHash != row.ItemsHash)
	})
	if err != nil {
		return false, fmt.Errorf("storing %s %s/%s: %w", e.Resource, e.Namespace, e.Name, err)
	}
	return changed, nil
}

// compare compares a row with the stored one. same is also true for a row of an older generation,
// which is not written.
func compare(ctx context.Context, s session, row store.Row,
	items bool) (itemsHash string, same bool, err error) {
	var generation int64
	var content string
	err = s.QueryRowContext(ctx, "SELECT generation, hash, items_hash FROM entry WHERE uid = $1",
		row.Entry.UID).Scan(&generation, &content, &itemsHash)
	if errors.Is(err, sql.ErrNoRows) {
		return "", false, nil
	}
	same = generation > row.Entry.Generation ||
		content == row.Hash && (!items || itemsHash == row.ItemsHash)
	return itemsHash, same, err
}

// putRow writes a row that is known to differ.
func putRow(ctx context.Context, tx session, row store.Row, revision int64, items bool) error {
	e := row.Entry
	// An object that was created again under the same name has another UID.
	replaced, err := list(ctx, tx, scanText,
		"SELECT uid FROM entry WHERE resource = $1 AND namespace = $2 AND name = $3 AND uid <> $4",
		e.Resource, e.Namespace, e.Name, e.UID)
	for _, uid := range replaced {
		if err == nil {
			err = remove(ctx, tx, uid)
		}
	}
	if err == nil {
		err = tx.exec(ctx, `
INSERT INTO entry (uid, resource, type, namespace, name, generation, health, tool_lock, fetched, hash, items_hash, revision, body)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
ON CONFLICT (uid) DO UPDATE SET generation = excluded.generation, health = excluded.health, tool_lock = excluded.tool_lock,
  fetched = excluded.fetched, hash = excluded.hash, items_hash = excluded.items_hash, revision = excluded.revision, body = excluded.body
WHERE excluded.generation >= entry.generation`,
			e.UID, e.Resource, string(e.Type), e.Namespace, e.Name, e.Generation, string(e.Health),
			string(e.ToolLock), row.Fetched, row.Hash, row.ItemsHash, revision, row.Body)
	}
	if err != nil {
		return err
	}
	put := []store.Item{store.Self(e)}
	last := -1
	if items {
		put, last = append(put, e.Items...), math.MaxInt32
	}
	if err := dropItems(ctx, tx, e.UID, last); err != nil {
		return err
	}
	for i, item := range put {
		if err := putItem(ctx, tx, e, i-1, item); err != nil {
			return err
		}
	}
	return nil
}

// touch records that the source confirmed an unchanged entry. To spare the disk, it writes only if
// the recorded time is a minute old or more.
func (s *Store) touch(ctx context.Context, uid string, at time.Time) error {
	if at.IsZero() {
		return nil
	}
	var fetched int64
	err := s.read.QueryRowContext(ctx, "SELECT fetched FROM entry WHERE uid = $1", uid).Scan(&fetched)
	if errors.Is(err, sql.ErrNoRows) || err == nil && fetched > at.Add(-time.Minute).UnixMilli() {
		return nil
	}
	if err == nil {
		err = s.write.exec(ctx, "UPDATE entry SET fetched = $1 WHERE uid = $2", at.UnixMilli(), uid)
	}
	if err != nil {
		return fmt.Errorf("noting an answer: %w", err)
	}
	return nil
}

// Delete deletes the entry of an object that was deleted.
func (s *Store) Delete(ctx context.Context, key store.Key) error {
	err := s.change(ctx, func(tx session, revision int64) error {
		var uid string
		err := tx.QueryRowContext(ctx,
			"SELECT uid FROM entry WHERE resource = $1 AND namespace = $2 AND name = $3",
			key.Resource, key.Namespace, key.Name).Scan(&uid)
		if errors.Is(err, sql.ErrNoRows) {
			return errUnchanged
		}
		if err != nil {
			return err
		}
		return deleteEntry(ctx, tx, revision, uid)
	})
	if err != nil {
		return fmt.Errorf("deleting %s %s/%s from the catalog: %w", key.Resource, key.Namespace,
			key.Name, err)
	}
	return nil
}

// Sweep implements store.Store.
func (s *Store) Sweep(ctx context.Context, resource string,
	current func() (map[string]bool, error)) (deleted int, err error) {
	uids, err := list(ctx, s.read, scanText, "SELECT uid FROM entry WHERE resource = $1", resource)
	var keep map[string]bool
	if err == nil {
		keep, err = current()
	}
	for _, uid := range uids {
		if err == nil && !keep[uid] {
			err = s.change(ctx, func(tx session, revision int64) error {
				return deleteEntry(ctx, tx, revision, uid)
			})
			deleted++
		}
	}
	if err != nil {
		return 0, fmt.Errorf("sweeping %s: %w", resource, err)
	}
	return deleted, nil
}

// deleteEntry deletes an entry and records the deletion for watchers.
func deleteEntry(ctx context.Context, tx session, revision int64, uid string) error {
	result, err := tx.ExecContext(ctx,
		"INSERT INTO gone (revision, resource, type, namespace, name) SELECT $1, resource, type, "+
			"namespace, name FROM entry WHERE uid = $2", revision, uid)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return cmp.Or(err, errUnchanged)
	}
	return cmp.Or(tx.exec(ctx, "DELETE FROM gone WHERE revision < $1",
		revision-store.KeptDeletions), remove(ctx, tx, uid))
}

func remove(ctx context.Context, tx session, uid string) error {
	return cmp.Or(dropItems(ctx, tx, uid, math.MaxInt32),
		tx.exec(ctx, "DELETE FROM entry WHERE uid = $1", uid))
}

// dropItems deletes the items of an entry up to a position, which begins with -1 for the entry
// itself.
func dropItems(ctx context.Context, tx session, uid string, last int) error {
	if !tx.postgres {
		if err := tx.exec(ctx,
			"DELETE FROM words WHERE rowid IN (SELECT id FROM item WHERE uid = $1 AND "+
				"position <= $2)", uid, last); err != nil {
			return err
		}
	}
	return tx.exec(ctx, "DELETE FROM item WHERE uid = $1 AND position <= $2", uid, last)
}

func putItem(ctx context.Context, tx session, e store.Entry, position int, item store.Item) error {
	body, err := json.Marshal(item)
	if err != nil {
		return fmt.Errorf("item %s: %w", item.Name, err)
	}
	names := item.Names()
	tags := strings.Join(item.Tags, " ")
	if tx.postgres {
		return tx.exec(ctx,
			`INSERT INTO item (uid, position, kind, name, body, words) VALUES ($1, $2, $3, $4, $5,
setweight(to_tsvector('simple', $6), 'A') || setweight(to_tsvector('simple', $7), 'B') || setweight(to_tsvector('simple', $8), 'C'))`,
			e.UID, position, item.Kind, item.Name, body, names, tags, item.Description)
	}
	result, err := tx.ExecContext(ctx,
		"INSERT INTO item (uid, position, kind, name, body) VALUES ($1, $2, $3, $4, $5)", e.UID,
		position, item.Kind, item.Name, body)
	if err != nil {
		return err
	}
	id, err := result.LastInsertId()
	if err != nil {
		return err
	}
	return tx.exec(ctx,
		"INSERT INTO words (rowid, names, tags, description, scope) VALUES ($1, $2, $3, $4, $5)",
		id, names, tags, item.Description,
		scopeToken(e.Resource, "")+" "+scopeToken(e.Resource, e.Namespace)+" "+kindToken(item.Kind))
}
