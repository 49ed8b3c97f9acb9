package forge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// center is a repository on Bitbucket Data Center.
type center struct{ remote }

func openDataCenter(at remote) (Forge, error) { return &center{at}, nil }

// repo is the address of the repository.
func (d *center) repo(rest string) string {
	return "projects/" + url.PathEscape(d.owner) + "/repos/" + url.PathEscape(d.name) + rest
}

// MayPush asks for the users with write permission, where that of a group or project counts.
func (d *center) MayPush(ctx context.Context, user string) (bool, error) {
	if !userName.MatchString(user) {
		return false, nil
	}
	var found struct {
		Values []struct {
			Name   string
			Active bool
		}
	}
	query := url.Values{"filter": {user}, "limit": {"1000"}, "permission.1": {"REPO_WRITE"}, "permission.1.projectKey": {d.owner}, "permission.1.repositorySlug": {d.name}}
	_, err := d.ask(ctx, http.MethodGet, "users?"+query.Encode(), nil, &found)
	for _, v := range found.Values {
		if strings.EqualFold(v.Name, user) && v.Active {
			return err == nil, err
		}
	}
	return false, err
}

// SetStatus of a commit.
func (d *center) SetStatus(ctx context.Context, s Status) error {
	if !fullCommit.MatchString(s.Commit) {
		return fmt.Errorf("%q is not a commit in full", s.Commit)
	}
	want := buildOf(s, "CANCELLED", d.api.Scheme+"://"+d.api.Host+"/"+d.repo("/commits/"+s.Commit))
	var is buildStatus
	at := d.repo("/commits/" + s.Commit + "/builds")
	if _, err := d.ask(ctx, http.MethodGet, at+"?key="+url.QueryEscape(want.Key), nil, &is); err != nil && !errors.Is(err, ErrNotFound) || is == want {
		return err
	}
	_, err := d.ask(ctx, http.MethodPost, at, want, nil)
	return err
}

// me is the user of the credential, whom each answer names.
func (d *center) me(ctx context.Context) (string, error) {
	header, err := d.ask(ctx, http.MethodGet, "application-properties", nil, nil)
	name := header.Get("X-AUSERNAME")
	if err == nil && name == "" {
		err = ErrUnauthorized
	}
	if err != nil {
		return "", fmt.Errorf("asking whose credential this is: %w", err)
	}
	return url.QueryUnescape(name)
}

// Comment updates the comment in place.
func (d *center) Comment(ctx context.Context, number int, part, body string) error {
	me, err := d.me(ctx)
	if err != nil {
		return err
	}
	at := d.repo(fmt.Sprintf("/pull-requests/%d", number))
	const most = 100
	return comments{
		form: "[//]: # (%s)", most: 30_000,
		list: func(page int) (found []comment, more bool, err error) {
			var all struct {
				Last   bool `json:"isLastPage"`
				Values []struct {
					CommentAction string
					Comment       struct {
						ID, Version int64
						Text        string
						Author      struct{ Name string }
					}
				}
			}
			if _, err := d.ask(ctx, http.MethodGet, fmt.Sprintf("%s/activities?limit=%d&start=%d", at, most, (page-1)*most), nil, &all); err != nil {
				return nil, false, err
			}
			for _, v := range all.Values {
				if c := v.Comment; v.CommentAction == "ADDED" {
					found = append(found, comment{id: c.ID, version: c.Version, mine: strings.EqualFold(c.Author.Name, me), body: c.Text})
				}
			}
			return found, !all.Last, nil
		},
		add: func(body string) error {
			_, err := d.ask(ctx, http.MethodPost, at+"/comments", map[string]any{"text": body}, nil)
			return err
		},
		edit: func(c comment, body string) error {
			_, err := d.ask(ctx, http.MethodPut, fmt.Sprintf("%s/comments/%d", at, c.id), map[string]any{"text": body, "version": c.version}, nil)
			return err
		},
		remove: func(c comment) error {
			_, err := d.ask(ctx, http.MethodDelete, fmt.Sprintf("%s/comments/%d?version=%d", at, c.id, c.version), nil, nil)
			return err
		},
	}.put(part, body)
}

type centerEnd struct {
	ID           string
	LatestCommit string
	Repository   struct{ ID int64 }
}

type centerPull struct {
	ID, Version        int
	Title, Description string
	State              string
	Author             struct{ User struct{ Name string } }
	FromRef, ToRef     centerEnd
	Reviewers          json.RawMessage
	Links              struct{ Self []struct{ Href string } }
}

func (p centerPull) pull() *PullRequest {
	out := &PullRequest{Number: p.ID, Title: p.Title, Body: p.Description, Author: p.Author.User.Name, Head: strings.TrimPrefix(p.FromRef.ID, "refs/heads/"), Commit: p.FromRef.LatestCommit,
		Base: strings.TrimPrefix(p.ToRef.ID, "refs/heads/"), Fork: p.FromRef.Repository.ID == 0 || p.FromRef.Repository.ID != p.ToRef.Repository.ID, Open: p.State == "OPEN", Merged: p.State == "MERGED"}
	if len(p.Links.Self) > 0 {
		out.URL = p.Links.Self[0].Href
	}
	return out
}

func (d *center) get(ctx context.Context, number int) (p centerPull, err error) {
	_, err = d.ask(ctx, http.MethodGet, d.repo(fmt.Sprintf("/pull-requests/%d", number)), nil, &p)
	return p, err
}

// PullRequest by its number.
func (d *center) PullRequest(ctx context.Context, number int) (*PullRequest, error) {
	p, err := d.get(ctx, number)
	if err != nil {
		return nil, err
	}
	return p.pull(), nil
}

// PullRequests from a branch.
func (d *center) PullRequests(ctx context.Context, head string) (out []PullRequest, err error) {
	query := url.Values{"direction": {"OUTGOING"}, "at": {"refs/heads/" + head}, "state": {"ALL"}, "order": {"NEWEST"}, "limit": {"100"}}
	var all struct{ Values []centerPull }
	_, err = d.ask(ctx, http.MethodGet, d.repo("/pull-requests?"+query.Encode()), nil, &all)
	for _, p := range all.Values {
		out = append(out, *p.pull())
	}
	return out, err
}

// Propose a pull request.
func (d *center) Propose(ctx context.Context, p Proposal) (*PullRequest, bool, error) {
	return propose(ctx, d, p, func() (*PullRequest, error) {
		var made centerPull
		_, err := d.ask(ctx, http.MethodPost, d.repo("/pull-requests"), map[string]any{"title": p.Title, "description": p.Body,
			"fromRef": map[string]any{"id": "refs/heads/" + p.Head}, "toRef": map[string]any{"id": "refs/heads/" + p.Base}}, &made)
		return made.pull(), err
	}, func(number int) error {
		is, err := d.get(ctx, number)
		if err != nil {
			return err
		}
		want := map[string]any{"title": p.Title, "description": p.Body, "version": is.Version}
		if is.Reviewers != nil { // or they are removed
			want["reviewers"] = is.Reviewers
		}
		_, err = d.ask(ctx, http.MethodPut, d.repo(fmt.Sprintf("/pull-requests/%d", number)), want, nil)
		return err
	})
}

// Commit is for Git alone.
func (d *center) Commit(context.Context, Commit) (string, error) { return "", errNoCommits }

// Wrote is for servers that commit.
func (d *center) Wrote(context.Context, string) (bool, error) { return false, errNoCommits }
