// Package storage keeps the archives of sources as files: KIND/NAMESPACE/NAME/FILE.
// It is not Flux's own storage: what tests learn about Flux is about its reconcilers
// of Git repositories and OCI artifacts. What these do not need is unsupported, and no
// archive is removed before its object.
package storage

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/sourceignore"
	"github.com/fluxcd/pkg/sourceignore/gitignore"
	godigest "github.com/opencontainers/go-digest"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fluxcd/pkg/artifact/config"
	"github.com/fluxcd/pkg/artifact/digest"
)

// Storage of one process.
type Storage struct {
	dir, host string
	mu        sync.Mutex // of all artifacts
}

// New opens a storage, whose folder exists, and the listener that it is served on.
func New(o *config.Options) (_ *Storage, err error) {
	if o.Listener, err = net.Listen("tcp", o.StorageAddress); err != nil {
		return nil, fmt.Errorf("opening the storage: %w", err)
	}
	host := o.StorageAdvAddress
	if host == "" {
		host = o.Listener.Addr().String()
	}
	return &Storage{dir: o.StoragePath, host: host}, nil
}

// NewArtifactFor returns the artifact of an object with a file that may not exist yet.
func (s *Storage) NewArtifactFor(kind string, o metav1.Object,
	revision, file string) meta.Artifact {
	a := meta.Artifact{Path: path.Join(strings.ToLower(kind), o.GetNamespace(), o.GetName(), file),
		Revision: revision}
	s.SetArtifactURL(&a)
	return a
}

// SetArtifactURL sets the address of an artifact by its path.
func (s *Storage) SetArtifactURL(a *meta.Artifact) {
	if a.Path != "" {
		a.URL = (&url.URL{Scheme: "http", Host: s.host, Path: "/" + a.Path}).String()
	}
}

// SetHostname returns an address with this storage's host.
func (s *Storage) SetHostname(address string) string {
	u, err := url.Parse(address)
	if err != nil || address == "" {
		return address
	}
	u.Host = s.host
	return u.String()
}

// LocalPath is the file of an artifact.
func (s *Storage) LocalPath(a meta.Artifact) string { return filepath.Join(s.dir, a.Path) }

// ArtifactExist reports whether an artifact's file is there.
func (s *Storage) ArtifactExist(a meta.Artifact) bool {
	info, err := os.Lstat(s.LocalPath(a))
	return err == nil && info.Mode().IsRegular()
}

// VerifyArtifact compares an artifact's file with its digest.
func (s *Storage) VerifyArtifact(a meta.Artifact) error {
	f, err := os.Open(s.LocalPath(a))
	if err != nil {
		return err
	}
	defer f.Close()
	verifier := godigest.Digest(a.Digest).Verifier()
	if _, err := io.Copy(verifier, f); err != nil || !verifier.Verified() {
		return errors.Join(err, fmt.Errorf("%s does not have the digest %s", a.Path, a.Digest))
	}
	return nil
}

// MkdirAll makes the folder of an artifact.
func (s *Storage) MkdirAll(a meta.Artifact) error {
	return os.MkdirAll(filepath.Dir(s.LocalPath(a)), 0o700)
}

// Remove the file of an artifact.
func (s *Storage) Remove(a meta.Artifact) error { return os.Remove(s.LocalPath(a)) }

// RemoveAll removes the folder of an artifact, and names it.
func (s *Storage) RemoveAll(a meta.Artifact) (string, error) {
	folder := filepath.Dir(s.LocalPath(a))
	return folder, os.RemoveAll(folder)
}

// Lock keeps others in this process from the artifacts until unlock.
func (s *Storage) Lock(meta.Artifact) (unlock func(), err error) {
	s.mu.Lock()
	return s.mu.Unlock, nil
}

// GarbageCollect keeps all.
func (*Storage) GarbageCollect(context.Context, meta.Artifact, time.Duration) ([]string, error) {
	return nil, nil
}

// CopyToPath would serve a GitRepository's spec.include.
func (*Storage) CopyToPath(*meta.Artifact, string, string) error { return errors.ErrUnsupported }

// CopyFromPath stores a file: the layer that an OCIRepository selects.
func (s *Storage) CopyFromPath(a *meta.Artifact, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return s.Copy(a, f)
}

// Symlink would make a chart's index known by another name.
func (*Storage) Symlink(meta.Artifact, string) (string, error) { return "", errors.ErrUnsupported }

// Copy stores what a reader has.
func (s *Storage) Copy(a *meta.Artifact, from io.Reader) error {
	return s.write(a, func(w io.Writer) error {
		_, err := io.Copy(w, from)
		return err
	})
}

// SourceIgnoreFilter skips what patterns and Flux's defaults exclude.
func SourceIgnoreFilter(patterns []gitignore.Pattern,
	domain []string) func(string, os.FileInfo) bool {
	matcher := sourceignore.NewDefaultMatcher(patterns, domain)
	return func(file string, info os.FileInfo) bool {
		return matcher.Match(strings.Split(file, string(filepath.Separator)), info.IsDir())
	}
}

// Archive stores the files of a folder, but those that skip, which may be nil,
// excludes. The same files give the same bytes.
func (s *Storage) Archive(a *meta.Artifact, dir string, skip func(string, os.FileInfo) bool) error {
	return s.write(a, func(w io.Writer) error {
		zipped := gzip.NewWriter(w)
		packed := tar.NewWriter(zipped)
		err := filepath.Walk(dir, func(file string, info os.FileInfo, err error) error {
			if err != nil || !info.Mode().IsRegular() || skip != nil && skip(file, info) {
				return err
			}
			name, err := filepath.Rel(dir, file)
			if err != nil {
				return err
			}
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			header := &tar.Header{Typeflag: tar.TypeReg, Name: filepath.ToSlash(name),
				Mode: 0o600 | int64(info.Mode()&0o100), Size: int64(len(text))}
			if err := packed.WriteHeader(header); err != nil {
				return err
			}
			_, err = packed.Write(text)
			return err
		})
		return errors.Join(err, packed.Close(), zipped.Close())
	})
}

// write a file whole or not at all, and describe it in the artifact.
func (s *Storage) write(a *meta.Artifact, fill func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(s.LocalPath(*a)), "new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // it has another name by then, or failed
	sum := digest.Canonical.Digester()
	err = fill(io.MultiWriter(f, sum.Hash()))
	info, failed := f.Stat()
	if err = errors.Join(err, failed, f.Close()); err != nil {
		return err
	}
	size := info.Size()
	a.Digest, a.Size, a.LastUpdateTime = sum.Digest().String(), &size, metav1.Now()
	return os.Rename(f.Name(), s.LocalPath(*a))
}
