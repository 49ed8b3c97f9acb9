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

func openGitLab(at remote) (Forge, error) {
	client, err := gitlab.NewAuthSourceClient(gitlab.AccessTokenAuthSource{Token: at.login.Token}, gitlab.WithBaseURL(at.api.String()), gitlab.WithHTTPClient(&http.Client{Transport: at.transport}),
		gitlab.WithUserAgent("armature"), gitlab.WithoutRetries(), gitlab.WithCustomLimiter(rate.NewLimiter(rate.Inf, 1)), // the transport does both
		gitlab.WithErrorHandler(func(r *http.Response, err error, _ int) (*http.Response, error) { return r, err }))
	return &lab{at, client}, err
}

// MayPush asks for the access level, where that of a group counts too: 30 is a developer.
func (l *lab) MayPush(ctx context.Context, user string) (bool, error) {
	if !userName().MatchString(user) {
		return false, nil
	}
	found, _, err := l.client.Users.ListUsers(&gitlab.ListUsersOptions{Username: &user}, gitlab.WithContext(ctx))
	if err != nil || len(found) != 1 || !strings.EqualFold(found[0].Username, user) {
		return false, err
	}
	member, _, err := l.client.ProjectMembers.GetInheritedProjectMember(l.path, found[0].ID, gitlab.WithContext(ctx))
	if errors.Is(err, ErrNotFound) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	return member.AccessLevel >= gitlab.DeveloperPermissions && member.State == "active", nil
}

// SetStatus keeps to the pipeline of the earlier statuses of the context.
func (l *lab) SetStatus(ctx context.Context, s Status) error {
	if !fullCommit.MatchString(s.Commit) {
		return fmt.Errorf("%q is not a commit in full", s.Commit)
	}
	state := cmp.Or(map[State]gitlab.BuildStateValue{Queued: gitlab.Pending, Running: gitlab.Running, Success: gitlab.Success, Cancelled: gitlab.Canceled, Skipped: gitlab.Skipped}[s.State], gitlab.Failed)
	want := &gitlab.SetCommitStatusOptions{State: state, Name: &s.Context, Description: gitlab.Ptr(line(s.Description, 255))}
	if s.URL != "" {
		want.TargetURL = &s.URL
	}
	if name, ok := strings.CutPrefix(s.Ref, "refs/heads/"); ok {
		want.Ref = &name
	} else if name, ok := strings.CutPrefix(s.Ref, "refs/tags/"); ok {
		want.Ref = &name
	}
	all, _, err := l.client.Commits.GetCommitStatuses(l.path, s.Commit, &gitlab.GetCommitStatusesOptions{Name: &s.Context, Ref: want.Ref, ListOptions: gitlab.ListOptions{PerPage: 100, Sort: "desc"}}, gitlab.WithContext(ctx))
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
		if is.Status == string(state) && (is.Description == *want.Description || !s.State.Done()) && is.TargetURL == s.URL {
			return nil
		}
		want.PipelineID = &is.PipelineID
	}
	_, _, err = l.client.Commits.SetCommitStatus(l.path, s.Commit, want, gitlab.WithContext(ctx))
	if err != nil && errors.Is(err, ErrRefused) && strings.Contains(err.Error(), "Cannot transition status via") {
		return nil // it is in that state
	}
	return err
}

// Comment updates the note in place.
func (l *lab) Comment(ctx context.Context, number int, part, body string) error {
	me, _, err := l.client.Users.CurrentUser(gitlab.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("looking up the account of the credential: %w", err)
	}
	at := int64(number)
	return comments{
		most: 900_000,
		list: func(page int) (found []comment, more bool, err error) {
			all, answer, err := l.client.Notes.ListMergeRequestNotes(l.path, at, &gitlab.ListMergeRequestNotesOptions{OrderBy: gitlab.Ptr("created_at"), Sort: gitlab.Ptr("desc"),
				ListOptions: gitlab.ListOptions{Page: int64(page), PerPage: 100}}, gitlab.WithContext(ctx))
			if err != nil {
				return nil, false, err
			}
			for _, n := range all {
				found = append(found, comment{id: n.ID, mine: n.Author.ID == me.ID && !n.System, body: n.Body})
			}
			return found, answer.NextPage != 0, nil
		},
		add: func(body string) error {
			_, _, err := l.client.Notes.CreateMergeRequestNote(l.path, at, &gitlab.CreateMergeRequestNoteOptions{Body: &body}, gitlab.WithContext(ctx))
			return err
		},
		edit: func(c comment, body string) error {
			_, _, err := l.client.Notes.UpdateMergeRequestNote(l.path, at, c.id, &gitlab.UpdateMergeRequestNoteOptions{Body: &body}, gitlab.WithContext(ctx))
			return err
		},
		remove: func(c comment) error {
			_, err := l.client.Notes.DeleteMergeRequestNote(l.path, at, c.id, gitlab.WithContext(ctx))
			return err
		},
	}.put(part, body)
}

func (l *lab) pull(m *gitlab.BasicMergeRequest) *PullRequest {
	out := &PullRequest{Number: int(m.IID), URL: m.WebURL, Title: m.Title, Body: m.Description, Head: m.SourceBranch, Commit: m.SHA, Base: m.TargetBranch,
		Fork: m.SourceProjectID == 0 || m.SourceProjectID != m.TargetProjectID, Open: m.State == "opened" || m.State == "locked", Merged: m.State == "merged", Labels: m.Labels}
	if m.Author != nil {
		out.Author = m.Author.Username
	}
	return out
}

// PullRequest is a merge request.
func (l *lab) PullRequest(ctx context.Context, number int) (*PullRequest, error) {
	m, _, err := l.client.MergeRequests.GetMergeRequest(l.path, int64(number), nil, gitlab.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	return l.pull(&m.BasicMergeRequest), nil
}

// PullRequests are merge requests.
func (l *lab) PullRequests(ctx context.Context, head string) (out []PullRequest, err error) {
	all, _, err := l.client.MergeRequests.ListProjectMergeRequests(l.path, &gitlab.ListProjectMergeRequestsOptions{SourceBranch: &head, State: gitlab.Ptr("all"), OrderBy: gitlab.Ptr("created_at"), Sort: gitlab.Ptr("desc"),
		ListOptions: gitlab.ListOptions{PerPage: 100}}, gitlab.WithContext(ctx))
	for _, m := range all {
		out = append(out, *l.pull(m))
	}
	return out, err
}

// Propose a merge request.
func (l *lab) Propose(ctx context.Context, p Proposal) (*PullRequest, bool, error) {
	return propose(ctx, l, p, func() (*PullRequest, error) {
		m, _, err := l.client.MergeRequests.CreateMergeRequest(l.path, &gitlab.CreateMergeRequestOptions{Title: &p.Title, Description: &p.Body, SourceBranch: &p.Head, TargetBranch: &p.Base}, gitlab.WithContext(ctx))
		if err != nil {
			return nil, err
		}
		return l.pull(&m.BasicMergeRequest), nil
	}, func(number int) error {
		_, _, err := l.client.MergeRequests.UpdateMergeRequest(l.path, int64(number), &gitlab.UpdateMergeRequestOptions{Title: &p.Title, Description: &p.Body}, gitlab.WithContext(ctx))
		return err
	})
}

func (l *lab) tip(ctx context.Context, branch string) (string, error) {
	b, _, err := l.client.Branches.GetBranch(l.path, branch, gitlab.WithContext(ctx))
	if errors.Is(err, ErrNotFound) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	return b.Commit.ID, nil
}

// Commit with the commits API. The last commit of each file is the lease.
func (l *lab) Commit(ctx context.Context, c Commit) (string, error) {
	was := c.Head
	if c.Base != "" {
		was = c.Replaces
	}
	tip := func() (string, error) { return l.tip(ctx, c.Branch) }
	if now, err := tip(); err != nil {
		return "", err
	} else if now != was {
		return "", fmt.Errorf("%w: %s is at %.12s", ErrMoved, c.Branch, now)
	}
	want := &gitlab.CreateCommitOptions{Branch: &c.Branch, CommitMessage: &c.Message}
	if c.Base != "" {
		want.StartSHA = &c.Head
		if c.Replaces != "" {
			want.Force = gitlab.Ptr(true)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Files)) {
		action := &gitlab.CommitActionOptions{Action: gitlab.Ptr(gitlab.FileUpdate), FilePath: &name, Encoding: gitlab.Ptr("base64"), Content: gitlab.Ptr(base64.StdEncoding.EncodeToString(c.Files[name]))}
		file, _, err := l.client.RepositoryFiles.GetFileMetaData(l.path, name, &gitlab.GetFileMetaDataOptions{Ref: &c.Head}, gitlab.WithContext(ctx))
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
		return "", moved(err, was, tip)
	}
	return made.ID, nil
}

// Wrote goes by the committer, since GitLab signs only where its administrator set that up.
func (l *lab) Wrote(ctx context.Context, sha string) (bool, error) {
	me, _, err := l.client.Users.CurrentUser(gitlab.WithContext(ctx))
	if err != nil {
		return false, fmt.Errorf("looking up the account of the credential: %w", err)
	}
	c, _, err := l.client.Commits.GetCommit(l.path, sha, nil, gitlab.WithContext(ctx))
	if err != nil {
		return false, err
	}
	private := fmt.Sprintf("%d-%s@users.noreply.%s", me.ID, me.Username, l.api.Hostname())
	return c.CommitterEmail != "" && slices.Contains([]string{private, me.Email, me.PublicEmail}, c.CommitterEmail), nil
}
