package forge

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"code.gitea.io/sdk/gitea"
)

// tea is a repository on Gitea or Forgejo.
type tea struct{ remote }

func openGitea(at remote) (server, error) { return &tea{at}, nil }

// client returns a client whose requests all have the given context.
func (t *tea) client(ctx context.Context) *gitea.Client {
	client, err := gitea.NewClient(t.api.String(), gitea.SetContext(ctx), gitea.SetGiteaVersion(""),
		gitea.SetHTTPClient(&http.Client{Transport: t.transport}), gitea.SetUserAgent("armature"),
		gitea.SetToken(t.login.Token))
	if err != nil {
		panic(err) // it fails only for the version, which is not queried
	}
	return client
}

// MayPush requests the permission of a user, for which the account must administer the repository.
func (t *tea) MayPush(ctx context.Context, user string) (bool, error) {
	level, _, err := t.client(ctx).CollaboratorPermission(t.owner, t.name, user)
	if err != nil {
		return false, err
	}
	push := []gitea.AccessMode{gitea.AccessModeWrite, gitea.AccessModeAdmin, gitea.AccessModeOwner}
	return slices.Contains(push, level.Permission), nil
}

// SetStatus sets the commit status, unless it is equal.
func (t *tea) SetStatus(ctx context.Context, s Status) error {
	client := t.client(ctx)
	state := cmp.Or(map[State]gitea.StatusState{
		Queued: gitea.StatusPending, Running: gitea.StatusPending, Success: gitea.StatusSuccess,
		Skipped: gitea.StatusSuccess, Failure: gitea.StatusFailure,
	}[s.State], gitea.StatusError)
	want := gitea.CreateStatusOption{
		State: state, Description: line(s.Description, 255), Context: s.Context,
	}
	all, _, err := client.GetCombinedStatus(t.owner, t.name, s.Commit)
	if err != nil {
		return err
	}
	for _, is := range all.Statuses {
		if is.Context == want.Context && is.State == state && is.Description == want.Description {
			return nil
		}
	}
	_, _, err = client.CreateStatus(t.owner, t.name, s.Commit, want)
	return err
}

func (t *tea) me(ctx context.Context) (int64, string, error) {
	me, _, err := t.client(ctx).GetMyUserInfo()
	if err != nil {
		return 0, "", fmt.Errorf("looking up the account of the credential: %w", err)
	}
	return me.ID, me.UserName, nil
}

// comments omits the author of a comment that was migrated from another server, because the server
// reports the account that migrated it.
func (t *tea) comments(ctx context.Context,
	number, page int) (found []comment, next, last int, err error) {
	options := gitea.ListIssueCommentOptions{ListOptions: gitea.ListOptions{Page: page, PageSize: 50}}
	all, _, err := t.client(ctx).ListIssueComments(t.owner, t.name, int64(number), options)
	for _, c := range all {
		one := comment{Comment: Comment{Body: c.Body, Edited: isEdited(c.Created, c.Updated)}, id: c.ID}
		if c.Poster != nil {
			one.author = c.Poster.ID
			if c.OriginalAuthor == "" && c.OriginalAuthorID == 0 {
				one.Author = c.Poster.UserName
			}
		}
		found = append(found, one)
	}
	return found, page + 1, 0, err
}

func (t *tea) putComment(ctx context.Context, number int, id int64, body string) (err error) {
	client, text := t.client(ctx), gitea.CreateIssueCommentOption{Body: body}
	switch {
	case id == 0:
		_, _, err = client.CreateIssueComment(t.owner, t.name, int64(number), text)
	case body == "":
		_, err = client.DeleteIssueComment(t.owner, t.name, id)
	default:
		_, _, err = client.EditIssueComment(t.owner, t.name, id,
			gitea.EditIssueCommentOption{Body: body})
	}
	return err
}

func (t *tea) pull(p *gitea.PullRequest, err error) (*PullRequest, error) {
	if err != nil {
		return nil, err
	}
	out := &PullRequest{
		Number: int(p.Index), URL: p.HTMLURL, Title: p.Title, Body: p.Body,
		Fork: true, Open: p.State == gitea.StateOpen, Merged: p.HasMerged,
	}
	if p.Poster != nil {
		out.Author = p.Poster.UserName
	}
	if p.Head != nil && p.Base != nil {
		out.Head, out.Commit, out.Base = p.Head.Ref, p.Head.Sha, p.Base.Ref
		out.Fork = p.Head.RepoID != p.Base.RepoID
	}
	return out, nil
}

// PullRequest returns a pull request by its number.
func (t *tea) PullRequest(ctx context.Context, number int) (*PullRequest, error) {
	p, _, err := t.client(ctx).GetPullRequest(t.owner, t.name, int64(number))
	return t.pull(p, err)
}

// PullRequests filters pages itself, since Gitea has no query for the pull requests from a branch.
func (t *tea) PullRequests(ctx context.Context, head string) (out []PullRequest, err error) {
	options := gitea.ListPullRequestsOptions{State: gitea.StateOpen}
	if head != "" {
		options.State, options.Sort = gitea.StateAll, "recentupdate"
	}
	client := t.client(ctx)
	for page := 1; page <= maxPages && len(out) < mostIncoming; page++ {
		options.ListOptions = gitea.ListOptions{Page: page, PageSize: 50}
		all, _, err := client.ListRepoPullRequests(t.owner, t.name, options)
		if err != nil {
			return nil, err
		}
		for _, p := range all {
			if found, _ := t.pull(p, nil); head == "" || found.Head == head && !found.Fork {
				out = append(out, *found)
			}
		}
		if len(all) == 0 || len(all) < 50 && head == "" {
			break
		}
	}
	slices.SortFunc(out, func(a, b PullRequest) int { return b.Number - a.Number })
	return out[:min(len(out), mostIncoming)], nil
}

func (t *tea) propose(ctx context.Context, number int, p Proposal) (*PullRequest, error) {
	if number != 0 {
		text := gitea.EditPullRequestOption{Title: p.Title, Body: &p.Body}
		made, _, err := t.client(ctx).EditPullRequest(t.owner, t.name, int64(number), text)
		return t.pull(made, err)
	}
	want := gitea.CreatePullRequestOption{Head: p.Head, Base: p.Base, Title: p.Title, Body: p.Body}
	made, _, err := t.client(ctx).CreatePullRequest(t.owner, t.name, want)
	return t.pull(made, err)
}

func (t *tea) tip(ctx context.Context, branch string) (string, error) {
	b, _, err := t.client(ctx).GetRepoBranch(t.owner, t.name, branch)
	if err != nil {
		return "", err
	}
	return b.Commit.ID, nil
}

// commit calls the contents API. The server compares the blob of each file with the expected one.
func (t *tea) commit(ctx context.Context, c Commit) (string, error) {
	client := t.client(ctx)
	want := gitea.ChangeFilesOptions{Message: c.Message, Branch: c.Branch}
	if c.Base != "" {
		want.Branch, want.NewBranch, want.ForcePush = c.Base, c.Branch, c.Replaces != ""
		if now, err := t.tip(ctx, c.Base); err != nil {
			return "", err
		} else if now != c.Head {
			return "", fmt.Errorf("%w: %s is at %.12s", ErrMoved, c.Base, now)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Files)) {
		text := base64.StdEncoding.EncodeToString(c.Files[name])
		change := &gitea.ChangeFileOperation{Operation: "update", Path: name, Content: text}
		file, _, err := client.GetContents(t.owner, t.name, c.Head, name)
		switch {
		case errors.Is(err, ErrNotFound):
			change.Operation = "create"
		case err != nil:
			return "", err
		default:
			change.SHA = file.SHA
		}
		want.Files = append(want.Files, change)
	}
	made, _, err := client.ChangeFiles(t.owner, t.name, want)
	if err != nil {
		return "", err
	}
	if made.Commit == nil {
		return "", errors.New("the answer has no commit")
	}
	return made.Commit.SHA, nil
}

// Wrote compares the author, since Gitea signs only if its administrator has configured that.
func (t *tea) Wrote(ctx context.Context, sha string) (bool, error) {
	_, login, err := t.me(ctx)
	if err != nil {
		return false, err
	}
	c, _, err := t.client(ctx).GetSingleCommit(t.owner, t.name, sha)
	if err != nil {
		return false, err
	}
	return c.Author != nil && strings.EqualFold(c.Author.UserName, login), nil
}
