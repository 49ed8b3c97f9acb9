package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/tools"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/gitrun"
	"github.com/armature-dev/armature/render/source"
)

// Revision is a package in a Git revision.
type Revision struct {
	Repository string // its root
	Commit     string
	Path       string // of the package in it, with slashes; "" is the root
}

// FindRevision resolves a name of a revision for the repository that a folder or file is in.
func FindRevision(ctx context.Context, at, ref string) (Revision, error) {
	absolute, err := filepath.Abs(at)
	if err != nil {
		return Revision{}, err
	}
	folder := existing(absolute)
	root, err := gitrun.Open(ctx, folder)
	if errors.Is(err, gitrun.ErrNone) {
		err = fmt.Errorf(
			"%w\n  hint: name a package of a repository, or run git init and commit it first", err)
	}
	if err != nil {
		return Revision{}, err
	}
	commit, err := RunGit(ctx, root, nil, "rev-parse", "--verify", "--quiet", "--end-of-options",
		ref+"^{commit}")
	if err != nil {
		return Revision{}, fmt.Errorf("%q is not a revision of %s: name a branch, tag or commit, "+
			"and fetch it first (a shallow clone does not have it)", ref, root)
	}
	resolved, err := filepath.EvalSymlinks(folder)
	if err != nil {
		return Revision{}, err
	}
	relative, err := filepath.Rel(root,
		filepath.Join(resolved, strings.TrimPrefix(absolute, folder)))
	if err != nil || !filepath.IsLocal(relative) {
		return Revision{}, fmt.Errorf("%s is not in the repository %s", at, root)
	}
	relative = filepath.ToSlash(relative)
	if relative == "." {
		relative = ""
	}
	return Revision{root, line(commit), relative}, nil
}

// existing returns the nearest folder at or above a path that exists: the working tree may lack a
// package.
func existing(at string) string {
	for ; at != filepath.Dir(at); at = filepath.Dir(at) {
		if info, err := os.Stat(at); err == nil && info.IsDir() {
			break
		}
	}
	return at
}

func line(out []byte) string { return strings.TrimSuffix(string(out), "\n") }

// RunGit runs the git program in the working tree of a repository, or outside of all repositories
// if top is empty. Its standard error becomes the error.
func RunGit(ctx context.Context, top string, stdin io.Reader, args ...string) ([]byte, error) {
	cmd := gitrun.Command(ctx, top, args...)
	cmd.Stdin = stdin
	out, err := gitrun.Output(ctx, cmd)
	if ctx.Err() != nil {
		return nil, ErrInterrupted
	}
	return out, err
}

// blob is a file of a revision.
type blob struct{ name, object, mode string }

// extract writes the manifests of the package into a folder, with the configurations of the folders
// above it, and with the lock if the package is a single file. It reports whether the revision has
// the package.
func (r Revision) extract(ctx context.Context, into string) (found bool, err error) {
	blobs, err := r.list(ctx, isInput, r.Path)
	if err != nil || len(blobs) == 0 {
		return false, err
	}
	var related []string
	folder := r.Path
	if blobs[0].name == r.Path {
		folder = path.Dir(r.Path)
		related = []string{path.Join(folder, render.LockFile), path.Join(folder, tools.File),
			path.Join(folder, source.ListFile)}
	}
	related = append(related, configsAbove(r.Path)...)
	if len(related) > 0 {
		more, err := r.list(ctx, isInput, related...)
		if err != nil {
			return false, err
		}
		blobs = append(blobs, more...)
	}
	if err := r.write(ctx, blobs, into); err != nil {
		return false, err
	}
	// The configuration of a rendered folder is that of its package.
	pkg := source.RenderedFrom(filepath.Join(into, filepath.FromSlash(folder)))
	if pkg = path.Join(folder, filepath.ToSlash(pkg)); pkg == folder || !filepath.IsLocal(pkg) {
		return true, nil
	}
	written := func(name string) bool {
		return slices.ContainsFunc(blobs, func(b blob) bool { return b.name == name })
	}
	more, err := r.list(ctx, func(name string) bool { return !written(name) }, configsAbove(pkg+"/.")...)
	if err != nil {
		return false, err
	}
	return true, r.write(ctx, more, into)
}

// configsAbove returns the paths above a file or folder at which its configuration may be.
func configsAbove(at string) (files []string) {
	for at != "" && at != "." {
		if at = path.Dir(at); at == "." {
			at = ""
		}
		files = append(files, path.Join(at, render.ConfigFile),
			path.Join(at, render.MisnamedConfig))
	}
	return files
}

// extractFile extracts one file of the package, of any type. If the package is a single file, the
// other one is in the same folder.
func (r Revision) extractFile(ctx context.Context, file, into string) error {
	blobs, err := r.list(ctx, func(string) bool { return true }, path.Join(r.Path, file),
		path.Join(path.Dir(r.Path), file))
	if err != nil {
		return err
	}
	return r.write(ctx, blobs, into)
}

// FileOf extracts a file of the repository from a revision to stage, and returns its path, or "" if
// the revision does not have it or file is "".
func FileOf(ctx context.Context, file, ref, stage string) (string, error) {
	if file == "" {
		return "", nil
	}
	r, err := FindRevision(ctx, file, ref)
	if err != nil {
		return "", err
	}
	found, err := r.extract(ctx, stage)
	if err != nil || !found {
		return "", err
	}
	return filepath.Join(stage, filepath.FromSlash(r.Path)), nil
}

// OpenRevision extracts a package of a revision to stage, and opens it.
func (in *Input) OpenRevision(cmd *cobra.Command, r Revision,
	stage string) (src render.Source, opt render.Options, findings []finding.Finding, found bool,
	err error) {
	if found, err = r.extract(cmd.Context(), stage); err != nil || !found {
		return src, opt, nil, false, err
	}
	root := filepath.Join(stage, filepath.FromSlash(r.Path))
	defer func(top string) { in.top = top }(in.top)
	in.top = stage
	src, opt, findings, err = in.Open(cmd, root, "")
	if c := opt.Config; err == nil && c != nil && c.Spec.Asya != nil &&
		c.Spec.Asya.RuntimeScriptFile != nil {
		if err = r.extractFile(cmd.Context(), *c.Spec.Asya.RuntimeScriptFile, stage); err == nil {
			src, opt, findings, err = in.Open(cmd, root, "")
		}
	}
	return src, opt, findings, true, err
}

// list returns the files of the revision at or below paths; "" is its root.
func (r Revision) list(ctx context.Context, include func(name string) bool,
	paths ...string) (blobs []blob, err error) {
	args := []string{"ls-tree", "-r", "-z", "--full-tree", r.Commit, "--"}
	for _, p := range paths {
		if p != "" {
			args = append(args, ":(literal)"+p)
		}
	}
	out, err := RunGit(ctx, r.Repository, nil, args...)
	if err != nil {
		return nil, err
	}
	for entry := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		about, name, ok := strings.Cut(entry, "\t")
		fields := strings.Fields(about)
		if !ok || len(fields) != 3 || fields[1] != "blob" || !include(name) {
			continue // a submodule, or no manifest
		}
		blobs = append(blobs, blob{name, fields[2], fields[0]})
	}
	return blobs, nil
}

// isInput reports whether a render reads a file.
func isInput(name string) bool {
	return render.IsManifest(name) || path.Ext(name) == ".lock" || render.IsKustomization(name) ||
		path.Base(name) == source.ListFile
}

// write reads all blobs from one git process and writes them below a folder. No name can lead out
// of the folder.
func (r Revision) write(ctx context.Context, blobs []blob, into string) error {
	root, err := os.OpenRoot(into)
	if err != nil {
		return err
	}
	defer root.Close()
	var names strings.Builder
	for _, b := range blobs {
		names.WriteString(b.object + "\n")
	}
	out, err := RunGit(ctx, r.Repository, strings.NewReader(names.String()), "cat-file", "--batch")
	if err != nil {
		return err
	}
	in := bufio.NewReader(bytes.NewReader(out))
	for _, b := range blobs {
		data, err := readBlob(in)
		if err != nil {
			return fmt.Errorf("reading %s of %s: %w", b.name, r.Commit, err)
		}
		if err := root.MkdirAll(path.Dir(b.name), 0o755); err != nil {
			return err
		}
		if b.mode == "120000" {
			err = root.Symlink(string(data), b.name)
		} else {
			err = root.WriteFile(b.name, data, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readBlob reads one answer of git cat-file --batch.
func readBlob(in *bufio.Reader) ([]byte, error) {
	head, err := in.ReadString('\n')
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(head)
	if len(fields) == 2 && fields[1] == "missing" {
		return nil, errors.New("this partial clone does not have it: fetch it first, as with git " +
			"fetch --refetch --no-filter")
	}
	if len(fields) != 3 {
		return nil, fmt.Errorf("git says %q", strings.TrimSpace(head))
	}
	size, err := strconv.Atoi(fields[2])
	if err != nil || size > source.MaxFile {
		return nil, source.ErrTooLarge
	}
	data := make([]byte, size+1) // with the line feed behind it
	if _, err := io.ReadFull(in, data); err != nil {
		return nil, err
	}
	return data[:size], nil
}

// Differs returns a file of the working tree that differs from the revision: a tracked file, or an
// untracked input of the package, ignored or not; "" for none.
func (r Revision) Differs(ctx context.Context) (string, error) {
	changed, err := RunGit(ctx, r.Repository, nil, "diff", "--name-only", "-z", "--no-ext-diff",
		"--no-textconv", r.Commit, "--")
	if err != nil {
		return "", err
	}
	if name, _, ok := strings.Cut(string(changed), "\x00"); ok {
		return name, nil
	}
	below := ":(top,literal)" + r.Path
	if r.Path == "" {
		below = ":(top)"
	}
	others, err := RunGit(ctx, r.Repository, nil, "ls-files", "--others", "-z", "--", below)
	if err != nil {
		return "", err
	}
	for name := range strings.SplitSeq(string(others), "\x00") {
		if name != "" && isInput(name) {
			return name, nil
		}
	}
	return "", nil
}
