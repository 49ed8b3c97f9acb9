// Package storage keeps the archives of sources as files: KIND/NAMESPACE/NAME/FILE.
// It is not Flux's own storage: what tests learn about Flux is about its reconcilers.
package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/tar"
	godigest "github.com/opencontainers/go-digest"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/artifact/config"
	"github.com/fluxcd/pkg/artifact/digest"
)

// Storage of one process.
type Storage struct {
	root    *os.Root
	dir     string
	host    string
	ttl     time.Duration
	records int

	mu    sync.Mutex
	locks map[string]*sync.Mutex
}

// New opens a storage, whose folder exists, and the listener that it is served on.
func New(o *config.Options) (*Storage, error) {
	root, err := os.OpenRoot(o.StoragePath)
	if err == nil {
		o.Listener, err = net.Listen("tcp", o.StorageAddress)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the storage: %w", err)
	}
	host := o.StorageAdvAddress
	if host == "" {
		host = o.Listener.Addr().String()
	}
	return &Storage{root: root, dir: o.StoragePath, host: host, ttl: o.ArtifactRetentionTTL, records: o.ArtifactRetentionRecords, locks: map[string]*sync.Mutex{}}, nil
}

// NewArtifactFor gives the artifact of an object with a file that may not exist yet.
func (s *Storage) NewArtifactFor(kind string, o metav1.Object, revision, file string) meta.Artifact {
	a := meta.Artifact{Path: path.Join(strings.ToLower(kind), o.GetNamespace(), o.GetName(), file), Revision: revision}
	s.SetArtifactURL(&a)
	return a
}

// SetArtifactURL sets the address of an artifact by its path.
func (s *Storage) SetArtifactURL(a *meta.Artifact) {
	if a.Path != "" {
		a.URL = s.url(a.Path)
	}
}

func (s *Storage) url(file string) string {
	return (&url.URL{Scheme: "http", Host: s.host, Path: "/" + file}).String()
}

// SetHostname gives an address with this storage's host.
func (s *Storage) SetHostname(address string) string {
	u, err := url.Parse(address)
	if err != nil || address == "" {
		return address
	}
	u.Host = s.host
	return u.String()
}

// LocalPath is the file of an artifact, "" where its path leads out of the storage.
func (s *Storage) LocalPath(a meta.Artifact) string {
	if !filepath.IsLocal(a.Path) {
		return ""
	}
	return filepath.Join(s.dir, a.Path)
}

// ArtifactExist reports whether an artifact's file is there.
func (s *Storage) ArtifactExist(a meta.Artifact) bool {
	info, err := s.root.Lstat(a.Path)
	return err == nil && info.Mode().IsRegular()
}

// VerifyArtifact compares an artifact's file with its digest.
func (s *Storage) VerifyArtifact(a meta.Artifact) error {
	want, err := godigest.Parse(a.Digest)
	if err != nil {
		return fmt.Errorf("the digest %q: %w", a.Digest, err)
	}
	f, err := s.root.Open(a.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	have, err := want.Algorithm().FromReader(f)
	if err != nil {
		return err
	}
	if have != want {
		return fmt.Errorf("%s has the digest %s, not %s", a.Path, have, want)
	}
	return nil
}

// MkdirAll makes the folder of an artifact.
func (s *Storage) MkdirAll(a meta.Artifact) error { return s.root.MkdirAll(path.Dir(a.Path), 0o700) }

// Remove the file of an artifact.
func (s *Storage) Remove(a meta.Artifact) error { return s.root.Remove(a.Path) }

// RemoveAll removes the folder of an artifact, and names it: "" if there was none.
func (s *Storage) RemoveAll(a meta.Artifact) (string, error) {
	folder := path.Dir(a.Path)
	if _, err := s.root.Lstat(folder); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return filepath.Join(s.dir, folder), s.root.RemoveAll(folder)
}

// Lock keeps others in this process from an artifact until unlock.
func (s *Storage) Lock(a meta.Artifact) (unlock func(), err error) {
	s.mu.Lock()
	l := s.locks[a.Path]
	if l == nil {
		l = &sync.Mutex{}
		s.locks[a.Path] = l
	}
	s.mu.Unlock()
	l.Lock()
	return l.Unlock, nil
}

// Copy stores what a reader has.
func (s *Storage) Copy(a *meta.Artifact, from io.Reader) error {
	return s.write(a, func(w io.Writer) error {
		_, err := io.Copy(w, from)
		return err
	})
}

// CopyFromPath stores a file.
func (s *Storage) CopyFromPath(a *meta.Artifact, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return s.Copy(a, f)
}

// write a file whole or not at all, and describe it in the artifact.
func (s *Storage) write(a *meta.Artifact, fill func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(s.LocalPath(*a)), "new-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	sum := digest.Canonical.Digester()
	err = fill(io.MultiWriter(f, sum.Hash()))
	info, failed := f.Stat()
	if err = errors.Join(err, failed, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), s.LocalPath(*a)); err != nil {
		return err
	}
	size := info.Size()
	a.Digest, a.Size, a.LastUpdateTime = sum.Digest().String(), &size, metav1.Now()
	return nil
}

// CopyToPath unpacks a folder of an artifact's archive.
func (s *Storage) CopyToPath(a *meta.Artifact, sub, to string) error {
	dir, err := os.MkdirTemp("", "artifact-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	f, err := s.root.Open(a.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := tar.Untar(f, dir); err != nil {
		return err
	}
	unpacked, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer unpacked.Close()
	from, err := fs.Sub(unpacked.FS(), path.Join(".", filepath.ToSlash(sub)))
	if err != nil {
		return err
	}
	return os.CopyFS(to, from)
}

// Symlink makes a link of a name beside an artifact's file, and gives its address.
func (s *Storage) Symlink(a meta.Artifact, name string) (string, error) {
	link := path.Join(path.Dir(a.Path), name)
	fresh := link + ".new"
	if err := s.root.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := s.root.Symlink(path.Base(a.Path), fresh); err != nil {
		return "", err
	}
	return s.url(link), s.root.Rename(fresh, link)
}

// GarbageCollect removes files beside an artifact's that are too old or too many.
func (s *Storage) GarbageCollect(ctx context.Context, a meta.Artifact, timeout time.Duration) (removed []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	folder := path.Dir(a.Path)
	entries, err := fs.ReadDir(s.root.FS(), folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var old []fs.FileInfo
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || e.Name() == path.Base(a.Path) {
			continue
		}
		old = append(old, info)
	}
	slices.SortFunc(old, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	for i, info := range old {
		if time.Since(info.ModTime()) <= s.ttl && i+1 < s.records {
			continue
		}
		if err := errors.Join(ctx.Err(), s.root.Remove(path.Join(folder, info.Name()))); err != nil {
			return removed, err
		}
		removed = append(removed, filepath.Join(s.dir, folder, info.Name()))
	}
	return removed, nil
}
