package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"sync/atomic"

	"github.com/armature-dev/armature/functions/multi"
)

// migration brings a store from one version of the schema to the next.
type migration struct{ both, sqlite, postgres []string }

// first is the version that the first migration leads to. Programs of earlier versions were
// never released.
const first = 5

// migrations returns the migrations in their order. What has been released is never edited: append.
func migrations() []migration {
	return []migration{{
		sqlite: []string{
			`CREATE TABLE entry (uid TEXT PRIMARY KEY, resource TEXT NOT NULL, type TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
  generation INTEGER NOT NULL, health TEXT NOT NULL, tool_lock TEXT NOT NULL, fetched INTEGER NOT NULL, hash TEXT NOT NULL,
  items_hash TEXT NOT NULL, revision INTEGER NOT NULL, body BLOB NOT NULL, UNIQUE (namespace, name, resource))`,
			`CREATE TABLE item (id INTEGER PRIMARY KEY, uid TEXT NOT NULL REFERENCES entry (uid), position INTEGER NOT NULL,
  kind TEXT NOT NULL, name TEXT NOT NULL, body BLOB NOT NULL, UNIQUE (uid, position))`,
			`CREATE INDEX item_entry ON item (id, uid)`,
			// The index has only words; their rows are in item.
			`CREATE VIRTUAL TABLE words USING fts5 (names, tags, description, scope, content='', contentless_delete=1, prefix='2 3',
  tokenize='unicode61 remove_diacritics 2')`,
			`CREATE TABLE session (id TEXT PRIMARY KEY, name TEXT NOT NULL, expires INTEGER NOT NULL, body BLOB NOT NULL)`,
			// distinguishes a lost store from its successor
			`CREATE TABLE identity (id TEXT NOT NULL)`,
			`INSERT INTO identity VALUES (lower(hex(randomblob(8))))`,
			`CREATE INDEX entry_list ON entry (type, namespace, name, resource, health, uid)`,
		},
		postgres: []string{
			`CREATE TABLE entry (uid TEXT PRIMARY KEY, resource TEXT NOT NULL, type TEXT NOT NULL, namespace TEXT COLLATE "C" NOT NULL,
  name TEXT COLLATE "C" NOT NULL, generation BIGINT NOT NULL, health TEXT NOT NULL, tool_lock TEXT NOT NULL, fetched BIGINT NOT NULL,
  hash TEXT NOT NULL, items_hash TEXT NOT NULL, revision BIGINT NOT NULL, body BYTEA NOT NULL, UNIQUE (namespace, name, resource))`,
			`CREATE TABLE item (id BIGSERIAL PRIMARY KEY, uid TEXT NOT NULL REFERENCES entry (uid), position INTEGER NOT NULL,
  kind TEXT NOT NULL, name TEXT NOT NULL, body BYTEA NOT NULL, words TSVECTOR NOT NULL, UNIQUE (uid, position))`,
			`CREATE INDEX item_words ON item USING GIN (words)`,
			`CREATE TABLE session (id TEXT PRIMARY KEY, name TEXT NOT NULL, expires BIGINT NOT NULL, body BYTEA NOT NULL)`,
			`CREATE TABLE identity (id TEXT NOT NULL)`,
			`INSERT INTO identity VALUES (left(md5(random()::text || clock_timestamp()::text), 16))`,
			`CREATE INDEX entry_list ON entry (type, namespace, name, resource, health)`,
		},
		both: []string{
			`CREATE TABLE revision (latest BIGINT NOT NULL)`,
			`INSERT INTO revision VALUES (0)`,
			`CREATE TABLE gone (revision BIGINT NOT NULL, resource TEXT NOT NULL, type TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL)`,
			`CREATE INDEX gone_revision ON gone (revision)`,
			`CREATE INDEX entry_revision ON entry (revision)`,
			// Pages are listed and counted without reading bodies, and counted from one index.
			`CREATE INDEX entry_count ON entry (resource, namespace, type, health, tool_lock)`,
			`CREATE INDEX entry_tool_lock ON entry (namespace, name, resource) WHERE tool_lock = 'ToolsDrifted'`,
			`CREATE INDEX session_expires ON session (expires)`,
			`CREATE INDEX session_name ON session (name, expires)`,
		},
	}}
}

// migrate brings the schema to this version in one transaction, so that several replicas may
// start at once.
func migrate(ctx context.Context, s session) error {
	if err := s.transact(ctx, nil, func(tx session) error { return migrateIn(ctx, tx) }); err != nil {
		return fmt.Errorf("migrating the store: %w", err)
	}
	return nil
}

// migrating connects to a PostgreSQL that has this version's schema: the first
// connection migrates it, however late it can be reached.
type migrating struct {
	driver.Connector
	done atomic.Bool
}

// Connect connects, and migrates if no connection has yet. Two migrations at the same time do no
// harm.
func (m *migrating) Connect(ctx context.Context) (_ driver.Conn, err error) {
	if !m.done.Load() {
		db := sql.OpenDB(m.Connector)
		if err := multi.Errors(migrate(ctx, session{db, true}), db.Close()); err != nil {
			return nil, err
		}
		m.done.Store(true)
	}
	return m.Connector.Connect(ctx)
}

func migrateIn(ctx context.Context, tx session) error {
	if tx.postgres {
		if err := tx.exec(ctx, "SELECT pg_advisory_xact_lock(7236842)"); err != nil {
			return err
		}
	}
	if err := tx.exec(ctx,
		"CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)"); err != nil {
		return err
	}
	var have sql.NullInt64
	if err := tx.QueryRowContext(ctx, "SELECT MAX(version) FROM schema_version").Scan(&have); err != nil {
		return err
	}
	all := migrations()
	version, latest := int(have.Int64), first+len(all)-1
	if version > latest || version > 0 && version < first {
		return fmt.Errorf("its schema is version %d, and this program knows %d to %d\n"+
			"  hint: run the program that created it, or use another store for this one", version,
			first, latest)
	}
	for i := max(version, first-1) - first + 1; i < len(all); i++ {
		statements := append(all[i].sqlite, all[i].both...)
		if tx.postgres {
			statements = append(all[i].postgres, all[i].both...)
		}
		for _, statement := range statements {
			if err := tx.exec(ctx, statement); err != nil {
				return fmt.Errorf("version %d: %w", first+i, err)
			}
		}
		if err := tx.exec(ctx, "INSERT INTO schema_version VALUES ($1)", first+i); err != nil {
			return err
		}
	}
	return nil
}
