// Package gitrun finds the repository of a package and runs the git program in it. All git
// processes start here. The files of a package are not trusted, as in a pull request, and git by
// itself obeys the configuration of any folder that has the layout of a repository.
package gitrun

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// ErrNone reports a folder that is in no repository.
var ErrNone = errors.New(
	"is in no Git repository: neither it nor a folder above it has an entry .git")

// Find returns the working tree that contains a folder: the nearest folder, from this one upwards,
// with an entry .git, which Git never checks out from a commit. If a folder on the way has the
// layout of a repository itself, it is an error, since other programs would obey it. Find runs no
// program.
func Find(folder string) (top string, err error) {
	full, err := filepath.Abs(folder)
	if err != nil {
		return "", err
	}
	if full, err = filepath.EvalSymlinks(full); err != nil {
		return "", err
	}
	for at := full; ; at = filepath.Dir(at) {
		if looksBare(at) {
			return "", fmt.Errorf("%s: the folder has HEAD, objects and refs like a bare Git "+
				"repository, whose configuration can run programs\n  hint: remove %s, or rename it",
				filepath.Join(at, "HEAD"), filepath.Join(at, "HEAD"))
		}
		if exists(at, ".git") {
			return at, ofTree(at)
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%s %w", folder, ErrNone)
		}
	}
}

// Open calls Find, and checks that git accepts the owner of the repository.
func Open(ctx context.Context, folder string) (top string, err error) {
	if top, err = Find(folder); err != nil {
		return "", err
	}
	// With --git-dir, git trusts every owner.
	cmd := Command(ctx, "", "rev-parse", "--git-dir")
	cmd.Args = slices.DeleteFunc(cmd.Args,
		func(arg string) bool { return strings.HasPrefix(arg, "--git-dir") })
	cmd.Dir, cmd.Env = top, append(cmd.Env, "GIT_CEILING_DIRECTORIES="+filepath.Dir(top))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); errors.As(err, &exit) && ctx.Err() == nil {
		return "", fmt.Errorf("%s: %s", filepath.Join(top, ".git"),
			strings.TrimSpace(stderr.String()))
	} else if err != nil {
		return "", Fault(ctx, err)
	}
	return top, nil
}

// Fault returns the error of a process that did not start or was interrupted.
func Fault(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, exec.ErrNotFound):
		return errors.New("the git program, which reads revisions, is not on the PATH")
	}
	return err
}

// Command returns a git command in a working tree that Find returned, or in no repository if top is
// empty. No file of the working tree determines which programs run: hooks, the file monitor and
// lazy fetching of missing objects are disabled, and variables that name a repository are removed.
func Command(ctx context.Context, top string, args ...string) *exec.Cmd {
	place := []string{"--git-dir=" + os.DevNull}
	if top != "" {
		place = []string{"--git-dir=" + filepath.Join(top, ".git"), "--work-tree=" + top, "-c",
			"core.hooksPath=" + os.DevNull}
	}
	cmd := exec.CommandContext(ctx, "git",
		slices.Concat(place,
			[]string{"-c", "safe.bareRepository=explicit", "-c", "core.fsmonitor=false"}, args)...)
	cmd.Dir = top
	cmd.Env = append(slices.DeleteFunc(os.Environ(), placing), "GIT_NO_LAZY_FETCH=1")
	return cmd
}

// Error reports a git command that failed.
type Error struct {
	*exec.ExitError
	text string
}

func (e *Error) Error() string { return e.text }

// Output runs a Command and returns what it prints. The message of git becomes an *Error,
// without the logins of URLs.
func Output(ctx context.Context, cmd *exec.Cmd) ([]byte, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && ctx.Err() == nil:
		words := strings.Split(strings.TrimSpace(stderr.String()), "://")
		for i := 1; i < len(words); i++ {
			end := strings.IndexAny(words[i]+" ", "/ \n'\"")
			words[i] = words[i][strings.LastIndex(words[i][:end], "@")+1:]
		}
		at := slices.Index(cmd.Args, "core.fsmonitor=false") + 1
		for cmd.Args[at] == "-c" {
			at += 2
		}
		return nil, &Error{exit,
			fmt.Sprintf("git %s: %s", cmd.Args[at], strings.Join(words, "://"))}
	case err != nil:
		return nil, Fault(ctx, err)
	}
	return out, nil
}

// OriginURL returns the URL of a clone's remote origin without a login, or "" if there is none.
func OriginURL(ctx context.Context, clone string) (string, error) {
	cmd := Command(ctx, clone, "config", "--default=", "--get", "remote.origin.url")
	out, err := Output(ctx, cmd)
	if err != nil {
		return "", err
	}
	return PublicURL(strings.TrimSpace(string(out)))
}

// PublicURL removes from a repository's URL the parts that may be secret. It returns an error if it
// cannot parse the URL.
func PublicURL(address string) (string, error) {
	if !strings.Contains(address, "://") {
		return address, nil // git@host:path, or a folder
	}
	u, err := url.Parse(address)
	if err != nil {
		return "", errors.New(
			"the URL of the source repository cannot be read, and may hold a login: " +
				"name another with --repo or --source")
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String(), nil
}

// placing reports whether an environment variable names one repository, like those of a hook. They
// are the variables that git rev-parse --local-env-vars lists, except those of the configuration.
func placing(variable string) bool {
	name, _, _ := strings.Cut(variable, "=")
	return slices.Contains([]string{
		"GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_ATTR_SOURCE", "GIT_CEILING_DIRECTORIES",
		"GIT_COMMON_DIR", "GIT_CONFIG", "GIT_DIR", "GIT_DISCOVERY_ACROSS_FILESYSTEM",
		"GIT_EXTERNAL_DIFF", "GIT_GRAFT_FILE", "GIT_IMPLICIT_WORK_TREE", "GIT_INDEX_FILE",
		"GIT_INTERNAL_SUPER_PREFIX", "GIT_NAMESPACE", "GIT_NO_LAZY_FETCH", "GIT_NO_REPLACE_OBJECTS",
		"GIT_OBJECT_DIRECTORY", "GIT_PREFIX", "GIT_QUARANTINE_PATH", "GIT_REPLACE_REF_BASE",
		"GIT_SHALLOW_FILE", "GIT_WORK_TREE",
	}, name)
}

func exists(folder, name string) bool {
	_, err := os.Lstat(filepath.Join(folder, name))
	return err == nil
}

// looksBare reports whether git could treat a folder as a repository.
func looksBare(at string) bool {
	return filepath.Base(at) != ".git" && exists(at, "HEAD") &&
		(exists(at, "objects") && exists(at, "refs") || exists(at, "commondir"))
}

// ofTree returns an error if .git leads to a folder among the files of a working tree. The .git of
// submodules and of added working trees never does.
func ofTree(top string) error {
	file := filepath.Join(top, ".git")
	info, err := os.Lstat(file)
	if err != nil || info.IsDir() {
		return err
	}
	target, err := gitFolder(file)
	if err != nil {
		return err
	}
	for at := filepath.Dir(top); at != filepath.Dir(at); at = filepath.Dir(at) {
		if !exists(at, ".git") {
			continue
		}
		own, err := gitFolder(filepath.Join(at, ".git"))
		if err != nil {
			return err
		}
		if below(target, at) && !below(target, own) {
			return fmt.Errorf("%s leads to %s, which the working tree %s has as files: its "+
				"configuration can run programs\n  hint: remove %s", file, target, at, file)
		}
	}
	return nil
}

// gitFolder returns the folder that an entry .git leads to.
func gitFolder(file string) (string, error) {
	if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Size() < 64<<10 {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		target, ok := strings.CutPrefix(strings.TrimRight(string(text), "\r\n"), "gitdir: ")
		if !ok {
			return "", fmt.Errorf("%s is a file that names no repository", file)
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(file), target)
		}
		file = target
	}
	return filepath.EvalSymlinks(file)
}

// below reports whether a path is a folder or below it.
func below(path, folder string) bool {
	relative, err := filepath.Rel(folder, path)
	return err == nil && filepath.IsLocal(relative)
}
