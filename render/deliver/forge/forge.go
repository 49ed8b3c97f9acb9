// Package forge asks the servers that host Git repositories, such as GitHub, GitLab and
// Gitea, for what Git has no words for: who may push, commit statuses, comments, pull
// requests, and commits that the server itself signs. It is the only place that knows how
// these servers differ.
package forge

import (
	"context"
	"errors"
	"time"
)

// Forge is one repository on a server, with a credential for it. All of its methods may be
// called at the same time. They are bounded in time and in what they read, they wait for
// the limits of the server within the deadline of ctx, and they fail with one of the errors
// below where a caller can act upon it.
type Forge interface {
	// MayPush reports whether a user, by login name, may push to the repository now.
	MayPush(ctx context.Context, user string) (bool, error)
	// SetStatus of a commit. The last one of a context counts; one that is the same is not
	// sent again.
	SetStatus(ctx context.Context, s Status) error
	// Comment on a pull request, in place of the one of the same marker that the account of
	// the credential wrote. An empty body changes the comment to nothing if there is none,
	// and otherwise removes it.
	Comment(ctx context.Context, number int, marker, body string) error
	// PullRequest by its number.
	PullRequest(ctx context.Context, number int) (*PullRequest, error)
	// PullRequests from a branch of this repository, open or not, newest first, at most 100.
	PullRequests(ctx context.Context, head string) ([]PullRequest, error)
	// Propose a pull request. One from the same branch to the same base that is open is
	// brought up to date instead.
	Propose(ctx context.Context, p Proposal) (*PullRequest, error)
	// Commit files by the server's API, so that the server signs where it does. It gives the
	// new commit, and ErrMoved if Head is not the branch's any longer.
	Commit(ctx context.Context, c Commit) (sha string, err error)
}

// The errors that a caller can act upon; the text of the error that wraps one names the
// server and what it answered.
var (
	// ErrMoved: the branch has another commit than the caller has seen. Read it again.
	ErrMoved = errors.New("the branch has moved")
	// ErrNotFound: the server has no such thing, or does not show it to this account.
	ErrNotFound = errors.New("not found")
	// ErrRefused: a rule of the server, such as a protected branch. Trying again does not help.
	ErrRefused = errors.New("refused by the server")
	// ErrUnauthorized: the credential is wrong, expired or has not the rights.
	ErrUnauthorized = errors.New("the credential is not accepted")
	// ErrUnsupported: this kind of server cannot do that.
	ErrUnsupported = errors.New("the server does not support this")
)

// State of a commit status.
type State string

// The states. Skipped counts as passing where the server knows it, and is Success elsewhere.
const (
	Pending   State = "pending"
	Running   State = "running"
	Success   State = "success"
	Failure   State = "failure"
	Error     State = "error" // not by the fault of the commit
	Cancelled State = "cancelled"
	Skipped   State = "skipped"
)

// Status of a commit: a check run on GitHub for an App, a commit status elsewhere.
type Status struct {
	// Commit in full.
	Commit string
	// Context is the stable name that branch protection may demand, such as
	// armature/team1/weather.
	Context string
	State   State
	// Description is one line; it is cut at what the server takes.
	Description string
	// URL of details; empty for none.
	URL string
	// ID is of one attempt, such as the name of a run: a second attempt is another check run.
	ID string
	// Summary is Markdown, and Annotations are lines of files. Only check runs show them.
	Summary     string
	Annotations []Annotation
	// Started and Completed are zero where they are not known.
	Started, Completed time.Time
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
	Title  string
	Author string // login name
	// Head is the branch and Commit its commit; Fork is whether it is of another repository.
	Head, Commit string
	Fork         bool
	Base         string
	Open, Merged bool
	Labels       []string
}

// Proposal of a pull request from a branch of this repository.
type Proposal struct {
	Head, Base  string
	Title, Body string
	Labels      []string
}

// Commit by the API.
type Commit struct {
	// Branch that gets the commit; without one of that name it is made at Head.
	Branch string
	// Head is the commit that the branch must have, which becomes the parent.
	Head string
	// Message with trailers.
	Message string
	// Files by their path; nil deletes one.
	Files map[string][]byte
	// Author's name and address where the server takes them; empty is the account's.
	AuthorName, AuthorEmail string
}

// Credential of an account. It is a secret, and is sent to the repository's server alone,
// over HTTPS.
type Credential struct {
	// Token, or password with User.
	Token string
	// User of the token, where the server asks for one.
	User string
	// App of GitHub, instead of Token: an installation token of the one repository with the
	// rights that are needed is made from it.
	App *App
}

// App is a GitHub App.
type App struct {
	ID, Installation int64  // the installation is looked up where it is 0
	Key              []byte // PEM
}
