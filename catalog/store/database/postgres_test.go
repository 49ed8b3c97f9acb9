package database_test

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/catalog/store/database"
	pg "github.com/armature-dev/armature/e2e/catalog/postgres"
	"github.com/armature-dev/armature/e2e/programs"
)

// server is the one PostgreSQL of this package's tests; its error says why there
// is none.
var server = sync.OnceValues(func() (*pg.Server, error) {
	s, err := pg.New()
	if err == nil {
		stopPostgres = s.Close
	}
	return s, err
})

var stopPostgres = func() error { return nil }

func TestMain(m *testing.M) {
	code := m.Run()
	if err := stopPostgres(); err != nil {
		fmt.Fprintln(os.Stderr, "stopping PostgreSQL:", err)
		code = 1
	}
	os.Exit(code)
}

// postgres creates a database of its own for a test on a real server.
func postgres(t *testing.T) string {
	t.Helper()
	s, err := server()
	programs.Need(t, err)
	address, err := s.Database()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// A store whose PostgreSQL is away is opened, answers with errors, and works
// when PostgreSQL is there.
func TestPostgresComesAndGoes(t *testing.T) {
	server := pg.Own(t)
	address, err := server.Database()
	if err != nil {
		t.Fatal(err)
	}
	a := agent("team1", "a", 1)
	stop := func() {
		t.Helper()
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	s := open(t, address)
	for range 2 {
		if _, err := s.Put(t.Context(), a, true); err == nil {
			t.Error("stored without PostgreSQL")
		}
		if err := s.Ping(t.Context()); err == nil {
			t.Error("it answers without PostgreSQL")
		}
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		must[bool](t)(s.Put(t.Context(), a, true))
		if got := must[store.Entry](t)(s.Get(t.Context(), a.Key)); got.Title != a.Title {
			t.Errorf("got %+v", got)
		}
		stop()
	}
	if _, err := database.Open(t.Context(), address+"&port=70000"); err == nil {
		t.Error("an address that cannot be parsed is not an error")
	}
}
