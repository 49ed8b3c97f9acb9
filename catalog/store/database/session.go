package database

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/functions/multi"
)

// The store has the hash of a session's secret, so that a copy of the store opens no session.
func sessionID(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// BeginSession keeps a session until it expires.
func (s *Store) BeginSession(ctx context.Context, secret string, v store.Session, now time.Time) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("beginning a session: %w", err)
	}
	begin, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("beginning a session: %w", err)
	}
	tx := session{begin, s.postgres}
	const oldest = "DELETE FROM session WHERE id IN (SELECT id FROM session "
	for _, q := range []struct {
		query string
		args  []any
	}{
		{"DELETE FROM session WHERE expires <= ?", []any{now.Unix()}},
		{oldest + "WHERE name = ? ORDER BY expires DESC, id LIMIT ? OFFSET ?)", []any{v.Name, store.MaxSessions, store.MaxOwnSessions - 1}},
		{oldest + "ORDER BY expires DESC, id LIMIT ? OFFSET ?)", []any{store.MaxSessions, store.MaxSessions - 1}},
		{"INSERT INTO session (id, name, expires, body) VALUES (?, ?, ?, ?)", []any{sessionID(secret), v.Name, v.Expires.Unix(), body}},
	} {
		if err := tx.exec(ctx, q.query, q.args...); err != nil {
			return multi.Errors(fmt.Errorf("beginning a session: %w", err), begin.Rollback())
		}
	}
	return begin.Commit()
}

// FindSession gives the session of a secret. The error is ErrNotFound where it does not exist,
// or is over.
func (s *Store) FindSession(ctx context.Context, secret string, now time.Time) (v store.Session, err error) {
	var body []byte
	err = s.reader().row(ctx, "SELECT body FROM session WHERE id = ? AND expires > ?", sessionID(secret), now.Unix()).Scan(&body)
	if errors.Is(err, sql.ErrNoRows) {
		return v, store.ErrNotFound
	}
	if err == nil {
		err = json.Unmarshal(body, &v)
	}
	if err != nil {
		return store.Session{}, fmt.Errorf("reading a session: %w", err)
	}
	return v, nil
}

// EndSession of a secret; one that does not exist is over already.
func (s *Store) EndSession(ctx context.Context, secret string) error {
	if err := (session{s.write, s.postgres}).exec(ctx, "DELETE FROM session WHERE id = ?", sessionID(secret)); err != nil {
		return fmt.Errorf("ending a session: %w", err)
	}
	return nil
}
