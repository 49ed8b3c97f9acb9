package forge

import (
	"context"
	"slices"
	"time"

	"code.gitea.io/sdk/gitea"
	"github.com/google/go-github/v88/github"
	gitlab "gitlab.com/gitlab-org/api/client-go"
)

// What strangers bring: the pull requests that are open, and what is written on them. A comment
// counts as edited where the server does not say when it was changed.

// mostIncoming pull requests or comments are read.
const mostIncoming = 100

// newest of comments that a server lists from the oldest on.
func newest(all []Comment) []Comment {
	slices.Reverse(all)
	return all[:min(len(all), mostIncoming)]
}

// OpenPullRequests of the repository.
func (h *hub) OpenPullRequests(ctx context.Context) (out []PullRequest, err error) {
	client, err := h.with(ctx, seePulls)
	if err != nil {
		return nil, err
	}
	all, _, err := client.PullRequests.List(ctx, h.owner, h.name, &github.PullRequestListOptions{State: "open", Sort: "created", Direction: "desc", ListOptions: github.ListOptions{PerPage: mostIncoming}})
	for _, p := range all {
		out = append(out, *h.pull(p))
	}
	return out, err
}

// Comments are those of the last two pages: GitHub begins with the oldest.
func (h *hub) Comments(ctx context.Context, number int) (out []Comment, err error) {
	client, err := h.with(ctx, seePulls)
	if err != nil {
		return nil, err
	}
	list := func(page int) (last int, err error) {
		all, answer, err := client.Issues.ListComments(ctx, h.owner, h.name, number, &github.IssueListCommentsOptions{ListOptions: github.ListOptions{Page: page, PerPage: mostIncoming}})
		if err != nil {
			return 0, err
		}
		for _, c := range all {
			out = append(out, Comment{Author: c.GetUser().GetLogin(), Body: c.GetBody(), Edited: isEdited(c.GetCreatedAt().Time, c.GetUpdatedAt().Time)})
		}
		return answer.LastPage, nil
	}
	last, err := list(1)
	for page := max(2, last-1); err == nil && page <= last; page++ {
		if page == last-1 {
			out = nil // of the first page, which is older
		}
		_, err = list(page)
	}
	return newest(out), err
}

func isEdited(created, updated time.Time) bool { return created.IsZero() || !created.Equal(updated) }

// OpenPullRequests are merge requests.
func (l *lab) OpenPullRequests(ctx context.Context) (out []PullRequest, err error) {
	all, _, err := l.client.MergeRequests.ListProjectMergeRequests(l.path, &gitlab.ListProjectMergeRequestsOptions{State: gitlab.Ptr("opened"), OrderBy: gitlab.Ptr("created_at"), Sort: gitlab.Ptr("desc"),
		ListOptions: gitlab.ListOptions{PerPage: mostIncoming}}, gitlab.WithContext(ctx))
	for _, m := range all {
		out = append(out, *l.pull(m))
	}
	return out, err
}

// Comments are notes.
func (l *lab) Comments(ctx context.Context, number int) (out []Comment, err error) {
	all, _, err := l.client.Notes.ListMergeRequestNotes(l.path, int64(number), &gitlab.ListMergeRequestNotesOptions{OrderBy: gitlab.Ptr("created_at"), Sort: gitlab.Ptr("desc"),
		ListOptions: gitlab.ListOptions{PerPage: mostIncoming}}, gitlab.WithContext(ctx))
	for _, n := range all {
		if !n.System {
			out = append(out, Comment{Author: n.Author.Username, Body: n.Body, Edited: n.CreatedAt == nil || n.UpdatedAt == nil || isEdited(*n.CreatedAt, *n.UpdatedAt)})
		}
	}
	return out, err
}

// OpenPullRequests of the repository.
func (t *tea) OpenPullRequests(ctx context.Context) (out []PullRequest, err error) {
	client := t.client(ctx)
	for page := 1; page <= mostIncoming/50; page++ {
		all, _, err := client.ListRepoPullRequests(t.owner, t.name, gitea.ListPullRequestsOptions{State: gitea.StateOpen, ListOptions: gitea.ListOptions{Page: page, PageSize: 50}})
		if err != nil {
			return nil, err
		}
		for _, p := range all {
			out = append(out, *t.pull(p))
		}
		if len(all) < 50 {
			break
		}
	}
	slices.SortFunc(out, func(a, b PullRequest) int { return b.Number - a.Number })
	return out, nil
}

// Comments come at once. One that was moved here from another server has the account that moved
// it as its author, and counts as nobody's.
func (t *tea) Comments(ctx context.Context, number int) (out []Comment, err error) {
	all, _, err := t.client(ctx).ListIssueComments(t.owner, t.name, int64(number), gitea.ListIssueCommentOptions{})
	for _, c := range all {
		found := Comment{Body: c.Body, Edited: isEdited(c.Created, c.Updated)}
		if c.Poster != nil && c.OriginalAuthor == "" && c.OriginalAuthorID == 0 {
			found.Author = c.Poster.UserName
		}
		out = append(out, found)
	}
	return newest(out), err
}
