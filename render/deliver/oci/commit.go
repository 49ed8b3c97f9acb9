package oci

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/storer"

	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/gitrun"
)

// Commit returns the Git commit of a package in Flux's form: main@sha1:…. It ends with "-dirty" if
// a file differs from the commit. more are further files of the render, which may be in other
// folders; "" is ignored. A package outside of Git has empty Metadata.
func Commit(root string, inputs []render.File, more ...string) (Metadata, error) {
	full, err := resolved(root)
	var at string
	if err == nil {
		at, err = gitrun.Find(full)
	}
	if errors.Is(err, gitrun.ErrNone) {
		return Metadata{}, nil
	} else if err != nil {
		return Metadata{}, err
	}
	repo, err := git.PlainOpenWithOptions(at, &git.PlainOpenOptions{EnableDotGitCommonDir: true})
	fail := func(err error) (Metadata, error) {
		return Metadata{}, fmt.Errorf("reading the Git repository of %s: %w", root, err)
	}
	if err != nil {
		return fail(err)
	}
	head, err := repo.Head()
	if errors.Is(err, plumbing.ErrReferenceNotFound) {
		return Metadata{}, nil // no commit yet
	} else if err != nil {
		return fail(err)
	}
	commit, err := repo.CommitObject(head.Hash())
	if err != nil {
		return fail(err)
	}
	dirty, err := changed(repo, commit, full, inputs, more)
	source, err2 := origin(repo)
	if err := multi.Errors(err, err2); err != nil {
		return fail(err)
	}
	revision := "sha1:" + head.Hash().String()
	if head.Name().IsBranch() {
		revision = head.Name().Short() + "@" + revision
	}
	if dirty {
		revision += "-dirty"
	}
	return Metadata{Source: source, Revision: revision, Created: commit.Committer.When.UTC()}, nil
}

// origin returns the URL of the remote origin without credentials, or "" if there is none.
func origin(repo *git.Repository) (string, error) {
	remote, err := repo.Remote("origin")
	if err != nil || len(remote.Config().URLs) == 0 {
		return "", nil
	}
	return gitrun.PublicURL(remote.Config().URLs[0])
}

// resolved returns the absolute path of a file, without symbolic links.
func resolved(name string) (string, error) {
	absolute, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(absolute)
}

// changed reports whether a file differs from the commit or is missing.
func changed(repo *git.Repository, at *object.Commit, full string, inputs []render.File,
	more []string) (bool, error) {
	tree, err := at.Tree()
	work, err2 := repo.Worktree()
	if err := multi.Errors(err, err2); err != nil {
		return false, err
	}
	top, err := filepath.EvalSymlinks(work.Filesystem.Root())
	if err != nil {
		return false, err
	}
	below, err := filepath.Rel(top, full)
	if err != nil || !filepath.IsLocal(below) {
		return false, fmt.Errorf("%s is not in the working tree %s", full, top)
	}
	below = filepath.ToSlash(below)
	if info, err := os.Stat(full); err == nil && !info.IsDir() {
		below = path.Dir(below)
	} else if deleted, err := missing(tree, top, below); deleted || err != nil {
		return deleted, err
	}
	var files []render.File // by their path in the working tree
	for _, in := range inputs {
		files = append(files, render.File{Path: path.Join(below, in.Path), Data: in.Data})
	}
	for _, name := range more {
		if name == "" {
			continue
		}
		data, err := os.ReadFile(name)
		at, err2 := resolved(name)
		if err := cmp.Or(err, err2); err != nil {
			return false, err
		}
		if at, err = filepath.Rel(top, at); err != nil || !filepath.IsLocal(at) {
			return true, nil // no commit has it
		}
		files = append(files, render.File{Path: filepath.ToSlash(at), Data: data})
	}
	for _, f := range files {
		entry, err := tree.FindEntry(f.Path)
		switch {
		case errors.Is(err, object.ErrEntryNotFound), errors.Is(err, object.ErrDirectoryNotFound):
			return true, nil
		case err != nil:
			return false, err
		case entry.Hash != plumbing.ComputeHash(plumbing.BlobObject, f.Data):
			return true, nil
		}
	}
	return false, nil
}

// missing reports whether a file that the commit has in a folder was deleted.
func missing(tree *object.Tree, top, below string) (deleted bool, err error) {
	if below != "." {
		switch tree, err = tree.Tree(below); {
		case errors.Is(err, object.ErrDirectoryNotFound), errors.Is(err, object.ErrEntryNotFound):
			return false, nil // the folder is new
		case err != nil:
			return false, err
		}
	}
	err = tree.Files().ForEach(func(f *object.File) error {
		_, err := os.Lstat(filepath.Join(top, filepath.FromSlash(below), filepath.FromSlash(f.Name)))
		if errors.Is(err, os.ErrNotExist) {
			deleted = true
			return storer.ErrStop
		}
		return err
	})
	return deleted, err
}
