// Package hydrate writes rendered packages to a branch of a Git repository, in the layout of Argo
// CD's source hydrator, which Argo CD and GitOps Promoter read. The folder of each package has
// manifest.yaml, README.md and hydrator.metadata. The root has hydrator.metadata and
// .gitattributes, and the commit has a note.
//
// It writes only objects and references, with the git program: no working tree and no index of the
// user changes. Identity, signing and credentials are Git's own settings.
package hydrate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/hashicorp/go-multierror"

	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/deliver/forge"
)

// Package is a rendered package.
type Package struct {
	// Path of its folder, in the source and on the branch. It has slashes, and is not the root.
	Path string
	// Manifest is the content of manifest.yaml; see the function Manifest.
	Manifest []byte
}

// Branch is the branch to which packages are written.
type Branch struct {
	// Folder is the root of a clone.
	Folder string
	// Name of the branch, without refs/heads/.
	Name string
	// URL of the repository that the packages are from. It is published with them.
	URL string
	// Commit is the full hash of the commit that was rendered. The clone has it.
	Commit string
	// Flags are the flags of armature hydrate that led to the result, for the README.
	Flags []string
	// Push reads and writes the branch of the remote origin, instead of the branch of the clone.
	Push bool
}

// Result is the result of Write.
type Result struct {
	// Commit is the hash of the branch.
	Commit string
	// Written and Removed are the paths of the packages that changed.
	Written, Removed []string
}

const (
	origin      = "origin"
	notesRef    = "refs/notes/hydrator.metadata"
	manifest    = "manifest.yaml"
	readme      = "README.md"
	metadata    = "hydrator.metadata"
	attributes  = ".gitattributes"
	maxMetadata = 1 << 20 // bytes of a hydrator.metadata or note
	maxTries    = 10      // attempts to publish, while other writers publish as well
	maxStuck    = 3       // consecutive attempts without a change by another writer
)

// Check validates the name, the URL and the paths of packages, before anything is rendered.
func (b *Branch) Check(ctx context.Context, paths ...string) error {
	var failed *multierror.Error
	report := func(wrong bool, text string, args ...any) {
		if wrong {
			failed = multierror.Append(failed, fmt.Errorf(text, args...))
		}
	}
	_, err := git{folder: b.Folder}.run(ctx, "", "check-ref-format", "refs/heads/"+b.Name)
	if ctx.Err() != nil {
		return err
	}
	report(err != nil || b.Name == "HEAD" || strings.HasPrefix(b.Name, "refs/") ||
		strings.HasPrefix(b.Name, "-"),
		"%q is not a valid branch: use a name such as environments/prod", b.Name)
	report(b.URL == "" || strings.HasPrefix(b.URL, "-") ||
		strings.ContainsFunc(b.URL, unicode.IsControl),
		"the URL of the source is empty, starts with - or has control characters")
	for i, p := range paths {
		report(p == "" || p == ".",
			"a package at the root of the repository would mix with the metadata "+
				"of the branch: put it into a folder")
		report(strings.ContainsFunc(p, unicode.IsControl), "the path %q has control characters", p)
		for _, other := range paths[:i] {
			report(p == other || strings.HasPrefix(p, other+"/") || strings.HasPrefix(other, p+"/"),
				"%s and %s overlap: their objects would be on the branch twice", other, p)
		}
	}
	return failed.ErrorOrNil()
}

// Write updates the branch with packages, with at most one commit and only if no other writer has
// changed the branch; otherwise it starts again from the new state. If no manifest differs, it
// writes no commit, but a note on the last one. It removes the packages of the same source that an
// earlier Write wrote and whose folder the source no longer has. It never changes other files: if
// one is in the way, it fails.
func (b *Branch) Write(ctx context.Context, packages []Package) (Result, error) {
	var paths []string
	for _, p := range packages {
		paths = append(paths, p.Path)
		if len(p.Manifest) == 0 {
			err := fmt.Errorf(
				"%s renders no objects, and an empty branch would delete the running objects", p.Path)
			return Result{}, err
		}
	}
	if len(packages) == 0 {
		return Result{}, errors.New("there are no packages to write")
	}
	if err := b.Check(ctx, paths...); err != nil {
		return Result{}, err
	}
	scratch, err := os.MkdirTemp("", "armature-hydrate-")
	if err != nil {
		return Result{}, err
	}
	defer os.RemoveAll(scratch)
	w := &writing{Branch: b, git: git{b.Folder, filepath.Join(scratch, "index")}, scratch: scratch,
		packages: packages}
	if err := w.prepare(ctx); err != nil {
		return Result{}, err
	}
	for try, stuck := 1, 0; ; try++ {
		before, err := w.tips(ctx)
		if err != nil {
			return Result{}, err
		}
		next, result, err := w.plan(ctx, before)
		if err != nil {
			return Result{}, err
		}
		if err := ctx.Err(); err != nil {
			return Result{}, err
		}
		if err = w.publish(ctx, before, next); err == nil {
			return result, nil
		}
		if ctx.Err() != nil {
			return Result{}, fmt.Errorf("interrupted while the branch %s was written: "+
				"it has its old commit or the new one\n  hint: run the command again", b.Name)
		}
		now, tipsErr := w.tips(ctx)
		if tipsErr != nil {
			return Result{}, multi.Errors(err, tipsErr)
		}
		if stuck++; now != before {
			stuck = 0
		}
		if try == maxTries || stuck == maxStuck {
			return Result{}, fmt.Errorf("writing the branch %s: %w", b.Name, err)
		}
		select {
		case <-ctx.Done():
			return Result{}, ctx.Err()
		case <-time.After(time.Duration(try) * (50 + rand.N[time.Duration](200)) * time.Millisecond):
		}
	}
}

// writing is one call of Write.
type writing struct {
	*Branch
	git      git
	scratch  string // a temporary folder
	packages []Package

	dry       hydratorMetadata // of the root
	manifests []string         // object IDs, by package
	folders   map[string]bool  // of the source
	sign      bool
}

// prepare reads and writes the objects that do not depend on the branch.
func (w *writing) prepare(ctx context.Context) (err error) {
	if !w.Push {
		if err := w.notCheckedOut(ctx); err != nil {
			return err
		}
	}
	if w.dry, err = w.readCommit(ctx); err != nil {
		return err
	}
	var contents [][]byte
	for _, p := range w.packages {
		contents = append(contents, p.Manifest)
	}
	if w.manifests, err = w.store(ctx, contents...); err != nil {
		return err
	}
	out, err := w.git.run(ctx, "", "ls-tree", "-r", "-d", "-z", "--name-only", "--full-tree", w.Commit)
	if err != nil {
		return err
	}
	w.folders = make(map[string]bool)
	for name := range strings.SplitSeq(string(out), "\x00") {
		w.folders[name] = true
	}
	out, err = w.git.run(ctx, "", "config", "--type=bool", "--default=false", "--get", "commit.gpgsign")
	w.sign = strings.TrimSpace(string(out)) == "true"
	return err
}

// notCheckedOut returns an error if a working tree has checked out the branch, since the working
// tree would not be updated.
func (w *writing) notCheckedOut(ctx context.Context) error {
	out, err := w.git.run(ctx, "", "worktree", "list", "--porcelain")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(out)) {
		if strings.TrimSuffix(line, "\n") == "branch refs/heads/"+w.Name {
			return fmt.Errorf("the branch %s is checked out: "+
				"name a branch that has rendered manifests only", w.Name)
		}
	}
	return nil
}

// change has the new hashes of references. "" leaves a reference unchanged.
type change struct{ branch, notes string }

// plan writes the objects that update the branch, and returns the change to publish.
func (w *writing) plan(ctx context.Context, at tips) (next change, result Result, err error) {
	branch, err := w.readTree(ctx, at.start)
	if err != nil {
		return next, result, err
	}
	notes, err := w.readTree(ctx, at.notes)
	if err != nil {
		return next, result, err
	}
	if err := w.newer(ctx, at, branch, notes); err != nil {
		return next, result, err
	}
	var failed *multierror.Error
	failed = multierror.Append(failed, w.owned(ctx, branch, "."))
	var changed []int
	for i, p := range w.packages {
		failed = multierror.Append(failed, w.owned(ctx, branch, p.Path))
		if was := branch[path.Join(p.Path, manifest)]; was.id != w.manifests[i] {
			changed, result.Written = append(changed, i), append(result.Written, p.Path)
		}
	}
	if err := failed.ErrorOrNil(); err != nil {
		return next, result, err
	}
	if result.Removed, err = w.removed(ctx, branch); err != nil {
		return next, result, err
	}
	result.Commit = at.start
	if len(result.Written)+len(result.Removed) > 0 {
		edits, err := w.edits(ctx, branch, changed, result.Removed)
		if err != nil {
			return next, result, err
		}
		if result.Commit, err = w.commit(ctx, at.start, edits, w.dry.message(), w.sign); err != nil {
			return next, result, err
		}
	}
	if result.Commit != at.branch {
		next.branch = result.Commit
	}
	next.notes, err = w.note(ctx, at.notes, notes, result.Commit)
	return next, result, err
}

// newer returns an error if the branch was rendered from a newer commit, because an older CI job
// ended last, or if the branch has the source.
func (w *writing) newer(ctx context.Context, at tips, branch, notes tree) error {
	if at.start == "" {
		return nil
	}
	if is, err := w.git.yes(ctx, "merge-base", "--is-ancestor", w.Commit, at.start); err != nil {
		return err
	} else if is {
		return fmt.Errorf("the branch %s contains the commit that is rendered: "+
			"name a branch that has rendered manifests only", w.Name)
	}
	was, err := w.noted(ctx, notes, at.start)
	if err != nil {
		return err
	}
	if was == "" {
		var about hydratorMetadata
		if err := w.readJSON(ctx, branch[metadata], &about); err != nil {
			return err
		}
		was = about.DrySHA
	}
	if !isHash(was) || was == w.Commit {
		return nil
	}
	if here, err := w.git.yes(ctx, "cat-file", "-e", was+"^{commit}"); err != nil || !here {
		return err // a shallow clone may lack the commit
	}
	if is, err := w.git.yes(ctx, "merge-base", "--is-ancestor", w.Commit, was); err != nil || !is {
		return err
	}
	return fmt.Errorf("the branch %s was rendered from %.12s, which comes after %.12s\n"+
		"  hint: render the newer commit; to go back, revert it in the source", w.Name, was, w.Commit)
}

// owned returns an error if Write would replace files in a folder that it did not write. "." is the
// root, which other hydrators may write as well.
func (w *writing) owned(ctx context.Context, branch tree, folder string) error {
	for parent := folder; parent != "."; parent = path.Dir(parent) {
		if _, ok := branch[parent]; ok {
			return fmt.Errorf("%s is a file on the branch %s, and a folder in the source", parent, w.Name)
		}
	}
	names := []string{manifest, readme, metadata}
	if folder == "." {
		names = []string{metadata}
	}
	var found []string
	for _, name := range names {
		file := path.Join(folder, name)
		if branch.hasFolder(file) {
			return fmt.Errorf(
				"%s is a folder on the branch %s: remove it, or choose another branch", file, w.Name)
		}
		if _, ok := branch[file]; ok {
			found = append(found, file)
		}
	}
	if len(found) == 0 {
		return nil
	}
	var about hydratorMetadata
	if err := w.readJSON(ctx, branch[path.Join(folder, metadata)], &about); err != nil {
		return err
	}
	own, writer, what := about.own(), command, folder+" on the branch "+w.Name
	if folder == "." {
		own, writer, what = isHash(about.DrySHA), "a hydrator", "the branch "+w.Name
	}
	switch {
	case !own:
		return fmt.Errorf("%s on the branch %s was not written by %s, and is not replaced\n"+
			"  hint: remove it from the branch, or choose another branch",
			strings.Join(found, ", "), w.Name, writer)
	case about.RepoURL != w.URL:
		return fmt.Errorf("%s is from %s, not from %s\n  hint: choose another branch; "+
			"if that is the same repository, name it with --repo", what, about.RepoURL, w.URL)
	}
	return nil
}

// removed returns the packages that an earlier Write wrote from this source, and that the source no
// longer has.
func (w *writing) removed(ctx context.Context, branch tree) (removed []string, err error) {
	for file, entry := range branch {
		folder := path.Dir(file)
		if path.Base(file) != metadata || folder == "." || w.folders[folder] {
			continue
		}
		var about hydratorMetadata
		if err := w.readJSON(ctx, entry, &about); err != nil {
			return nil, err
		}
		if about.own() && about.RepoURL == w.URL {
			removed = append(removed, folder)
		}
	}
	slices.Sort(removed)
	return removed, nil
}

// edits returns the edits of the branch, for packages that differ and those that are removed.
func (w *writing) edits(ctx context.Context, branch tree, changed []int,
	removed []string) (string, error) {
	files := []string{metadata}
	contents := [][]byte{w.dry.encode()}
	if _, ok := branch[attributes]; !ok {
		files, contents = append(files, attributes), append(contents, []byte(gitAttributes))
	}
	for _, i := range changed {
		folder := w.packages[i].Path
		about := w.about(folder)
		files = append(files, path.Join(folder, metadata), path.Join(folder, readme))
		contents = append(contents, about.encode(), about.readme())
	}
	ids, err := w.store(ctx, contents...)
	if err != nil {
		return "", err
	}
	for _, i := range changed {
		files, ids = append(files, path.Join(w.packages[i].Path, manifest)), append(ids, w.manifests[i])
	}
	var edits strings.Builder
	for i, file := range files {
		fmt.Fprintf(&edits, "100644 %s\t%s\x00", ids[i], file)
	}
	for _, folder := range removed {
		for _, name := range [...]string{manifest, readme, metadata} {
			if file := path.Join(folder, name); branch[file].regular() {
				fmt.Fprintf(&edits, "0 %s\t%s\x00", zeros(w.Commit), file)
			}
		}
	}
	return edits.String(), nil
}

// about returns the hydrator.metadata of a package.
func (w *writing) about(folder string) hydratorMetadata {
	words := []string{command, quote(folder), "--branch", quote(w.Name)}
	for _, flag := range w.Flags {
		words = append(words, quote(flag))
	}
	return hydratorMetadata{RepoURL: w.URL, DrySHA: w.Commit,
		Commands: []string{strings.Join(words, " ")}}
}

// Proposal is a pull request that merges the branch into Base. Without a Title, the text
// describes what hydrate does.
type Proposal struct {
	forge.Proposal
	Forge forge.Forge
}

// Propose opens a pull request that merges a pushed commit of the branch, and returns its URL. If
// one is open already, it sets its title and body unless Title is empty. If there is nothing to
// merge, the URL is "".
func (b *Branch) Propose(ctx context.Context, commit string,
	p Proposal) (address string, opened bool, err error) {
	if merged, err := b.merged(ctx, commit, p.Base); err != nil || merged {
		return "", false, err
	}
	if p.Head, p.Refresh = b.Name, p.Title != ""; !p.Refresh {
		p.Title = "Hydrate " + p.Base
		p.Body = "`armature hydrate` renders this branch. " +
			"`hydrator.metadata` names the commit that it was rendered from."
	}
	made, opened, err := p.Forge.Propose(ctx, p.Proposal)
	if err != nil {
		return "", false, err
	}
	return made.URL, opened, nil
}

// merged reports whether a branch of the remote contains a commit, or has the same files.
func (b *Branch) merged(ctx context.Context, commit, base string) (bool, error) {
	w := &writing{Branch: b, git: git{folder: b.Folder}}
	ref := "refs/heads/" + base
	found, err := w.remote(ctx, ref)
	if err != nil {
		return false, err
	}
	id := found[ref]
	if id == "" {
		return false, fmt.Errorf(
			"the branch %s does not exist on %s, so nothing can be merged into it", base, origin)
	}
	trees, err := w.git.run(ctx, "", "rev-parse", id+"^{tree}", commit+"^{tree}")
	if err != nil {
		return false, err
	}
	if both := strings.Fields(string(trees)); len(both) == 2 && both[0] == both[1] {
		return true, nil
	}
	return w.git.yes(ctx, "merge-base", "--is-ancestor", commit, id)
}
