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

func openGitea(at remote) (Forge, error) { return &tea{at}, nil }

// client of the server, whose requests all have one context.
func (t *tea) client(ctx context.Context) *gitea.Client {
	options := []gitea.ClientOption{gitea.SetContext(ctx), gitea.SetHTTPClient(&http.Client{Transport: t.transport}), gitea.SetGiteaVersion(""), gitea.SetUserAgent("armature"), gitea.SetToken(t.login.Token)}
	client, err := gitea.NewClient(t.api.String(), options...)
	if err != nil {
		panic(err) // of the version alone, which is not queried for
	}
	return client
}

// MayPush asks for the permission of a user, which an administrator of the repository may.
func (t *tea) MayPush(ctx context.Context, user string) (bool, error) {
	if !userName().MatchString(user) {
		return false, nil
	}
	level, _, err := t.client(ctx).CollaboratorPermission(t.owner, t.name, user)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	return slices.Contains([]gitea.AccessMode{gitea.AccessModeWrite, gitea.AccessModeAdmin, gitea.AccessModeOwner}, level.Permission), nil
}

// SetStatus of a commit.
func (t *tea) SetStatus(ctx context.Context, s Status) error {
	if !fullCommit.MatchString(s.Commit) {
		return fmt.Errorf("%q is not a commit in full", s.Commit)
	}
	client := t.client(ctx)
	state := cmp.Or(map[State]gitea.StatusState{Queued: gitea.StatusPending, Running: gitea.StatusPending, Success: gitea.StatusSuccess, Skipped: gitea.StatusSuccess, Failure: gitea.StatusFailure}[s.State], gitea.StatusError)
	want := gitea.CreateStatusOption{State: state, TargetURL: s.URL, Description: line(s.Description, 255), Context: s.Context}
	all, _, err := client.GetCombinedStatus(t.owner, t.name, s.Commit)
	if err != nil {
		return err
	}
	for _, is := range all.Statuses {
		if is.Context == s.Context && is.State == state && is.Description == want.Description && is.TargetURL == s.URL {
			return nil
		}
	}
	_, _, err = client.CreateStatus(t.owner, t.name, s.Commit, want)
	return err
}

// Comment updates the comment in place.
func (t *tea) Comment(ctx context.Context, number int, part, body string) error {
	client := t.client(ctx)
	me, _, err := client.GetMyUserInfo()
	if err != nil {
		return fmt.Errorf("looking up the account of the credential: %w", err)
	}
	return comments{
		most: 65_000,
		list: func(page int) (found []comment, more bool, err error) {
			all, _, err := client.ListIssueComments(t.owner, t.name, int64(number), gitea.ListIssueCommentOptions{ListOptions: gitea.ListOptions{Page: page, PageSize: 50}})
			if err != nil {
				return nil, false, err
			}
			for _, c := range all {
				found = append(found, comment{id: c.ID, mine: c.Poster != nil && c.Poster.ID == me.ID, body: c.Body})
			}
			return found, len(all) > 0, nil
		},
		add: func(body string) error {
			_, _, err := client.CreateIssueComment(t.owner, t.name, int64(number), gitea.CreateIssueCommentOption{Body: body})
			return err
		},
		edit: func(c comment, body string) error {
			_, _, err := client.EditIssueComment(t.owner, t.name, c.id, gitea.EditIssueCommentOption{Body: body})
			return err
		},
		remove: func(c comment) error {
			_, err := client.DeleteIssueComment(t.owner, t.name, c.id)
			return err
		},
	}.put(part, body)
}

func (t *tea) pull(p *gitea.PullRequest) *PullRequest {
	out := &PullRequest{Number: int(p.Index), URL: p.HTMLURL, Title: p.Title, Body: p.Body, Fork: true, Open: p.State == gitea.StateOpen, Merged: p.HasMerged}
	if p.Poster != nil {
		out.Author = p.Poster.UserName
	}
	if p.Head != nil && p.Base != nil {
		out.Head, out.Commit, out.Base, out.Fork = p.Head.Ref, p.Head.Sha, p.Base.Ref, p.Head.RepoID != p.Base.RepoID
	}
	for _, l := range p.Labels {
		out.Labels = append(out.Labels, l.Name)
	}
	return out
}

// PullRequest by its number.
func (t *tea) PullRequest(ctx context.Context, number int) (*PullRequest, error) {
	p, _, err := t.client(ctx).GetPullRequest(t.owner, t.name, int64(number))
	if err != nil {
		return nil, err
	}
	return t.pull(p), nil
}

// PullRequests from a branch, which Gitea has no query for.
func (t *tea) PullRequests(ctx context.Context, head string) (out []PullRequest, err error) {
	client := t.client(ctx)
	for page := 1; page <= maxPages; page++ {
		all, _, err := client.ListRepoPullRequests(t.owner, t.name, gitea.ListPullRequestsOptions{State: gitea.StateAll, Sort: "recentupdate", ListOptions: gitea.ListOptions{Page: page, PageSize: 50}})
		if err != nil {
			return nil, err
		}
		for _, p := range all {
			if found := t.pull(p); found.Head == head && !found.Fork {
				out = append(out, *found)
			}
		}
		if len(all) == 0 || len(out) >= 100 {
			break
		}
	}
	slices.SortFunc(out, func(a, b PullRequest) int { return b.Number - a.Number })
	return out[:min(len(out), 100)], nil
}

// Propose a pull request.
func (t *tea) Propose(ctx context.Context, p Proposal) (*PullRequest, bool, error) {
	client := t.client(ctx)
	return propose(ctx, t, p, func() (*PullRequest, error) {
		made, _, err := client.CreatePullRequest(t.owner, t.name, gitea.CreatePullRequestOption{Head: p.Head, Base: p.Base, Title: p.Title, Body: p.Body})
		if err != nil {
			return nil, err
		}
		return t.pull(made), nil
	}, func(number int) error {
		_, _, err := client.EditPullRequest(t.owner, t.name, int64(number), gitea.EditPullRequestOption{Title: p.Title, Body: &p.Body})
		return err
	})
}

// Commit with the contents API. The blob of each file is the lease.
func (t *tea) Commit(ctx context.Context, c Commit) (string, error) {
	client := t.client(ctx)
	was := c.Head
	want := gitea.ChangeFilesOptions{Message: c.Message, Branch: c.Branch}
	if c.Base != "" {
		was = c.Replaces
		want.Branch, want.NewBranch, want.ForcePush = c.Base, c.Branch, c.Replaces != ""
	}
	tip := func(branch string) (string, error) {
		b, _, err := client.GetRepoBranch(t.owner, t.name, branch)
		if errors.Is(err, ErrNotFound) {
			return "", nil
		} else if err != nil {
			return "", err
		}
		return b.Commit.ID, nil
	}
	for _, at := range slices.Compact([][2]string{{c.Branch, was}, {want.Branch, c.Head}}) {
		if now, err := tip(at[0]); err != nil {
			return "", err
		} else if now != at[1] {
			return "", fmt.Errorf("%w: %s is at %.12s", ErrMoved, at[0], now)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Files)) {
		change := &gitea.ChangeFileOperation{Operation: "update", Path: name, Content: base64.StdEncoding.EncodeToString(c.Files[name])}
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
		return "", moved(err, was, func() (string, error) { return tip(c.Branch) })
	}
	if made.Commit == nil {
		return "", errors.New("the answer has no commit")
	}
	return made.Commit.SHA, nil
}

// Wrote goes by the author, since Gitea signs only where its administrator set that up.
func (t *tea) Wrote(ctx context.Context, sha string) (bool, error) {
	client := t.client(ctx)
	me, _, err := client.GetMyUserInfo()
	if err != nil {
		return false, fmt.Errorf("looking up the account of the credential: %w", err)
	}
	c, _, err := client.GetSingleCommit(t.owner, t.name, sha)
	if err != nil {
		return false, err
	}
	return c.Author != nil && strings.EqualFold(c.Author.UserName, me.UserName), nil
}
