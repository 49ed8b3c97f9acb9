package main

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/storer"

	"github.com/armature-dev/armature/render/oci"
)

// commit says which Git commit a package is from, as Flux writes it:
// main@sha1:…. Where a file is not as the commit has it, "-dirty" follows; more
// are files of the render that may lie elsewhere, "" for none. A package outside
// of Git is from nowhere.
func commit(root string, inputs []inputFile, more ...string) (oci.Metadata, error) {
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
	dirty, err := changed(repo, at, full, inputs, more)
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
	return withoutLogin(remote.Config().URLs[0])
}

// withoutLogin leaves out of a repository's URL what may be a secret.
func withoutLogin(given string) string {
	if u, err := url.Parse(given); err == nil && u.Scheme != "" {
		u.User, u.RawQuery, u.Fragment = nil, "", ""
		return u.String()
	}
	return given // git@host:path
}

// changed reports whether a file differs from the commit's, or is missing.
func changed(repo *git.Repository, at *object.Commit, full string, inputs []inputFile, more []string) (bool, error) {
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
	if info, err := os.Stat(full); err == nil && !info.IsDir() {
		below = path.Dir(below)
	} else if gone, err := missing(tree, top, below); gone || err != nil {
		return gone, err
	}
	var files []inputFile // by their path in the working tree
	for _, in := range inputs {
		files = append(files, inputFile{path.Join(below, in.path), in.data})
	}
	for _, name := range more {
		if name == "" {
			continue
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return false, err
		}
		at, err := filepath.Abs(name)
		if err != nil {
			return false, err
		}
		if at, err = filepath.EvalSymlinks(at); err != nil {
			return false, err
		}
		if at, err = filepath.Rel(top, at); err != nil || strings.HasPrefix(at, "..") {
			return true, nil // no commit has it
		}
		files = append(files, inputFile{filepath.ToSlash(at), data})
	}
	for _, f := range files {
		entry, err := tree.FindEntry(f.path)
		switch {
		case errors.Is(err, object.ErrEntryNotFound), errors.Is(err, object.ErrDirectoryNotFound):
			return true, nil
		case err != nil:
			return false, err
		case entry.Hash != plumbing.ComputeHash(plumbing.BlobObject, f.data):
			return true, nil
		}
	}
	return false, nil
}

// missing reports whether a file that the commit has in a folder was deleted.
func missing(tree *object.Tree, top, below string) (gone bool, err error) {
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
			gone = true
			return storer.ErrStop
		}
		return err
	})
	return gone, err
}
