package database

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/armature-dev/armature/catalog/store"
)

// sessionID returns the hash of a session's secret: the store has no secret, so that a copy of it
// opens no session.
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
	const oldest = "DELETE FROM session WHERE id IN (SELECT id FROM session "
	err = s.write.transact(ctx, nil, func(tx session) error {
		return cmp.Or(
			tx.exec(ctx, "DELETE FROM session WHERE expires <= $1", now.Unix()),
			tx.exec(ctx, oldest+"WHERE name = $1 ORDER BY expires DESC, id LIMIT $2 OFFSET $3)",
				v.Name, store.MaxSessions, store.MaxOwnSessions-1),
			tx.exec(ctx, oldest+"ORDER BY expires DESC, id LIMIT $1 OFFSET $2)",
				store.MaxSessions, store.MaxSessions-1),
			tx.exec(ctx, "INSERT INTO session (id, name, expires, body) VALUES ($1, $2, $3, $4)",
				sessionID(secret), v.Name, v.Expires.Unix(), body))
	})
	if err != nil {
		return fmt.Errorf("beginning a session: %w", err)
	}
	return nil
}

// FindSession implements store.Store.
func (s *Store) FindSession(ctx context.Context, secret string,
	now time.Time) (v store.Session, err error) {
	var body []byte
	err = s.read.QueryRowContext(ctx, "SELECT body FROM session WHERE id = $1 AND expires > $2",
		sessionID(secret), now.Unix()).Scan(&body)
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

// EndSession ends the session of a secret; one that does not exist is over already.
func (s *Store) EndSession(ctx context.Context, secret string) error {
	if err := s.write.exec(ctx, "DELETE FROM session WHERE id = $1",
		sessionID(secret)); err != nil {
		return fmt.Errorf("ending a session: %w", err)
	}
	return nil
}
