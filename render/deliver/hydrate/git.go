package hydrate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/armature-dev/armature/render/deliver/gitrun"
)

// networkTime is how long one conversation with the remote may take.
const networkTime = 5 * time.Minute

// git runs the git program in a clone.
type git struct {
	folder   string
	settings []string // in place of the user's, each after -c
	env      []string // beside the process's
}

func (b *Branch) git() git { return git{folder: b.Folder} }

// run gives what git prints. Its complaint becomes the error, without logins of URLs.
func (g git) run(ctx context.Context, stdin string, args ...string) ([]byte, error) {
	cmd := gitrun.Command(ctx, g.folder, slices.Concat(g.settings, args)...)
	cmd.Env = append(cmd.Env, g.env...)
	cmd.Stdin = strings.NewReader(stdin)
	// git removes its lock files when it is interrupted, and not when it is killed.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("git %s: %w", args[0], context.Cause(ctx))
	case errors.As(err, &exit):
		return nil, fmt.Errorf("git %s: %s: %w", args[0], withoutLogins(strings.TrimSpace(stderr.String())), err)
	case err != nil:
		return nil, gitrun.Fault(ctx, err)
	}
	return out, nil
}

// yes runs a git command whose exit status 0 means yes and 1 means no. For commands that look for
// objects, 128 means no, too.
func (g git) yes(ctx context.Context, args ...string) (bool, error) {
	_, err := g.run(ctx, "", args...)
	var exit *exec.ExitError
	if errors.As(err, &exit) && (exit.ExitCode() == 1 || exit.ExitCode() == 128 && args[0] != "merge-base") {
		return false, nil
	}
	return err == nil, err
}

// network is run for a conversation with the remote.
func (g git) network(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, networkTime, fmt.Errorf("the remote took more than %s", networkTime))
	defer cancel()
	return g.run(ctx, "", args...)
}

// withoutLogins leaves out what is before the @ of URLs in a text.
func withoutLogins(text string) string {
	words := strings.Split(text, "://")
	for i := 1; i < len(words); i++ {
		end := strings.IndexAny(words[i], "/ \n'\"")
		if end < 0 {
			end = len(words[i])
		}
		if at := strings.LastIndex(words[i][:end], "@"); at >= 0 {
			words[i] = words[i][at+1:]
		}
	}
	return strings.Join(words, "://")
}

// OriginURL gives the URL of the remote origin of a clone, without a login; "" for none.
func OriginURL(ctx context.Context, folder string) (string, error) {
	out, err := git{folder: folder}.run(ctx, "", "config", "--default=", "--get", "remote."+origin+".url")
	if err != nil {
		return "", err
	}
	return PublicURL(strings.TrimSpace(string(out)))
}

// PublicURL leaves out of a repository's URL what may be a secret. It fails where it cannot
// tell.
func PublicURL(given string) (string, error) {
	if !strings.Contains(given, "://") {
		return given, nil // git@host:path, or a folder
	}
	u, err := url.Parse(given)
	if err != nil {
		return "", errors.New("the URL of the source repository cannot be read, and may hold a login: name another with --repo or --source")
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String(), nil
}

// tips are hashes that references have; "" where one does not exist.
type tips struct {
	branch, notes string
	// start is the commit that the next one follows: the branch's. Where it does not exist yet,
	// it is the clone's copy of the remote's, or for x-next that of x, as GitOps Promoter
	// expects; "" for a branch without history.
	start string
}

// tips reads the references, of the remote with all objects behind them.
func (w *writing) tips(ctx context.Context) (at tips, err error) {
	local, remote := "refs/heads/", "refs/remotes/"+origin+"/"
	candidates := []string{local + w.Name, remote + w.Name}
	active, isNext := strings.CutSuffix(w.Name, "-next")
	if isNext {
		candidates = append(candidates, local+active, remote+active)
	}
	if w.Push {
		candidates = []string{local + w.Name}
		if isNext {
			candidates = append(candidates, local+active)
		}
	}
	for range 3 {
		var out []byte
		if w.Push {
			out, err = w.git.network(ctx, append([]string{"ls-remote", "--quiet", origin, notesRef}, candidates...)...)
		} else {
			out, err = w.git.run(ctx, "", append([]string{"for-each-ref", "--format=%(objectname)%09%(refname)", notesRef}, candidates...)...)
		}
		if err != nil {
			return at, err
		}
		found := make(map[string]string)
		for line := range strings.Lines(string(out)) {
			if id, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t"); ok && isHash(id) {
				found[name] = id
			}
		}
		at = tips{branch: found[local+w.Name], notes: found[notesRef]}
		var from string
		for _, name := range candidates {
			if at.start == "" && found[name] != "" {
				at.start, from = found[name], name
			}
		}
		if !w.Push {
			return at, nil
		}
		if here, err := w.fetch(ctx, map[string]string{from: at.start, notesRef: at.notes}); err != nil || here {
			return at, err
		}
	}
	return at, fmt.Errorf("the branch %s of %s changes faster than it can be fetched", w.Name, origin)
}

// fetch brings the objects of references of the remote, with all that they lead to. It reports
// whether they are here, which they are not where a reference has moved meanwhile.
func (w *writing) fetch(ctx context.Context, refs map[string]string) (here bool, err error) {
	check := []string{"rev-list", "--objects", "--quiet", "--missing=allow-promisor"}
	var names []string
	for name, id := range refs {
		if id != "" {
			names, check = append(names, name), append(check, id)
		}
	}
	if len(names) == 0 {
		return true, nil
	}
	check = append(check, "--not", "--all")
	// A commit alone is not enough: a fetch that was interrupted may have left it without its files.
	if here, err = w.git.yes(ctx, check...); err != nil || here {
		return here, err
	}
	args := []string{"fetch", "--quiet", "--no-tags", "--no-prune", "--no-write-fetch-head", "--no-auto-gc", "--recurse-submodules=no", "--refmap=", origin}
	if _, err := w.git.network(ctx, append(args, names...)...); err != nil {
		return false, err
	}
	return w.git.yes(ctx, check...)
}

// publish moves all references or none, and only from the hashes that they were read with.
func (w *writing) publish(ctx context.Context, before tips, next change) error {
	var edits strings.Builder
	args, refspecs := []string{"push", "--quiet", "--atomic", "--no-follow-tags", "--recurse-submodules=no"}, []string{}
	for _, ref := range [...]struct{ name, next, before string }{{"refs/heads/" + w.Name, next.branch, before.branch}, {notesRef, next.notes, before.notes}} {
		if ref.next != "" {
			fmt.Fprintf(&edits, "update %s %s %s\n", ref.name, ref.next, cmp.Or(ref.before, zeros(ref.next)))
			args = append(args, "--force-with-lease="+ref.name+":"+ref.before)
			refspecs = append(refspecs, ref.next+":"+ref.name)
		}
	}
	if len(refspecs) == 0 {
		return nil
	}
	var err error
	if w.Push {
		_, err = w.git.network(ctx, append(append(args, origin), refspecs...)...)
	} else { // It takes milliseconds, and ends as one.
		_, err = w.git.run(context.WithoutCancel(ctx), edits.String(), "update-ref", "-m", command, "--stdin")
	}
	return err
}

// zeros returns the null hash of the length of another hash.
func zeros(like string) string { return strings.Repeat("0", len(like)) }

// tree is the files of a commit, by path.
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

// readTree lists a commit; "" is empty.
func (w *writing) readTree(ctx context.Context, commit string) (tree, error) {
	files := make(tree)
	if commit == "" {
		return files, nil
	}
	out, err := w.git.run(ctx, "", "ls-tree", "-r", "-l", "-z", "--full-tree", commit)
	if err != nil {
		return nil, err
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		about, name, ok := strings.Cut(line, "\t")
		fields := strings.Fields(about)
		if !ok || len(fields) != 4 {
			continue // of an empty tree
		}
		size, _ := strconv.ParseInt(fields[3], 10, 64) // "-" for a submodule
		files[name] = entry{fields[0], fields[2], size}
	}
	return files, nil
}

// metadataOf reads a hydrator.metadata. It is empty where the file is something else.
func (w *writing) metadataOf(ctx context.Context, e entry) (m hydratorMetadata, err error) {
	err = w.readJSON(ctx, e, &m)
	return m, err
}

// readJSON reads a blob into a value, which it leaves alone where the blob is something else.
func (w *writing) readJSON(ctx context.Context, e entry, into any) error {
	if !e.regular() || e.size > maxMetadata {
		return nil
	}
	out, err := w.git.run(ctx, "", "cat-file", "blob", e.id)
	if err != nil {
		return err
	}
	if json.Valid(out) {
		_ = json.Unmarshal(out, into) // of another shape: fields that do not fit stay empty
	}
	return nil
}

// edit gives the tree of a commit after edits in the form of git update-index --index-info.
func (w *writing) edit(ctx context.Context, commit, edits string) (string, error) {
	index := filepath.Join(w.scratch, "index")
	if err := os.Remove(index); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	g := git{folder: w.Folder, env: []string{"GIT_INDEX_FILE=" + index},
		settings: []string{"-c", "core.splitIndex=false", "-c", "index.sparse=false", "-c", "core.untrackedCache=false"}}
	steps := []struct {
		stdin string
		args  []string
	}{{"", []string{"read-tree", commit}}, {edits, []string{"update-index", "-z", "--index-info"}}, {"", []string{"write-tree"}}}
	if commit == "" {
		steps = steps[1:]
	}
	var out []byte
	for _, s := range steps {
		var err error
		if out, err = g.run(ctx, s.stdin, s.args...); err != nil {
			return "", err
		}
	}
	return strings.TrimSpace(string(out)), nil
}

// commit writes a commit that follows another one, "" for none.
func (w *writing) commit(ctx context.Context, tree, parent, message string, sign bool) (string, error) {
	args := []string{"commit-tree", tree, "-F", "-"}
	if parent != "" {
		args = append(args, "-p", parent)
	}
	if sign {
		args = append(args, "-S")
	}
	out, err := w.git.run(ctx, message, args...)
	return strings.TrimSpace(string(out)), err
}

// noted gives the commit that a note on a commit names, "" without one.
func (w *writing) noted(ctx context.Context, notes tree, commit string) (string, error) {
	for file, e := range notes {
		if strings.ReplaceAll(file, "/", "") == commit {
			var note noteContent
			err := w.readJSON(ctx, e, &note)
			return note.DrySHA, err
		}
	}
	return "", nil
}

// note gives the commit of the notes with one on a commit, "" where it is there.
func (w *writing) note(ctx context.Context, parent string, notes tree, commit string) (string, error) {
	if was, err := w.noted(ctx, notes, commit); err != nil || was == w.Commit {
		return "", err
	}
	text, err := json.Marshal(noteContent{w.Commit})
	if err != nil {
		return "", err
	}
	ids, err := w.store(ctx, [][]byte{append(text, '\n')})
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
	if len(notes) > 255 { // as git spreads them, which reads both
		name = commit[:2] + "/" + commit[2:]
	}
	fmt.Fprintf(&edits, "100644 %s\t%s\x00", ids[0], name)
	tree, err := w.edit(ctx, parent, edits.String())
	if err != nil {
		return "", err
	}
	return w.commit(ctx, tree, parent, "Note by "+command+"\n", false)
}
