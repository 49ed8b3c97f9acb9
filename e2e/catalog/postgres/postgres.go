// Package postgres runs Debian's PostgreSQL for tests of the catalog's store.
package postgres

import (
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/armature-dev/armature/e2e/programs"
	"github.com/armature-dev/armature/functions/multi"
)

// Server is one PostgreSQL that listens on a socket in its own folder.
type Server struct {
	bin, dir, owner string
	as              *syscall.SysProcAttr
	process         *exec.Cmd
	databases       atomic.Int32
}

// New creates a server and starts it. The error is programs.ErrMissing if PostgreSQL is not
// installed.
func New() (*Server, error) {
	initdb, err := programs.Find("postgresql")
	if err != nil {
		return nil, err
	}
	s := &Server{bin: filepath.Dir(initdb)}
	if s.dir, err = os.MkdirTemp("", "postgres-"); err != nil {
		return nil, err
	}
	if err := s.init(); err != nil {
		return nil, multi.Errors(err, os.RemoveAll(s.dir))
	}
	return s, nil
}

func (s *Server) init() (err error) {
	if s.as, s.owner, err = notRoot(s.dir); err != nil {
		return err
	}
	if out, err := s.command("initdb", "-D", s.data(), "-A", "trust", "-U", s.owner, "--no-sync").
		CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return s.Start()
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir, cmd.SysProcAttr = s.dir, s.as
	return cmd
}

// Start starts the server, also again after Stop with the same data, and waits until it answers.
func (s *Server) Start() error {
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close() // the server has it open, too
	s.process = s.command("postgres", "-D", s.data(), "-k", s.dir, "-c", "listen_addresses=", "-c",
		"fsync=off")
	s.process.Stdout, s.process.Stderr = log, log
	if err := s.process.Start(); err != nil {
		return fmt.Errorf("starting PostgreSQL: %w", err)
	}
	for started := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		err := ping(s.Address("postgres"))
		if err == nil {
			return nil
		}
		if time.Since(started) > time.Minute {
			text, _ := os.ReadFile(log.Name()) // the error at hand matters more
			return multi.Errors(fmt.Errorf("waiting for PostgreSQL: %w\n%s", err, text), s.Stop())
		}
	}
}

// Stop kills the server, as a crash would.
func (s *Server) Stop() error {
	if s.process == nil {
		return nil
	}
	err := s.process.Process.Signal(syscall.SIGQUIT)
	_ = s.process.Wait() // SIGQUIT is not a clean exit
	s.process = nil
	return err
}

// Close stops the server and removes its data.
func (s *Server) Close() error { return multi.Errors(s.Stop(), os.RemoveAll(s.dir)) }

// Address returns the address of a database.
func (s *Server) Address(database string) string {
	return "postgres:///" + database + "?" + url.Values{"host": {s.dir}, "user": {s.owner}}.Encode()
}

// Database creates a database and returns its address.
func (s *Server) Database() (address string, err error) {
	db, err := sql.Open("pgx", s.Address("postgres"))
	if err != nil {
		return "", err
	}
	defer func() { err = multi.Errors(err, db.Close()) }()
	name := fmt.Sprintf("catalog%d", s.databases.Add(1))
	_, err = db.Exec("CREATE DATABASE " + name)
	return s.Address(name), err
}

// Own starts a server for one test, which may stop it.
func Own(t testing.TB) *Server {
	t.Helper()
	s, err := New()
	programs.Need(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func ping(address string) error {
	db, err := sql.Open("pgx", address)
	if err != nil {
		return err
	}
	return multi.Errors(db.Ping(), db.Close())
}

// notRoot returns how to run PostgreSQL, which refuses to run as root: as the user that Debian
// created for it.
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
	if err := multi.Errors(err1, err2, os.Chown(dir, uid, gid)); err != nil {
		return nil, "", err
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid),
		Gid: uint32(gid)}}, "postgres", nil
}
