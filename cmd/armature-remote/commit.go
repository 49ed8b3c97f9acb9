package main

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"strings"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/armature-dev/armature/render/oci"
)

// commit says which Git commit a package is from, as Flux writes it:
// main@sha1:…. Where a file is not as the commit has it, "-dirty" follows. A
// package outside of Git is from nowhere.
func commit(root string, inputs []input) (oci.Metadata, error) {
	full, err := filepath.Abs(root)
	if err != nil {
		return oci.Metadata{}, err
	}
	if full, err = filepath.EvalSymlinks(full); err != nil {
		return oci.Metadata{}, err
	}
	repo, err := git.PlainOpenWithOptions(full, &git.PlainOpenOptions{DetectDotGit: true, EnableDotGitCommonDir: true})
	if errors.Is(err, git.ErrRepositoryNotExists) {
		return oci.Metadata{}, nil
	}
	fail := func(err error) (oci.Metadata, error) {
		return oci.Metadata{}, fmt.Errorf("reading the Git repository of %s (--source, --revision and --created do without): %w", root, err)
	}
	if err != nil {
		return fail(err)
	}
	head, err := repo.Head()
	if errors.Is(err, plumbing.ErrReferenceNotFound) {
		return oci.Metadata{}, nil // no commit yet
	} else if err != nil {
		return fail(err)
	}
	at, err := repo.CommitObject(head.Hash())
	if err != nil {
		return fail(err)
	}
	dirty, err := changed(repo, at, full, inputs)
	if err != nil {
		return fail(err)
	}
	revision := "sha1:" + head.Hash().String()
	if head.Name().IsBranch() {
		revision = head.Name().Short() + "@" + revision
	}
	if dirty {
		revision += "-dirty"
	}
	return oci.Metadata{Source: origin(repo), Revision: revision, Created: at.Committer.When.UTC()}, nil
}

// origin is the URL of the remote origin, without a login, "" for none.
func origin(repo *git.Repository) string {
	remote, err := repo.Remote("origin")
	if err != nil || len(remote.Config().URLs) == 0 {
		return ""
	}
	given := remote.Config().URLs[0]
	if u, err := url.Parse(given); err == nil && u.Scheme != "" {
		u.User, u.RawQuery, u.Fragment = nil, "", ""
		return u.String()
	}
	return given // git@host:path
}

// changed reports whether a file differs from the commit's.
func changed(repo *git.Repository, at *object.Commit, full string, inputs []input) (bool, error) {
	tree, err := at.Tree()
	if err != nil {
		return false, err
	}
	work, err := repo.Worktree()
	if err != nil {
		return false, err
	}
	top, err := filepath.EvalSymlinks(work.Filesystem.Root())
	if err != nil {
		return false, err
	}
	below, err := filepath.Rel(top, full)
	if err != nil || strings.HasPrefix(below, "..") {
		return false, fmt.Errorf("%s is not in the working tree %s", full, top)
	}
	below = filepath.ToSlash(below)
	if len(inputs) == 1 && inputs[0].path == path.Base(below) { // the package is a file
		if entry, err := tree.FindEntry(below); err == nil && entry.Mode.IsFile() {
			below = path.Dir(below)
		}
	}
	for _, in := range inputs {
		entry, err := tree.FindEntry(path.Join(below, in.path))
		switch {
		case errors.Is(err, object.ErrEntryNotFound), errors.Is(err, object.ErrDirectoryNotFound):
			return true, nil
		case err != nil:
			return false, err
		case entry.Hash != plumbing.ComputeHash(plumbing.BlobObject, in.data):
			return true, nil
		}
	}
	return false, nil
}
