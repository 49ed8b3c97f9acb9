package hydrate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/armature-dev/armature/render/deliver/gitrun"
)

// networkTime bounds one conversation with the remote.
const networkTime = 5 * time.Minute

// git runs the git program in a clone. index is its index file, or empty for that of the clone.
type git struct{ folder, index string }

// run runs git and returns its output.
func (g git) run(ctx context.Context, stdin string, args ...string) ([]byte, error) {
	settings := []string{"-c", "core.splitIndex=false", "-c", "index.sparse=false", "-c",
		"core.untrackedCache=false"}
	cmd := gitrun.Command(ctx, g.folder, append(settings, args...)...)
	if g.index != "" {
		cmd.Env = append(cmd.Env, "GIT_INDEX_FILE="+g.index)
	}
	cmd.Stdin = strings.NewReader(stdin)
	// git removes its lock files when it is interrupted, but not when it is killed.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return gitrun.Output(ctx, cmd)
}

// yes runs a command and reports whether its exit status is 0. Status 1 means no, and so does 128
// for commands that look up objects. Other statuses are errors.
func (g git) yes(ctx context.Context, args ...string) (bool, error) {
	_, err := g.run(ctx, "", args...)
	var failed *gitrun.Error
	if errors.As(err, &failed) &&
		(failed.ExitCode() == 1 || failed.ExitCode() == 128 && args[0] != "merge-base") {
		return false, nil
	}
	return err == nil, err
}

// network runs a command that contacts the remote.
func (g git) network(ctx context.Context, args ...string) ([]byte, error) {
	late := fmt.Errorf("the remote took more than %s", networkTime)
	ctx, cancel := context.WithTimeoutCause(ctx, networkTime, late)
	defer cancel()
	return g.run(ctx, "", args...)
}

// tips are the hashes of references, or "" for one that does not exist.
type tips struct {
	branch, notes string
	// start is the parent of the next commit: the head of the branch. If the branch does not exist
	// yet, it is the head of the clone's copy of the remote's branch or, for x-next, that of x, as
	// GitOps Promoter expects. It is "" for a branch without history.
	start string
}

// tips reads the references. It fetches those of the remote with all objects that they reach.
func (w *writing) tips(ctx context.Context) (at tips, err error) {
	names := []string{notesRef}
	for _, branch := range slices.Compact([]string{w.Name, strings.TrimSuffix(w.Name, "-next")}) {
		if names = append(names, "refs/heads/"+branch); !w.Push {
			names = append(names, "refs/remotes/"+origin+"/"+branch)
		}
	}
	var found map[string]string
	if w.Push {
		found, err = w.remote(ctx, names...)
	} else {
		var out []byte
		list := []string{"for-each-ref", "--format=%(objectname)%09%(refname)"}
		out, err = w.git.run(ctx, "", append(list, names...)...)
		found = references(out)
	}
	at = tips{branch: found[names[1]], notes: found[notesRef]}
	for _, name := range names[1:] {
		at.start = cmp.Or(at.start, found[name])
	}
	return at, err
}

// references parses lines of a hash and a name.
func references(out []byte) map[string]string {
	found := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		if id, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t"); ok && isHash(id) {
			found[name] = id
		}
	}
	return found
}

// remote reads references of the remote, and fetches all objects that they reach.
func (w *writing) remote(ctx context.Context,
	names ...string) (found map[string]string, err error) {
	for range 3 {
		out, err := w.git.network(ctx,
			append([]string{"ls-remote", "--quiet", origin}, names...)...)
		if err != nil {
			return nil, err
		}
		found = references(out)
		maps.DeleteFunc(found, func(name, _ string) bool { return !slices.Contains(names, name) })
		if here, err := w.fetch(ctx, found); err != nil || here {
			return found, err
		}
	}
	return nil, fmt.Errorf("the branch %s of %s changes faster than it can be fetched", w.Name, origin)
}

// fetch fetches the objects of references of the remote. It reports false if a reference has moved
// meanwhile.
func (w *writing) fetch(ctx context.Context, refs map[string]string) (here bool, err error) {
	if len(refs) == 0 {
		return true, nil
	}
	check := []string{"rev-list", "--objects", "--quiet", "--missing=allow-promisor"}
	args := []string{"fetch", "--quiet", "--no-tags", "--no-prune", "--no-write-fetch-head",
		"--no-auto-gc", "--recurse-submodules=no", "--refmap=", origin}
	for name, id := range refs {
		args, check = append(args, name), append(check, id)
	}
	check = append(check, "--not", "--all")
	// The check includes all objects, since an interrupted fetch may leave a commit without its
	// files.
	if here, err = w.git.yes(ctx, check...); err != nil || here {
		return here, err
	}
	if _, err := w.git.network(ctx, args...); err != nil {
		return false, err
	}
	return w.git.yes(ctx, check...)
}

// publish updates all references or none, and only if they still have the hashes that were read.
func (w *writing) publish(ctx context.Context, before tips, next change) error {
	var edits strings.Builder
	args := []string{"push", "--quiet", "--atomic", "--no-follow-tags", "--recurse-submodules=no"}
	var refspecs []string
	for _, ref := range [...]struct{ name, next, before string }{
		{"refs/heads/" + w.Name, next.branch, before.branch}, {notesRef, next.notes, before.notes},
	} {
		if ref.next != "" {
			fmt.Fprintf(&edits, "update %s %s %s\n", ref.name, ref.next,
				cmp.Or(ref.before, zeros(ref.next)))
			args = append(args, "--force-with-lease="+ref.name+":"+ref.before)
			refspecs = append(refspecs, ref.next+":"+ref.name)
		}
	}
	var err error
	switch {
	case len(refspecs) == 0:
	case w.Push:
		_, err = w.git.network(ctx, append(append(args, origin), refspecs...)...)
	default: // It takes milliseconds, so it is not interrupted.
		_, err = w.git.run(context.WithoutCancel(ctx), edits.String(), "update-ref", "-m", command,
			"--stdin")
	}
	return err
}

// zeros returns the null hash of the length of another hash.
func zeros(like string) string { return strings.Repeat("0", len(like)) }

// tree has the files of a commit by path.
type tree map[string]entry

type entry struct {
	mode, id string
	size     int64
}

func (e entry) regular() bool { return e.mode == "100644" || e.mode == "100755" }

// hasFolder reports whether a path is a folder.
func (t tree) hasFolder(name string) bool {
	for file := range t {
		if strings.HasPrefix(file, name+"/") {
			return true
		}
	}
	return false
}

// readTree returns the files of a commit. "" is an empty commit.
func (w *writing) readTree(ctx context.Context, commit string) (tree, error) {
	files := make(tree)
	if commit == "" {
		return files, nil
	}
	out, err := w.git.run(ctx, "", "ls-tree", "-r", "-l", "-z", "--full-tree", commit)
	if err != nil {
		return nil, err
	}
	for line := range strings.SplitSeq(string(out), "\x00") {
		about, name, _ := strings.Cut(line, "\t")
		if fields := strings.Fields(about); len(fields) == 4 {
			size, _ := strconv.ParseInt(fields[3], 10, 64) // "-" for a submodule
			files[name] = entry{fields[0], fields[2], size}
		}
	}
	return files, nil
}

// readJSON decodes a blob. It does not change the value if the blob is not JSON or is too large.
func (w *writing) readJSON(ctx context.Context, e entry, into any) error {
	if !e.regular() || e.size > maxMetadata {
		return nil
	}
	out, err := w.git.run(ctx, "", "cat-file", "blob", e.id)
	if err == nil && json.Valid(out) {
		_ = json.Unmarshal(out, into) // fields of another type stay empty
	}
	return err
}

// store writes blobs and returns their IDs.
func (w *writing) store(ctx context.Context, contents ...[]byte) ([]string, error) {
	var names strings.Builder
	for i, data := range contents {
		name := filepath.Join(w.scratch, fmt.Sprintf("blob-%d", i))
		if err := os.WriteFile(name, data, 0o600); err != nil {
			return nil, err
		}
		fmt.Fprintln(&names, name)
	}
	out, err := w.git.run(ctx, names.String(), "hash-object", "-w", "--no-filters", "--stdin-paths")
	ids := strings.Fields(string(out))
	if err == nil && len(ids) != len(contents) {
		err = fmt.Errorf("git hash-object answers %d IDs for %d files", len(ids), len(contents))
	}
	return ids, err
}

// commit creates a commit with edits in the format of git update-index --index-info. parent is ""
// for none.
func (w *writing) commit(ctx context.Context, parent, edits, message string, sign bool) (string, error) {
	if _, err := w.git.run(ctx, "", "read-tree", cmp.Or(parent, "--empty")); err != nil {
		return "", err
	}
	if _, err := w.git.run(ctx, edits, "update-index", "-z", "--index-info"); err != nil {
		return "", err
	}
	tree, err := w.git.run(ctx, "", "write-tree")
	if err != nil {
		return "", err
	}
	args := []string{"commit-tree", strings.TrimSpace(string(tree)), "-F", "-"}
	if parent != "" {
		args = append(args, "-p", parent)
	}
	if sign {
		args = append(args, "-S")
	}
	out, err := w.git.run(ctx, message, args...)
	return strings.TrimSpace(string(out)), err
}

// noted returns the commit that the note on a commit names, or "" without a note.
func (w *writing) noted(ctx context.Context, notes tree, commit string) (string, error) {
	var note hydratorMetadata
	for file, e := range notes {
		if strings.ReplaceAll(file, "/", "") == commit {
			err := w.readJSON(ctx, e, &note)
			return note.DrySHA, err
		}
	}
	return "", nil
}

// note adds a note to a commit and returns the commit of the notes, or "" if the note exists.
func (w *writing) note(ctx context.Context, parent string, notes tree,
	commit string) (string, error) {
	if was, err := w.noted(ctx, notes, commit); err != nil || was == w.Commit {
		return "", err
	}
	ids, err := w.store(ctx, fmt.Appendf(nil, "{\"drySha\":%q}\n", w.Commit))
	if err != nil {
		return "", err
	}
	var edits strings.Builder
	for file := range notes {
		if strings.ReplaceAll(file, "/", "") == commit {
			fmt.Fprintf(&edits, "0 %s\t%s\x00", zeros(commit), file)
		}
	}
	name := commit
	if len(notes) > 255 { // git spreads notes over folders as well, and reads both forms
		name = commit[:2] + "/" + commit[2:]
	}
	fmt.Fprintf(&edits, "100644 %s\t%s\x00", ids[0], name)
	return w.commit(ctx, parent, edits.String(), "Note by "+command+"\n", false)
}
