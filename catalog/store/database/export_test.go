package database

import "context"

// SetSchemaVersion makes the store one of another program's.
func (s *Store) SetSchemaVersion(ctx context.Context, version int) error {
	return s.write.exec(ctx, "INSERT INTO schema_version VALUES ($1)", version)
}

// Migrate as Open does.
func (s *Store) Migrate(ctx context.Context) error { return migrate(ctx, s.write) }
