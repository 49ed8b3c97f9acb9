package controller

import (
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path"
	"regexp"
	"strings"
	"time"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/archive"
	"github.com/armature-dev/armature/render/process"
)

// Store stores archives as files externalartifact/NAMESPACE/NAME/HASH.tar.gz. It never accesses
// files outside its folder, and a file with its final name is complete.
type Store struct{ root *os.Root }

// OpenStore opens the store in a folder, which it creates if it is missing.
func OpenStore(dir string) (*Store, error) {
	err := os.MkdirAll(dir, 0o700)
	var root *os.Root
	if err == nil {
		root, err = os.OpenRoot(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the store of archives: %w", err)
	}
	return &Store{root}, nil
}

// Close closes the store.
func (s *Store) Close() error { return s.root.Close() }

// objectFolder returns the folder of one object's archives.
func objectFolder(namespace, name string) string {
	return path.Join("externalartifact", namespace, name)
}

// archivePath returns the path of an archive with a digest sha256:….
func archivePath(namespace, name, digest string) string {
	return path.Join(objectFolder(namespace, name), strings.TrimPrefix(digest, "sha256:")+".tar.gz")
}

const unfinished = ".part"

// Put stores an archive. After a crash, the store has the whole archive or nothing.
func (s *Store) Put(namespace, name, digest string, data []byte) (err error) {
	file, folder := archivePath(namespace, name, digest), objectFolder(namespace, name)
	defer func() {
		if err != nil {
			err = fmt.Errorf("storing an archive: %w", err)
		}
	}()
	if err := s.root.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	f, err := s.root.OpenFile(file+unfinished, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = multi.Errors(err, f.Sync(), f.Close()); err != nil {
		return multi.Errors(err, s.root.Remove(file+unfinished))
	}
	if err := s.root.Rename(file+unfinished, file); err != nil {
		return err
	}
	d, err := s.root.Open(folder)
	if err != nil {
		return err
	}
	return multi.Errors(d.Sync(), d.Close())
}

// Holds reports whether the store has an archive with exactly the bytes of its digest.
func (s *Store) Holds(namespace, name, digest string, size int64) bool {
	f, err := s.root.Open(archivePath(namespace, name, digest))
	if err != nil {
		return false
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, size+1))
	return err == nil && archive.Check(data, digest) == nil
}

// Collect removes the archives of an object except the published one. It retains the previous one,
// which a consumer may be fetching, until the published one is older than ttl.
func (s *Store) Collect(namespace, name, published string, now time.Time, ttl time.Duration) error {
	folder := objectFolder(namespace, name)
	entries, err := fs.ReadDir(s.root.FS(), folder)
	current := path.Base(archivePath(namespace, name, published))
	settled, previous := false, ""
	var newest time.Time
	for _, e := range entries {
		info, failed := e.Info()
		if failed != nil {
			return fmt.Errorf("listing archives: %w", failed)
		}
		switch at := info.ModTime(); {
		case e.Name() == current:
			settled = now.Sub(at) > ttl
		case !strings.HasSuffix(e.Name(), unfinished) && at.After(newest):
			newest, previous = at, e.Name()
		}
	}
	if err != nil {
		return fmt.Errorf("listing archives: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if e.Name() != current && (e.Name() != previous || settled) {
			errs = append(errs, s.root.Remove(path.Join(folder, e.Name())))
		}
	}
	return multi.Errors(errs...)
}

// Remove removes all archives of an object.
func (s *Store) Remove(namespace, name string) error {
	if err := s.root.RemoveAll(objectFolder(namespace, name)); err != nil {
		return fmt.Errorf("removing archives: %w", err)
	}
	return nil
}

// Sweep removes the archives of objects that no longer exist.
func (s *Store) Sweep(exists func(namespace, name string) bool) error {
	folders, err := fs.Glob(s.root.FS(), "externalartifact/*/*")
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range folders {
		if namespace, name := path.Base(path.Dir(f)), path.Base(f); !exists(namespace, name) {
			errs = append(errs, s.Remove(namespace, name))
		}
	}
	return multi.Errors(errs...)
}

var served = regexp.MustCompile(
	`^/externalartifact(/[a-z0-9]([a-z0-9.-]*[a-z0-9])?){2}/[0-9a-f]{64}\.tar\.gz$`)

// ServeHTTP serves archives by their path. Their names contain their digests, so that they never
// change.
func (s *Store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
	case !served.MatchString(r.URL.Path):
		http.NotFound(w, r)
	default:
		h.Set("Content-Type", "application/gzip")
		h.Set("Cache-Control", "private, max-age=31536000, immutable")
		h.Set("ETag", `"`+strings.TrimSuffix(path.Base(r.URL.Path), ".tar.gz")+`"`)
		http.ServeFileFS(w, r, s.root.FS(), strings.TrimPrefix(r.URL.Path, "/"))
	}
}

// maxConnections bounds the connections of the server.
const maxConnections = 256

// server returns the server of archives. It closes each connection after one request: Flux's
// controllers open a new one for each fetch and leave it idle for more than a minute, so that idle
// connections would block others.
func (s *Store) server(l net.Listener) *manager.Server {
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second,
		WriteTimeout: 5 * time.Minute, MaxHeaderBytes: 16 << 10,
	}
	server.SetKeepAlivesEnabled(false)
	return &manager.Server{
		Name: "archives", Listener: process.Bounded(l, maxConnections),
		ShutdownTimeout: ptr.To(5 * time.Second), Server: server,
	}
}
