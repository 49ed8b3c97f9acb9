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

	gitlab "gitlab.com/gitlab-org/api/client-go"
	"golang.org/x/time/rate"
)

// lab is a project on GitLab.
type lab struct {
	remote
	client *gitlab.Client
}

func openGitLab(at remote) (server, error) {
	client, err := gitlab.NewAuthSourceClient(gitlab.AccessTokenAuthSource{Token: at.login.Token},
		gitlab.WithBaseURL(at.api.String()),
		gitlab.WithHTTPClient(&http.Client{Transport: at.transport}),
		gitlab.WithUserAgent("armature"),
		// The transport retries and waits for limits.
		gitlab.WithoutRetries(), gitlab.WithCustomLimiter(rate.NewLimiter(rate.Inf, 1)),
		gitlab.WithErrorHandler(func(r *http.Response, err error, _ int) (*http.Response, error) {
			return r, err
		}))
	return &lab{at, client}, err
}

// MayPush requests the access level, which includes that of groups.
func (l *lab) MayPush(ctx context.Context, user string) (bool, error) {
	found, _, err := l.client.Users.ListUsers(&gitlab.ListUsersOptions{Username: &user},
		gitlab.WithContext(ctx))
	if err != nil || len(found) != 1 || !strings.EqualFold(found[0].Username, user) {
		return false, err
	}
	member, _, err := l.client.ProjectMembers.GetInheritedProjectMember(l.path, found[0].ID,
		gitlab.WithContext(ctx))
	return err == nil && member.AccessLevel >= gitlab.DeveloperPermissions &&
		member.State == "active", err
}

// SetStatus sets the status in the pipeline of the context's earlier statuses.
func (l *lab) SetStatus(ctx context.Context, s Status) error {
	state := cmp.Or(map[State]gitlab.BuildStateValue{
		Queued: gitlab.Pending, Running: gitlab.Running, Success: gitlab.Success,
		Cancelled: gitlab.Canceled, Skipped: gitlab.Skipped,
	}[s.State], gitlab.Failed)
	want := &gitlab.SetCommitStatusOptions{
		State: state, Name: &s.Context, Description: gitlab.Ptr(line(s.Description, 255)),
	}
	for _, prefix := range []string{"refs/heads/", "refs/tags/"} {
		if name, ok := strings.CutPrefix(s.Ref, prefix); ok {
			want.Ref = &name
		}
	}
	all, _, err := l.client.Commits.GetCommitStatuses(l.path, s.Commit,
		&gitlab.GetCommitStatusesOptions{
			Name: &s.Context, Ref: want.Ref,
			ListOptions: gitlab.ListOptions{PerPage: 100, Sort: "desc"},
		}, gitlab.WithContext(ctx))
	if err != nil {
		return err
	}
	var is *gitlab.CommitStatus
	for _, one := range all {
		if one.Name == s.Context && (is == nil || one.ID > is.ID) {
			is = one
		}
	}
	if is != nil {
		sameText := is.Description == *want.Description || !s.State.Done()
		if is.Status == string(state) && sameText {
			return nil
		}
		want.PipelineID = &is.PipelineID
	}
	_, _, err = l.client.Commits.SetCommitStatus(l.path, s.Commit, want, gitlab.WithContext(ctx))
	if errors.Is(err, ErrRefused) && strings.Contains(err.Error(), "Cannot transition status via") {
		return nil // the status is in that state already
	}
	return err
}

func (l *lab) user(ctx context.Context) (*gitlab.User, error) {
	me, _, err := l.client.Users.CurrentUser(gitlab.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("looking up the account of the credential: %w", err)
	}
	return me, nil
}

func (l *lab) me(ctx context.Context) (int64, string, error) {
	me, err := l.user(ctx)
	if err != nil {
		return 0, "", err
	}
	return me.ID, me.Username, nil
}

// comments lists the notes that are not the system's, the newest first.
func (l *lab) comments(ctx context.Context,
	number, page int) (found []comment, next, last int, err error) {
	options := &gitlab.ListMergeRequestNotesOptions{
		OrderBy: gitlab.Ptr("created_at"), Sort: gitlab.Ptr("desc"),
		ListOptions: gitlab.ListOptions{Page: int64(page), PerPage: mostIncoming},
	}
	all, answer, err := l.client.Notes.ListMergeRequestNotes(l.path, int64(number), options,
		gitlab.WithContext(ctx))
	if err != nil {
		return nil, 0, 0, err
	}
	for _, n := range all {
		edited := n.CreatedAt == nil || n.UpdatedAt == nil || isEdited(*n.CreatedAt, *n.UpdatedAt)
		if !n.System {
			text := Comment{n.Author.Username, n.Body, edited}
			found = append(found, comment{Comment: text, id: n.ID, author: n.Author.ID})
		}
	}
	return found, int(answer.NextPage), 0, nil
}

func (l *lab) putComment(ctx context.Context, number int, id int64, body string) (err error) {
	notes, at, with := l.client.Notes, int64(number), gitlab.WithContext(ctx)
	switch {
	case id == 0:
		_, _, err = notes.CreateMergeRequestNote(l.path, at,
			&gitlab.CreateMergeRequestNoteOptions{Body: &body}, with)
	case body == "":
		_, err = notes.DeleteMergeRequestNote(l.path, at, id, with)
	default:
		text := &gitlab.UpdateMergeRequestNoteOptions{Body: &body}
		_, _, err = notes.UpdateMergeRequestNote(l.path, at, id, text, with)
	}
	return err
}

func (l *lab) pull(m *gitlab.BasicMergeRequest) *PullRequest {
	out := &PullRequest{
		Number: int(m.IID), URL: m.WebURL, Title: m.Title, Body: m.Description,
		Head: m.SourceBranch, Commit: m.SHA, Base: m.TargetBranch,
		Fork: m.SourceProjectID == 0 || m.SourceProjectID != m.TargetProjectID,
		Open: m.State == "opened" || m.State == "locked", Merged: m.State == "merged",
	}
	if m.Author != nil {
		out.Author = m.Author.Username
	}
	return out
}

// PullRequest returns a merge request by its number.
func (l *lab) PullRequest(ctx context.Context, number int) (*PullRequest, error) {
	m, _, err := l.client.MergeRequests.GetMergeRequest(l.path, int64(number), nil,
		gitlab.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	return l.pull(&m.BasicMergeRequest), nil
}

// PullRequests returns the merge requests from a branch, or the open ones.
func (l *lab) PullRequests(ctx context.Context, head string) (out []PullRequest, err error) {
	state := "all"
	if head == "" {
		state = "opened"
	}
	all, _, err := l.client.MergeRequests.ListProjectMergeRequests(l.path,
		&gitlab.ListProjectMergeRequestsOptions{
			SourceBranch: optional(head), State: &state, OrderBy: gitlab.Ptr("created_at"),
			Sort: gitlab.Ptr("desc"), ListOptions: gitlab.ListOptions{PerPage: mostIncoming},
		}, gitlab.WithContext(ctx))
	for _, m := range all {
		out = append(out, *l.pull(m))
	}
	return out, err
}

func (l *lab) propose(ctx context.Context, number int, p Proposal) (*PullRequest, error) {
	var m *gitlab.MergeRequest
	var err error
	if number != 0 {
		text := &gitlab.UpdateMergeRequestOptions{Title: &p.Title, Description: &p.Body}
		m, _, err = l.client.MergeRequests.UpdateMergeRequest(l.path, int64(number), text,
			gitlab.WithContext(ctx))
	} else {
		m, _, err = l.client.MergeRequests.CreateMergeRequest(l.path,
			&gitlab.CreateMergeRequestOptions{
				Title: &p.Title, Description: &p.Body, SourceBranch: &p.Head, TargetBranch: &p.Base,
			}, gitlab.WithContext(ctx))
	}
	if err != nil {
		return nil, err
	}
	return l.pull(&m.BasicMergeRequest), nil
}

func (l *lab) tip(ctx context.Context, branch string) (string, error) {
	b, _, err := l.client.Branches.GetBranch(l.path, branch, gitlab.WithContext(ctx))
	if err != nil {
		return "", err
	}
	return b.Commit.ID, nil
}

// commit calls the commits API. The server compares the last commit of each file with the expected
// one.
func (l *lab) commit(ctx context.Context, c Commit) (string, error) {
	want := &gitlab.CreateCommitOptions{Branch: &c.Branch, CommitMessage: &c.Message}
	if c.Base != "" {
		want.StartSHA = &c.Head
		if c.Replaces != "" {
			want.Force = gitlab.Ptr(true)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Files)) {
		text := base64.StdEncoding.EncodeToString(c.Files[name])
		action := &gitlab.CommitActionOptions{
			Action: gitlab.Ptr(gitlab.FileUpdate), FilePath: &name, Encoding: gitlab.Ptr("base64"),
			Content: &text,
		}
		at := &gitlab.GetFileMetaDataOptions{Ref: &c.Head}
		file, _, err := l.client.RepositoryFiles.GetFileMetaData(l.path, name, at,
			gitlab.WithContext(ctx))
		switch {
		case errors.Is(err, ErrNotFound):
			action.Action = gitlab.Ptr(gitlab.FileCreate)
		case err != nil:
			return "", err
		default:
			action.LastCommitID = &file.LastCommitID
		}
		want.Actions = append(want.Actions, action)
	}
	made, _, err := l.client.Commits.CreateCommit(l.path, want, gitlab.WithContext(ctx))
	if err != nil {
		return "", err
	}
	return made.ID, nil
}

// Wrote compares the committer, since GitLab signs only if its administrator has configured that.
func (l *lab) Wrote(ctx context.Context, sha string) (bool, error) {
	me, err := l.user(ctx)
	if err != nil {
		return false, err
	}
	c, _, err := l.client.Commits.GetCommit(l.path, sha, nil, gitlab.WithContext(ctx))
	if err != nil {
		return false, err
	}
	private := fmt.Sprintf("%d-%s@users.noreply.%s", me.ID, me.Username, l.api.Hostname())
	addresses := []string{private, me.Email, me.PublicEmail}
	return c.CommitterEmail != "" && slices.Contains(addresses, c.CommitterEmail), nil
}
