package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"sync/atomic"

	"github.com/armature-dev/armature/functions/multi"
)

// migrations bring a store from one version of the schema to the next. What has
// been released is never edited: append.
var migrations = []struct{ sqlite, postgres []string }{
	{
		sqlite: []string{
			`CREATE TABLE revision (latest INTEGER NOT NULL)`,
			`INSERT INTO revision VALUES (0)`,
			`CREATE TABLE entry (uid TEXT PRIMARY KEY, resource TEXT NOT NULL, type TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
  generation INTEGER NOT NULL, health TEXT NOT NULL, fetched INTEGER NOT NULL, hash TEXT NOT NULL, items_hash TEXT NOT NULL,
  revision INTEGER NOT NULL, body BLOB NOT NULL, UNIQUE (namespace, name, resource))`,
			`CREATE INDEX entry_revision ON entry (revision)`,
			`CREATE TABLE item (id INTEGER PRIMARY KEY, uid TEXT NOT NULL REFERENCES entry (uid), position INTEGER NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, body BLOB NOT NULL,
  UNIQUE (uid, position))`,
			`CREATE TABLE gone (revision INTEGER NOT NULL, resource TEXT NOT NULL, type TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL)`,
			`CREATE INDEX gone_revision ON gone (revision)`,
			// Words alone, the rows they came from are in item.
			`CREATE VIRTUAL TABLE words USING fts5 (names, tags, description, scope, content='', contentless_delete=1, prefix='2 3', tokenize='unicode61 remove_diacritics 2')`,
		},
		postgres: []string{
			`CREATE TABLE revision (latest BIGINT NOT NULL)`,
			`INSERT INTO revision VALUES (0)`,
			`CREATE TABLE entry (uid TEXT PRIMARY KEY, resource TEXT NOT NULL, type TEXT NOT NULL, namespace TEXT COLLATE "C" NOT NULL, name TEXT COLLATE "C" NOT NULL,
  generation BIGINT NOT NULL, health TEXT NOT NULL, fetched BIGINT NOT NULL, hash TEXT NOT NULL, items_hash TEXT NOT NULL,
  revision BIGINT NOT NULL, body BYTEA NOT NULL, UNIQUE (namespace, name, resource))`,
			`CREATE INDEX entry_revision ON entry (revision)`,
			`CREATE TABLE item (id BIGSERIAL PRIMARY KEY, uid TEXT NOT NULL REFERENCES entry (uid), position INTEGER NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, body BYTEA NOT NULL,
  words TSVECTOR NOT NULL, UNIQUE (uid, position))`,
			`CREATE INDEX item_words ON item USING GIN (words)`,
			`CREATE TABLE gone (revision BIGINT NOT NULL, resource TEXT NOT NULL, type TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL)`,
			`CREATE INDEX gone_revision ON gone (revision)`,
		},
	},
	{ // distinguishes a lost store from its successor
		sqlite: []string{
			`CREATE TABLE identity (id TEXT NOT NULL)`,
			`INSERT INTO identity VALUES (lower(hex(randomblob(8))))`,
		},
		postgres: []string{
			`CREATE TABLE identity (id TEXT NOT NULL)`,
			`INSERT INTO identity VALUES (left(md5(random()::text || clock_timestamp()::text), 16))`,
		},
	},
	{ // sessions of people: all replicas know them
		sqlite: []string{
			`CREATE TABLE session (id TEXT PRIMARY KEY, name TEXT NOT NULL, expires INTEGER NOT NULL, body BLOB NOT NULL)`,
			`CREATE INDEX session_expires ON session (expires)`,
			`CREATE INDEX session_name ON session (name, expires)`,
		},
		postgres: []string{
			`CREATE TABLE session (id TEXT PRIMARY KEY, name TEXT NOT NULL, expires BIGINT NOT NULL, body BYTEA NOT NULL)`,
			`CREATE INDEX session_expires ON session (expires)`,
			`CREATE INDEX session_name ON session (name, expires)`,
		},
	},
	{ // lists and counts of pages without a look at the bodies
		sqlite: []string{
			`ALTER TABLE entry ADD COLUMN tool_lock TEXT NOT NULL DEFAULT ''`,
			`CREATE INDEX entry_list ON entry (type, namespace, name, resource, health)`,
			`CREATE INDEX entry_place ON entry (resource, namespace)`,
			`CREATE INDEX entry_tool_lock ON entry (namespace, name, resource) WHERE tool_lock = 'ToolsDrifted'`,
		},
		postgres: []string{
			`ALTER TABLE entry ADD COLUMN tool_lock TEXT NOT NULL DEFAULT ''`,
			`CREATE INDEX entry_list ON entry (type, namespace, name, resource, health)`,
			`CREATE INDEX entry_place ON entry (resource, namespace)`,
			`CREATE INDEX entry_tool_lock ON entry (namespace, name, resource) WHERE tool_lock = 'ToolsDrifted'`,
		},
	},
	{ // all counts from one index; filters by skill and tag without a look at bodies
		sqlite: []string{
			`DROP INDEX entry_place`,
			`CREATE INDEX entry_count ON entry (resource, namespace, type, health, tool_lock)`,
			`DROP INDEX entry_list`,
			`CREATE INDEX entry_list ON entry (type, namespace, name, resource, health, uid)`,
			`CREATE INDEX item_entry ON item (id, uid)`,
		},
		postgres: []string{
			`DROP INDEX entry_place`,
			`CREATE INDEX entry_count ON entry (resource, namespace, type, health, tool_lock)`,
		},
	},
}

// migrate brings the schema to this version in one transaction, so that several
// replicas may start at once.
func migrate(ctx context.Context, db *sql.DB, postgres bool) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("opening the store: %w", err)
	}
	if err := migrateIn(ctx, session{tx, postgres}); err != nil {
		return multi.Errors(fmt.Errorf("migrating the store: %w", err), tx.Rollback())
	}
	return tx.Commit()
}

// migrating connects to a PostgreSQL that has this version's schema: the first
// connection migrates it, however late it can be reached.
type migrating struct {
	driver.Connector
	done atomic.Bool
}

// Connect, and migrate where no connection has yet. Two at once do no harm.
func (m *migrating) Connect(ctx context.Context) (_ driver.Conn, err error) {
	if !m.done.Load() {
		db := sql.OpenDB(m.Connector)
		if err := multi.Errors(migrate(ctx, db, true), db.Close()); err != nil {
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
	if err := tx.exec(ctx, "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)"); err != nil {
		return err
	}
	var version sql.NullInt64
	if err := tx.row(ctx, "SELECT MAX(version) FROM schema_version").Scan(&version); err != nil {
		return err
	}
	if int(version.Int64) > len(migrations) {
		return fmt.Errorf("its schema is version %d, and this program knows up to %d\n  hint: run the newer program, or use another store for this one", version.Int64, len(migrations))
	}
	for i := int(version.Int64); i < len(migrations); i++ {
		statements := migrations[i].sqlite
		if tx.postgres {
			statements = migrations[i].postgres
		}
		for _, statement := range statements {
			if err := tx.exec(ctx, statement); err != nil {
				return fmt.Errorf("version %d: %w", i+1, err)
			}
		}
		if err := tx.exec(ctx, "INSERT INTO schema_version VALUES (?)", i+1); err != nil {
			return err
		}
	}
	return nil
}
