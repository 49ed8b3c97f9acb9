package database_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/catalog/store"
)

// A session is found by its secret until it expires or ends, the store does not have the
// secret, and the oldest of a person's sessions make room for another one.
func TestSessions(t *testing.T) {
	for _, kind := range []string{"memory", "sqlite", "postgres"} {
		t.Run(kind, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "catalog.db")
			var s store.Store
			switch kind {
			case "memory":
				s = store.NewMemory()
			case "sqlite":
				s = open(t, file)
			case "postgres":
				s = open(t, postgres(t))
			}
			now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
			anna := store.Session{Name: "anna", Groups: []string{"team1"}, Expires: now.Add(time.Hour)}
			find := func(secret string, at time.Time) error {
				t.Helper()
				got, err := s.FindSession(t.Context(), secret, at)
				if err == nil && cmp.Diff(got, anna) != "" {
					t.Error(cmp.Diff(got, anna))
				}
				return err
			}
			begin := func(secret string, v store.Session) {
				t.Helper()
				if err := s.BeginSession(t.Context(), secret, v, now); err != nil {
					t.Fatal(err)
				}
			}
			begin("secret-of-anna", anna)
			if err := find("secret-of-anna", now); err != nil {
				t.Error(err)
			}
			for what, err := range map[string]error{
				"another secret": find("secret-of-ann", now),
				"an expired one": find("secret-of-anna", now.Add(time.Hour)), "none": find("", now),
			} {
				if !errors.Is(err, store.ErrNotFound) {
					t.Errorf("%s: %v", what, err)
				}
			}
			for i := range 25 {
				begin(fmt.Sprint("bert-", i), store.Session{Name: "bert",
					Expires: now.Add(time.Hour + time.Duration(i)*time.Second)})
			}
			count := 0
			for i := range 25 {
				if _, err := s.FindSession(t.Context(), fmt.Sprint("bert-", i), now); err == nil {
					count++
				} else if i >= 5 {
					t.Errorf("bert-%d made room", i)
				}
			}
			if count != 20 {
				t.Errorf("bert has %d sessions", count)
			}
			if err := find("secret-of-anna", now); err != nil && kind != "memory" {
				t.Errorf("another person's sessions end anna's: %v", err)
			}
			if err := s.EndSession(t.Context(), "secret-of-anna"); err != nil {
				t.Fatal(err)
			}
			if err := find("secret-of-anna", now); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("a session that ended: %v", err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if text, err := os.ReadFile(file); kind == "sqlite" &&
				(err != nil || strings.Contains(string(text), "secret-of-anna") ||
					strings.Contains(string(text), "bert-24")) {
				t.Errorf("the store has the secret (%v)", err)
			}
		})
	}
}
