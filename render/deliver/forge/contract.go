package forge

import (
	"context"
	"errors"
	"time"
)

// Forge is one repository on a server, with a credential for it. Its methods may be called
// concurrently. They are bounded in time and in the size of answers. They wait for the rate limits
// of the server as long as the deadline of ctx allows, and otherwise fail with a *LimitedError.
type Forge interface {
	// MayPush reports whether a user, by login name, may push to the repository now.
	MayPush(ctx context.Context, user string) (bool, error)
	// SetStatus sets the status of a commit. The last one of a context counts. It does not send an
	// equal status again.
	SetStatus(ctx context.Context, s Status) error
	// Comment updates the comment of this account on a pull request. The part of the given name,
	// such as build/team1/weather, becomes this body, and other parts stay. An empty body removes
	// the part, and the comment with its last part.
	Comment(ctx context.Context, number int, part, body string) error
	// PullRequest returns a pull request by its number.
	PullRequest(ctx context.Context, number int) (*PullRequest, error)
	// PullRequests returns the pull requests from a branch of this repository, open or not. If head
	// is empty, it returns the open ones from any branch. It returns at most 100, the newest first.
	PullRequests(ctx context.Context, head string) ([]PullRequest, error)
	// Comments returns at most 100 comments on a pull request, the newest first.
	Comments(ctx context.Context, number int) ([]Comment, error)
	// Propose opens a pull request, unless one between the same branches is open.
	Propose(ctx context.Context, p Proposal) (_ *PullRequest, opened bool, err error)
	// Commit commits files through the server's API, so that the server can sign the commit, and
	// returns the new commit. ErrMoved reports that nothing was written, because another writer was
	// faster.
	Commit(ctx context.Context, c Commit) (sha string, err error)
	// Account returns the name of this account, as in the Author of its pull requests, or "" if the
	// server does not report it.
	Account(ctx context.Context) (string, error)
	// Wrote reports whether a commit is of this account and, if the server signs commits, signed by
	// the server.
	Wrote(ctx context.Context, sha string) (bool, error)
}

// These are the errors that a caller can act upon. The error that wraps one names the server and
// its answer.
var (
	// ErrMoved reports that the branch has changed since the caller read it. Read it again.
	ErrMoved = errors.New("the branch has moved")
	// ErrNotFound reports that the server does not have the object, or hides it from this account.
	ErrNotFound = errors.New("not found")
	// ErrRefused reports a rule of the server, such as a protected branch. Do not retry.
	ErrRefused = errors.New("refused by the server")
	// ErrUnauthorized reports that the credential is wrong, expired or lacks a right.
	ErrUnauthorized = errors.New("the credential is not accepted")
)

// LimitedError reports a request that was not sent or not answered, because the credential has
// exhausted the rate limit of the server.
type LimitedError struct {
	Host string
	// Until is when the limit ends.
	Until time.Time
}

func (e *LimitedError) Error() string {
	return "the rate limit of " + e.Host + " is exhausted until " +
		e.Until.UTC().Format(time.RFC3339)
}

// State is the state of a commit status.
type State string

// These are the states. A server that lacks Cancelled, Skipped or Error gets its nearest state: a
// skipped commit passes.
const (
	Queued    State = "queued"
	Running   State = "running"
	Success   State = "success"
	Failure   State = "failure"
	Error     State = "error" // the commit is not the cause
	Cancelled State = "cancelled"
	Skipped   State = "skipped"
)

// Done reports whether no other state follows.
func (s State) Done() bool { return s != Queued && s != Running }

// Status is the status of a commit: a check run of a GitHub App, or a commit status otherwise.
type Status struct {
	// Commit is the full hash of the commit.
	Commit string
	// Ref of the commit, such as refs/heads/main, or empty if it is not known. GitLab needs it if
	// several branches have the commit.
	Ref string
	// Context is the stable name that branch protection can require, such as
	// armature/team1/weather.
	Context string
	State   State
	// Description is one line. It is cut to the length that the server accepts.
	Description string
	// ID identifies an attempt, such as the name of a run. Another ID is another check run.
	ID string
	// Summary is Markdown, and Annotations are lines of files. Only check runs show them.
	Summary     string
	Annotations []Annotation
}

// Annotation is an annotation of a line of a file.
type Annotation struct {
	Path    string // relative to the repository
	Line    int    // from 1
	Message string
}

// PullRequest is the current state of a pull request.
type PullRequest struct {
	Number      int
	URL         string
	Title, Body string
	Author      string // login name
	// Head is the branch and Commit its commit. Fork reports that the branch is of another
	// repository, or of one that no longer exists.
	Head, Commit string
	Fork         bool
	Base         string
	Open, Merged bool
}

// Comment is a comment on a pull request.
type Comment struct {
	Author string // login name
	Body   string // Markdown source
	// Edited reports that the comment was edited, or that the server does not report edits.
	Edited bool
}

// Proposal describes a pull request from a branch of this repository.
type Proposal struct {
	// Head and Base are branches, without refs/heads/.
	Head, Base  string
	Title, Body string
	// Refresh updates the text of a pull request that is open already.
	Refresh bool
}

// Commit describes a commit that the API of a server creates. Its author is the account of the
// credential.
type Commit struct {
	// Branch gets the commit, and Head is the parent commit.
	Branch, Head string
	// Base is the branch that has Head. Empty means Branch. Otherwise Branch is created from Base
	// or, if Replaces is the commit that Branch is at, replaced.
	Base, Replaces string
	// Message with trailers.
	Message string
	// Files are the contents of files by path.
	Files map[string][]byte
}

// Credential is the secret credential of an account. It is sent only to the API of the repository's
// server, over HTTPS.
type Credential struct {
	// Token or password.
	Token string
	// App is a GitHub App instead of Token. Each request has an installation token for only this
	// repository and only the right that the request needs.
	App *App
	// Namespace is charged for the memory of answers. It is empty for a command.
	Namespace string
}

// App is a GitHub App.
type App struct {
	// ID is that of the App, and Installation that of its installation. 0 looks it up.
	ID, Installation int64
	// Key is the private key, in PEM.
	Key []byte
}
