package gitremote

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"github.com/armature-dev/armature/functions/multi"
)

// Change describes a commit.
type Change struct {
	// Message of the commit.
	Message string
	// Paths are the files that differ from the older commit. Known is false, and Paths empty, if
	// the server no longer has that commit or too much differs.
	Paths []string
	Known bool
}

// maxBetween is the largest distance of two commits that are compared, on a server that sends
// commits only as the history of a branch.
const maxBetween = 100

// Change reads the message of a commit, and the paths that differ from an older one unless older is
// empty. It fetches neither the history between them nor the content of files if the server can
// leave them out.
func (r Repository) Change(ctx context.Context, newer, older string) (out Change, err error) {
	folder, err := os.MkdirTemp("", "armature-change-")
	if err != nil {
		return out, err
	}
	defer func() { err = multi.Errors(err, os.RemoveAll(folder)) }()
	objects := filesystem.NewStorage(osfs.New(folder), cache.NewObjectLRU(4*cache.MiByte))
	get := func(sha string, filter packp.Filter, depth int) error {
		return r.fetch(ctx, objects, func(c *Conversation) *packp.UploadPackRequest {
			return c.Request(filter, depth, plumbing.NewHash(sha))
		})
	}
	filter := packp.FilterBlobNone()
	if older == "" {
		filter = packp.FilterTreeDepth(0)
	}
	if err := get(newer, filter, 1); err != nil {
		return out, err
	}
	after, err := object.GetCommit(objects, plumbing.NewHash(newer))
	if err != nil {
		return out, fmt.Errorf("reading commit %s: %w", newer, err)
	}
	out.Message = after.Message
	if older == "" {
		return out, nil
	}
	before, err := object.GetCommit(objects, plumbing.NewHash(older))
	// Not every server sends a commit by its hash: the second attempt reads the history.
	for _, from := range []struct {
		sha   string
		depth int
	}{{older, 1}, {newer, maxBetween}} {
		if errors.Is(err, plumbing.ErrObjectNotFound) && get(from.sha, filter, from.depth) == nil {
			before, err = object.GetCommit(objects, plumbing.NewHash(older))
		}
	}
	if err != nil {
		return out, ctx.Err() // the history was rewritten: the server no longer has the commit
	}
	out.Paths, out.Known, err = difference(ctx, objects, before.TreeHash, after.TreeHash)
	return out, err
}

const (
	// maxEntries bounds the entries of trees that are compared, and maxPaths the bytes of their
	// paths.
	maxEntries, maxPaths = 100_000, 8 << 20
	// maxTree is the largest size of one tree, in bytes.
	maxTree = 4 << 20
)

// difference returns the paths of the files that differ between two trees. It skips subtrees that
// are equal. A tree may name another one many times, so that a small pack has more paths than can
// be listed: beyond the bounds, known is false and paths is empty.
func difference(ctx context.Context, objects storer.EncodedObjectStorer,
	was, is plumbing.Hash) (paths []string, known bool, err error) {
	w := walk{objects: objects, entries: maxEntries, bytes: maxPaths}
	switch err := w.compare(ctx, "", was, is); {
	case errors.Is(err, errMany):
		return nil, false, nil
	case err != nil:
		return nil, false, err
	}
	slices.Sort(w.paths)
	return w.paths, true, nil
}

var errMany = errors.New("the trees have too many entries to be compared")

// walk compares trees.
type walk struct {
	objects        storer.EncodedObjectStorer
	entries, bytes int // the remaining budget
	paths          []string
}

// compare compares two trees at a folder, which ends in a slash. The zero hash is an empty tree.
func (w *walk) compare(ctx context.Context, folder string, was, is plumbing.Hash) error {
	before, err := w.read(ctx, was)
	if err != nil {
		return err
	}
	after, err := w.read(ctx, is)
	if err != nil {
		return err
	}
	for name, was := range before {
		if err := w.entry(ctx, folder+name, was, after[name]); err != nil {
			return err
		}
		delete(after, name)
	}
	for name, is := range after {
		if err := w.entry(ctx, folder+name, object.TreeEntry{}, is); err != nil {
			return err
		}
	}
	return nil
}

// entry compares the old and the new entry of a path. The zero entry is one that does not exist.
func (w *walk) entry(ctx context.Context, path string, was, is object.TreeEntry) error {
	if was.Hash == is.Hash && was.Mode == is.Mode {
		return nil
	}
	if w.bytes -= len(path); w.bytes < 0 {
		return errMany
	}
	var trees [2]plumbing.Hash
	file := false
	for i, e := range []object.TreeEntry{was, is} {
		if e.Mode == filemode.Dir {
			trees[i] = e.Hash
		} else {
			file = file || e.Mode != 0 || !e.Hash.IsZero()
		}
	}
	if file {
		w.paths = append(w.paths, path)
	}
	if trees == [2]plumbing.Hash{} {
		return nil
	}
	return w.compare(ctx, path+"/", trees[0], trees[1])
}

// read returns the entries of a tree by name.
func (w *walk) read(ctx context.Context, hash plumbing.Hash) (map[string]object.TreeEntry, error) {
	if err := ctx.Err(); err != nil || hash.IsZero() {
		return nil, err
	}
	encoded, err := w.objects.EncodedObject(plumbing.TreeObject, hash)
	if err != nil {
		return nil, fmt.Errorf("reading tree %s: %w", hash, err)
	}
	if encoded.Size() > maxTree {
		return nil, errMany
	}
	var tree object.Tree
	if err := tree.Decode(encoded); err != nil {
		return nil, fmt.Errorf("reading tree %s: %w", hash, err)
	}
	if w.entries -= 1 + len(tree.Entries); w.entries < 0 { // an empty tree costs as well
		return nil, errMany
	}
	all := make(map[string]object.TreeEntry, len(tree.Entries))
	for _, e := range tree.Entries {
		all[e.Name] = e
	}
	return all, nil
}
