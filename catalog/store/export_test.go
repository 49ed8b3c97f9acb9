package store

import "context"

// SetSchemaVersion makes the store one of another program's.
func (s *Store) SetSchemaVersion(ctx context.Context, version int) error {
	_, err := s.write.ExecContext(ctx, s.bind("INSERT INTO schema_version VALUES (?)"), version)
	return err
}

// Migrate as Open does.
func (s *Store) Migrate(ctx context.Context) error { return s.migrate(ctx, s.write) }

// FollowWithin follows with a copy of at most so many bytes.
func (s *Store) FollowWithin(ctx context.Context, limit int64, report func(error)) error {
	return s.follow(ctx, limit, report)
}
