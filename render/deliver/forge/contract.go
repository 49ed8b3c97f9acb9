package forge

import (
	"context"
	"errors"
	"time"
)

// Forge is one repository on a server, with a credential for it. All methods may be called at
// the same time. They are bounded in time and in what they read. They wait for the limits of
// the server as long as the deadline of ctx allows, and otherwise fail with a *LimitedError.
type Forge interface {
	// MayPush reports whether a user, by login name, may push to the repository now.
	MayPush(ctx context.Context, user string) (bool, error)
	// SetStatus of a commit. The last one of a context counts. An equal one is not sent again.
	SetStatus(ctx context.Context, s Status) error
	// Comment on a pull request. This account has one comment there, which is updated in
	// place: the part of a name, such as build/team1/weather, becomes this body, and the other
	// parts stay. An empty body removes the part, and the last one the comment.
	Comment(ctx context.Context, number int, part, body string) error
	// PullRequest by its number.
	PullRequest(ctx context.Context, number int) (*PullRequest, error)
	// PullRequests from a branch of this repository, open or not, or those that are open from any
	// branch if head is empty. They are the newest first, at most 100.
	PullRequests(ctx context.Context, head string) ([]PullRequest, error)
	// Comments on a pull request, newest first, at most 100.
	Comments(ctx context.Context, number int) ([]Comment, error)
	// Propose a pull request, unless one between the same branches is open.
	Propose(ctx context.Context, p Proposal) (_ *PullRequest, opened bool, err error)
	// Commit files by the server's API, so that the server signs the commit where it does.
	// It returns the new commit. ErrMoved reports that nothing was written, because another
	// writer was faster.
	Commit(ctx context.Context, c Commit) (sha string, err error)
	// Account is the name of this account, as the Author of its pull requests; empty where the
	// server does not show it.
	Account(ctx context.Context) (string, error)
	// Wrote reports whether a commit is of this account, and signed by the server where the
	// server signs.
	Wrote(ctx context.Context, sha string) (bool, error)
}

// The errors that a caller can act upon. The error that wraps one names the server and its
// answer.
var (
	// ErrMoved: the branch has changed since the caller read it. Read it again.
	ErrMoved = errors.New("the branch has moved")
	// ErrNotFound: the server has no such thing, or does not show it to this account.
	ErrNotFound = errors.New("not found")
	// ErrRefused: a rule of the server, such as a protected branch. Do not retry.
	ErrRefused = errors.New("refused by the server")
	// ErrUnauthorized: the credential is wrong, expired or lacks a right.
	ErrUnauthorized = errors.New("the credential is not accepted")
)

// LimitedError is a request that was not sent or not answered, because the credential has
// used up what the server allows.
type LimitedError struct {
	Host string
	// Until is when the server answers again.
	Until time.Time
}

func (e *LimitedError) Error() string {
	return "the rate limit of " + e.Host + " is exhausted until " +
		e.Until.UTC().Format(time.RFC3339)
}

// State of a commit status.
type State string

// The states. Cancelled, Skipped and Error have the nearest state of a server that lacks them:
// a skipped commit passes.
const (
	Queued    State = "queued"
	Running   State = "running"
	Success   State = "success"
	Failure   State = "failure"
	Error     State = "error" // not by the fault of the commit
	Cancelled State = "cancelled"
	Skipped   State = "skipped"
)

// Done reports whether no other state follows.
func (s State) Done() bool { return s != Queued && s != Running }

// Status of a commit: a check run of a GitHub App, a commit status otherwise.
type Status struct {
	// Commit in full.
	Commit string
	// Ref of the commit, such as refs/heads/main. GitLab needs it where several branches have
	// the commit. Empty if it is not known.
	Ref string
	// Context is the stable name that branch protection can require, such as
	// armature/team1/weather.
	Context string
	State   State
	// Description is one line. It is cut at the length that the server takes.
	Description string
	// ID of one attempt, such as the name of a run. Another ID is another check run.
	ID string
	// Summary is Markdown, and Annotations are lines of files. Only check runs show them.
	Summary     string
	Annotations []Annotation
}

// Annotation of a line of a file.
type Annotation struct {
	Path    string // relative to the repository
	Line    int    // from 1
	Message string
}

// PullRequest as the server shows it now.
type PullRequest struct {
	Number int
	URL    string
	// Title and Body of the pull request.
	Title, Body string
	Author      string // login name
	// Head is the branch and Commit its commit. Fork reports that it is of another repository,
	// or of one that no longer exists.
	Head, Commit string
	Fork         bool
	Base         string
	Open, Merged bool
}

// Comment on a pull request.
type Comment struct {
	Author string // login name
	Body   string // as it was written, in Markdown
	// Edited is whether it was changed since, or the server does not say.
	Edited bool
}

// Proposal of a pull request from a branch of this repository.
type Proposal struct {
	// Head and Base are branches, without refs/heads/.
	Head, Base  string
	Title, Body string
	// Refresh the text of one that is open.
	Refresh bool
}

// Commit by the API of a server. Its author is the account of the credential.
type Commit struct {
	// Branch that gets the commit, and Head the commit that becomes the parent.
	Branch, Head string
	// Base is the branch that has Head. If it is empty, that is Branch. Otherwise Branch is
	// made from it, or, if Replaces is the commit that Branch is at, replaced.
	Base, Replaces string
	// Message with trailers.
	Message string
	// Files by their path, with their text.
	Files map[string][]byte
}

// Credential of an account. It is secret. It is sent to the API of the repository's server
// alone, over HTTPS.
type Credential struct {
	// Token or password.
	Token string
	// App of GitHub, instead of Token. Each request is sent with an installation token of
	// the one repository that has only the right that the request needs.
	App *App
	// Namespace whose part of the memory for answers is taken; empty for a command.
	Namespace string
}

// App is a GitHub App.
type App struct {
	// ID of the App, and of its installation. If Installation is 0, it is looked up.
	ID, Installation int64
	// Key is the private key, in PEM.
	Key []byte
}
