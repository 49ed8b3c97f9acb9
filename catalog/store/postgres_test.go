package store_test

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// server is the one PostgreSQL of this package's tests; its error says why there
// is none. It listens on a socket in a folder of its own.
var server = sync.OnceValues(startPostgres)

var errNoPostgres = errors.New("no PostgreSQL to run\n  hint: `make postgres` installs Debian's package")

var stopPostgres = func() error { return nil }

func TestMain(m *testing.M) {
	code := m.Run()
	if err := stopPostgres(); err != nil {
		fmt.Fprintln(os.Stderr, "stopping PostgreSQL:", err)
		code = 1
	}
	os.Exit(code)
}

var databases atomic.Int32

// postgres gives a test a database of its own on a real server. Where there is
// no PostgreSQL the test is skipped, loudly; with CI set it fails.
func postgres(t *testing.T) string {
	t.Helper()
	address, err := server()
	if errors.Is(err, errNoPostgres) && os.Getenv("CI") == "" {
		fmt.Fprintf(os.Stderr, "SKIPPED %s: %v\n", t.Name(), err)
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("pgx", address("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	name := fmt.Sprintf("catalog%d", databases.Add(1))
	if _, err := db.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	return address(name)
}

// programs of the newest PostgreSQL that is installed.
func programs() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(found) == 0 {
		return "", errors.Join(errNoPostgres, err)
	}
	slices.SortFunc(found, func(a, b string) int { return version(a) - version(b) })
	return filepath.Dir(found[len(found)-1]), nil
}

func version(initdb string) int {
	n, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(initdb))))
	if err != nil {
		return 0
	}
	return n
}

func startPostgres() (address func(database string) string, err error) {
	bin, err := programs()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "postgres-")
	if err != nil {
		return nil, err
	}
	stopPostgres = func() error { return os.RemoveAll(dir) }
	as, owner, err := notRoot(dir)
	if err != nil {
		return nil, err
	}
	run := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(bin, name), args...)
		cmd.Dir, cmd.SysProcAttr = dir, as
		return cmd
	}
	data := filepath.Join(dir, "data")
	if out, err := run("initdb", "-D", data, "-A", "trust", "-U", owner, "--no-sync").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	var log bytes.Buffer
	postgres := run("postgres", "-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "fsync=off")
	postgres.Stdout, postgres.Stderr = &log, &log
	if err := postgres.Start(); err != nil {
		return nil, fmt.Errorf("starting PostgreSQL: %w", err)
	}
	stopPostgres = func() error {
		err := postgres.Process.Signal(syscall.SIGQUIT)
		_ = postgres.Wait() // SIGQUIT is no clean exit
		return errors.Join(err, os.RemoveAll(dir))
	}
	address = func(database string) string {
		return "postgres:///" + database + "?" + url.Values{"host": {dir}, "user": {owner}}.Encode()
	}
	for started := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		if err = ping(address("postgres")); err == nil {
			return address, nil
		}
		if time.Since(started) > time.Minute {
			return nil, fmt.Errorf("waiting for PostgreSQL: %w\n%s", err, log.String())
		}
	}
}

func ping(address string) error {
	db, err := sql.Open("pgx", address)
	if err != nil {
		return err
	}
	return errors.Join(db.Ping(), db.Close())
}

// notRoot is how to run PostgreSQL, which refuses to be root: as the user that
// Debian made for it.
func notRoot(dir string) (*syscall.SysProcAttr, string, error) {
	me, err := user.Current()
	if err != nil || me.Uid != "0" {
		return nil, me.Username, err
	}
	other, err := user.Lookup("postgres")
	if err != nil {
		return nil, "", err
	}
	uid, err1 := strconv.Atoi(other.Uid)
	gid, err2 := strconv.Atoi(other.Gid)
	if err := errors.Join(err1, err2, os.Chown(dir, uid, gid)); err != nil {
		return nil, "", err
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, "postgres", nil
}
