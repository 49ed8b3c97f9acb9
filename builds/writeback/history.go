package writeback

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage"

	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/render"
)

// clone has the objects that were fetched from a remote.
type clone struct {
	from    gitremote.Repository
	path    string // of the lock
	objects storage.Storer
}

// state is the content of the lock from a commit on, until the previous state in the list.
type state struct {
	commit plumbing.Hash
	text   []byte // only of the newest state, and nil if there is no lock
	builds map[string]api.LockedBuild
}

// maxCommits bounds the commits of a branch that are searched for changes of the lock, and
// maxStates the states of the lock.
const maxCommits, maxStates = 50_000, 2_000

// history returns the states of the lock on a branch, the newest first. It follows first parents,
// because only the content of the branch counts, not how commits came to it. It skips older locks
// that cannot be read.
func (c *clone) history(ctx context.Context, head plumbing.Hash) (states []state, err error) {
	type version struct{ commit, blob plumbing.Hash }
	var versions []version
	at := head
	for range maxCommits {
		commit, err := object.GetCommit(c.objects, at)
		if err != nil {
			return nil, fmt.Errorf("reading commit %s: %w", at, err)
		}
		blob, err := c.blob(commit)
		if err != nil {
			return nil, err
		}
		if n := len(versions); n > 0 && versions[n-1].blob == blob {
			versions[n-1].commit = at
		} else if n == maxStates {
			break
		} else {
			versions = append(versions, version{at, blob})
		}
		if len(commit.ParentHashes) == 0 {
			break
		}
		at = commit.ParentHashes[0]
	}
	wanted := make(map[plumbing.Hash]bool)
	for _, v := range versions {
		if !v.blob.IsZero() && c.objects.HasEncodedObject(v.blob) != nil {
			wanted[v.blob] = true
		}
	}
	if len(wanted) > 0 {
		if err := c.from.Files(ctx, c.objects, slices.Collect(maps.Keys(wanted))); err != nil {
			return nil, err
		}
	}
	for i, v := range versions {
		s := state{commit: v.commit}
		if !v.blob.IsZero() {
			text, err := c.read(v.blob)
			if err != nil {
				return nil, err
			}
			spec, err := parse(text, c.path)
			if err != nil && i > 0 {
				continue
			} else if err != nil {
				return nil, err
			}
			if i == 0 {
				s.text = text
			}
			s.builds = make(map[string]api.LockedBuild, len(spec.Builds))
			for _, b := range spec.Builds {
				s.builds[b.Namespace+"/"+b.Name] = b
			}
		}
		states = append(states, s)
	}
	return states, nil
}

// blob returns the hash of the lock in a commit, or zero if the commit has none.
func (c *clone) blob(commit *object.Commit) (none plumbing.Hash, _ error) {
	tree, err := commit.Tree()
	if err != nil {
		return none, fmt.Errorf("reading commit %s: %w", commit.Hash, err)
	}
	entry, err := tree.FindEntry(c.path)
	switch {
	case errors.Is(err, object.ErrDirectoryNotFound), errors.Is(err, object.ErrEntryNotFound),
		errors.Is(err, object.ErrFileNotFound):
		return none, nil
	case err != nil:
		return none, fmt.Errorf("reading %s in commit %s: %w", c.path, commit.Hash, err)
	case !entry.Mode.IsRegular() && entry.Mode.IsFile():
		return none, fmt.Errorf(
			"%s in commit %s is a link, an executable or a submodule, not a lock", c.path, commit.Hash)
	case !entry.Mode.IsFile():
		return none, fmt.Errorf("%s in commit %s is a folder, not a lock", c.path, commit.Hash)
	}
	return entry.Hash, nil
}

// imagesAlone reports whether a commit differs from its parent only in the images of builds in the
// lock.
func (c *clone) imagesAlone(ctx context.Context, parent, commit *object.Commit) (bool, error) {
	was, err := parent.Tree()
	if err != nil {
		return false, err
	}
	is, err := commit.Tree()
	if err != nil {
		return false, err
	}
	changes, err := object.DiffTreeContext(ctx, was, is)
	if err != nil || len(changes) != 1 || changes[0].To.Name != c.path {
		return false, err
	}
	var locks [2]api.ImageLockSpec
	for i, at := range []*object.Commit{parent, commit} {
		blob, err := c.blob(at)
		if err != nil || blob.IsZero() && at == commit {
			return false, nil // not a lock
		}
		if blob.IsZero() {
			continue
		}
		if c.objects.HasEncodedObject(blob) != nil {
			if err := c.from.Files(ctx, c.objects, []plumbing.Hash{blob}); err != nil {
				return false, err
			}
		}
		text, err := c.read(blob)
		if err != nil {
			return false, err
		}
		if locks[i], err = parse(text, c.path); err != nil {
			return false, nil // a person changed the lock
		}
		locks[i].Builds = nil
	}
	return reflect.DeepEqual(locks[0], locks[1]), nil
}

func (c *clone) read(hash plumbing.Hash) ([]byte, error) {
	blob, err := object.GetBlob(c.objects, hash)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", c.path, err)
	}
	if blob.Size > maxLock {
		return nil, fmt.Errorf("%s has %d bytes: a lock has at most %d", c.path, blob.Size, maxLock)
	}
	text, err := (&object.File{Blob: *blob}).Contents()
	return []byte(text), err
}

// parse parses a lock.
func parse(text []byte, file string) (api.ImageLockSpec, error) {
	lock, findings := render.ReadLock(text, file)
	for _, f := range findings {
		if f.Severity == finding.Error {
			return api.ImageLockSpec{}, errors.New(f.Error())
		}
	}
	return lock.Spec, nil
}

// rejected returns the commit that removed an image, or another image of the same source commit,
// from the lock or replaced it by one that the lock had before, or "". It compares the content of
// the locks, because a squash or a rebase loses signatures and trailers, and a person may revert by
// hand. An image that was added again is not rejected.
func rejected(states []state, b Built) string {
	same := func(other api.LockedBuild) bool {
		return other.Image == b.Image ||
			other.Image != "" && other.Commit != "" && other.Commit == b.Commit
	}
	for i := 1; i < len(states); i++ {
		was, is := states[i].builds[b.key()], states[i-1].builds[b.key()]
		if !same(was) || same(is) {
			continue
		}
		back := is.Image == ""
		for _, earlier := range states[i+1:] {
			e := earlier.builds[b.key()]
			back = back || e.Image == is.Image || e.Commit != "" && e.Commit == is.Commit
		}
		if back {
			return states[i-1].commit.String()
		}
		return ""
	}
	return ""
}
