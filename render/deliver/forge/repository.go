package forge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/armature-dev/armature/functions/text"
)

// repository is the Forge of all kinds of servers. It validates the parts of addresses and queries,
// and implements the parts that do not depend on the kind.
type repository struct {
	server
	kind       string
	maxComment int // bytes
}

// server has the methods that differ between the kinds of servers. The exported ones are those of
// Forge.
type server interface {
	MayPush(ctx context.Context, user string) (bool, error)
	SetStatus(ctx context.Context, s Status) error
	PullRequest(ctx context.Context, number int) (*PullRequest, error)
	PullRequests(ctx context.Context, head string) ([]PullRequest, error)
	Wrote(ctx context.Context, sha string) (bool, error)

	// me returns the account of the credential. id is 0 if the server does not report it.
	me(ctx context.Context) (id int64, login string, err error)
	// propose creates a pull request if number is 0, and changes its text otherwise.
	propose(ctx context.Context, number int, p Proposal) (*PullRequest, error)
	// comments lists a page of comments, from 1. next is the next page, or 0. last is the last page
	// if the first one has the oldest comments, or 0.
	comments(ctx context.Context, number, page int) (found []comment, next, last int, err error)
	// putComment creates a comment if id is 0, deletes it if body is empty, and edits it otherwise.
	putComment(ctx context.Context, number int, id int64, body string) error
	// tip returns the commit that a branch is at, or ErrNotFound.
	tip(ctx context.Context, branch string) (string, error)
	commit(ctx context.Context, c Commit) (sha string, err error)
}

// comment is a comment as a server lists it.
type comment struct {
	Comment
	id, author int64
	bot        bool
}

const (
	mostIncoming = 100 // pull requests or comments in a result
	maxPages     = 40  // pages that are read of any list
)

var (
	fullCommit = text.Pattern(`^([0-9a-f]{40}|[0-9a-f]{64})$`)
	userName   = text.Pattern(`^[A-Za-z0-9][A-Za-z0-9:._-]{0,127}(\[bot\])?$`)
	markerForm = text.Pattern(`^[A-Za-z0-9/._:-]{1,200}$`)
)

// By reports whether a pull request was opened by an account, as Account names it.
func (p PullRequest) By(account string) bool {
	return account != "" && strings.EqualFold(p.Author, account)
}

// MayPush reports false for a user that the server does not know.
func (r repository) MayPush(ctx context.Context, user string) (bool, error) {
	if !userName().MatchString(user) {
		return false, nil
	}
	may, err := r.server.MayPush(ctx, user)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return may, err
}

// SetStatus requires the full hash of the commit.
func (r repository) SetStatus(ctx context.Context, s Status) error {
	if !fullCommit().MatchString(s.Commit) {
		return fmt.Errorf("%q is not a commit in full", s.Commit)
	}
	return r.server.SetStatus(ctx, s)
}

// Propose looks for an open pull request, and creates or updates it.
func (r repository) Propose(ctx context.Context, p Proposal) (*PullRequest, bool, error) {
	find := func() (*PullRequest, error) {
		all, err := r.PullRequests(ctx, p.Head)
		for _, one := range all {
			if one.Open && one.Base == p.Base && !one.Fork {
				return &one, nil
			}
		}
		return nil, err
	}
	open, err := find()
	if err != nil {
		return nil, false, fmt.Errorf("looking for an open pull request: %w", err)
	}
	if open == nil {
		made, failed := r.propose(ctx, 0, p)
		if failed == nil {
			return made, true, nil
		}
		// It may exist now: another writer was faster, or an answer was lost.
		if open, err = find(); err != nil || open == nil {
			return nil, false, fmt.Errorf("opening a pull request: %w", failed)
		}
	}
	if !p.Refresh ||
		open.Title == p.Title && strings.TrimSpace(open.Body) == strings.TrimSpace(p.Body) {
		return open, false, nil
	}
	if _, err := r.propose(ctx, open.Number, p); err != nil {
		return nil, false, fmt.Errorf("changing the text of the pull request: %w", err)
	}
	return open, false, nil
}

// Comments reads the last two pages if the first page has the oldest comments.
func (r repository) Comments(ctx context.Context, number int) (out []Comment, err error) {
	all, _, last, err := r.comments(ctx, number, 1)
	for page := max(2, last-1); err == nil && page <= last; page++ {
		var more []comment
		if more, _, _, err = r.comments(ctx, number, page); page == last-1 {
			all = nil // the first page is older
		}
		all = append(all, more...)
	}
	if r.kind != GitLab { // GitLab lists the newest first
		slices.Reverse(all)
	}
	for _, c := range all[:min(len(all), mostIncoming)] {
		out = append(out, c.Comment)
	}
	return out, err
}

func isEdited(created, updated time.Time) bool {
	return created.IsZero() || !created.Equal(updated)
}

// maxParts bounds the parts of a comment, so that each has room for some bytes.
const maxParts = 200

// Comment updates a part of the one comment of this account. Other parts stay, unless there are
// maxParts of them.
func (r repository) Comment(ctx context.Context, number int, part, body string) error {
	if !markerForm().MatchString(part) {
		return fmt.Errorf("%q cannot mark a comment", part)
	}
	const first, prefix, suffix = "<!-- armature -->", "<!-- armature: ", " -->"
	id, login, err := r.me(ctx)
	if err != nil {
		return err
	}
	mine := func(c comment) bool {
		return c.author == id && (id != 0 || isMe(c.Author, c.bot, login))
	}
	var own []comment
	seen := make(map[int64]bool) // a server may return the same page for each number
	for page, count := 1, 0; page > 0 && page <= maxPages; count = len(seen) {
		found, next, _, err := r.comments(ctx, number, page)
		if err != nil {
			return fmt.Errorf("listing the comments: %w", err)
		}
		for _, f := range found {
			f.Body = strings.ReplaceAll(f.Body, "\r", "")
			if !seen[f.id] && mine(f) && strings.HasPrefix(f.Body, first+"\n") {
				own = append(own, f)
			}
			seen[f.id] = true
		}
		if page = next; len(seen) == count {
			break
		}
	}

	parts := make(map[string]string)
	if len(own) > 0 { // the server, or who may edit the comment, decides what it has
		old := own[0].Body[:min(len(own[0].Body), r.maxComment)]
		at, start, end := "", 0, 0
		for text := range strings.Lines(old) {
			end += len(text)
			if name, ok := strings.CutPrefix(strings.TrimSpace(text), prefix); ok {
				at, start = strings.TrimSuffix(name, suffix), end
			} else if markerForm().MatchString(at) {
				parts[at] = old[start:end]
			}
		}
	}
	if len(parts) >= maxParts {
		clear(parts)
	}
	// The body of a part must not contain the beginning of another one.
	parts[part] = strings.ReplaceAll(body, prefix, prefix[:len(prefix)-2]+"; ")
	want := first + "\n"
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		if part := strings.TrimSpace(parts[name]); part != "" {
			want += fmt.Sprintf("\n%s%s%s\n\n%s\n", prefix, name, suffix,
				text.Cut(part, r.maxComment/len(parts)-len(prefix)-250))
		}
	}

	if want == first+"\n" {
		want = "" // a comment without parts is deleted
	} else if len(own) == 0 {
		own = append(own, comment{}) // a new comment has no ID yet
	}
	for i, c := range own {
		if i > 0 {
			want = "" // two writers may both have added a comment
		} else if c.id != 0 && want != "" && strings.TrimSpace(c.Body) == strings.TrimSpace(want) {
			continue
		}
		if err := r.putComment(ctx, number, c.id, want); err != nil {
			return fmt.Errorf("writing the comment: %w", err)
		}
	}
	return nil
}

// Account returns the login name of the credential's account.
func (r repository) Account(ctx context.Context) (string, error) {
	_, login, err := r.me(ctx)
	return login, err
}

// isMe reports whether a user is the account of a login name.
func isMe(user string, bot bool, login string) bool {
	return strings.EqualFold(user, login) || bot && strings.EqualFold(user, login+"[bot]")
}

// Commit compares the heads of the branches before it commits, since only GitHub compares them
// itself, and after a refusal, which may have that reason.
func (r repository) Commit(ctx context.Context, c Commit) (sha string, err error) {
	was := c.Head
	if c.Base != "" {
		was = c.Replaces
	}
	at := func(branch, commit string) error {
		now, err := r.tip(ctx, branch)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		} else if now != commit {
			return fmt.Errorf("%w: %s is at %.12s", ErrMoved, branch, now)
		}
		return nil
	}
	if r.kind != GitHub {
		if err := at(c.Branch, was); err != nil {
			return "", err
		}
	}
	sha, err = r.commit(ctx, c)
	if errors.Is(err, ErrRefused) || errors.Is(err, ErrNotFound) {
		if r.kind == GitHub && c.Replaces == "" {
			was = c.Head // hub.commit creates the branch first
		}
		if moved := at(c.Branch, was); errors.Is(moved, ErrMoved) {
			return "", fmt.Errorf("%w: %w", moved, err)
		}
	}
	return sha, err
}

// line returns a text on one line, cut to a number of bytes.
func line(content string, most int) string {
	return text.Cut(strings.Join(strings.Fields(content), " "), most)
}
