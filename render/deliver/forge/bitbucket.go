package forge

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// ask sends a request to an address below the API, and reads the answer into a value.
func (r *remote) ask(ctx context.Context, method, address string, body, into any) (http.Header, error) {
	var send []byte
	if body != nil {
		var err error
		if send, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, r.api.String()+address, bytes.NewReader(send))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "armature")
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if method != http.MethodGet { // Data Center refuses forms that a browser could send
		request.Header.Set("X-Atlassian-Token", "no-check")
	}
	if r.login.User != "" {
		request.SetBasicAuth(r.login.User, r.login.Token)
	} else {
		request.Header.Set("Authorization", "Bearer "+r.login.Token)
	}
	answer, err := r.transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if into == nil {
		return answer.Header, nil
	}
	if err := json.NewDecoder(answer.Body).Decode(into); err != nil {
		return nil, fmt.Errorf("reading the answer of %s: %w", r.api.Host, err)
	}
	return answer.Header, nil
}

// bucket is a repository on Bitbucket Cloud.
type bucket struct{ remote }

func openBitbucket(at remote) (Forge, error) { return &bucket{at}, nil }

// repo is the address of the repository.
func (b *bucket) repo(rest string) string { return "repositories/" + b.path + rest }

// MayPush takes the account ID of a user, since names on Bitbucket Cloud are not unique.
func (b *bucket) MayPush(ctx context.Context, user string) (bool, error) {
	if !userName.MatchString(user) {
		return false, nil
	}
	var found struct {
		Values []struct {
			Permission string
			User       struct {
				Account string `json:"account_id"`
			}
		}
	}
	query := url.Values{"q": {fmt.Sprintf("user.account_id=%q", user)}}
	_, err := b.ask(ctx, http.MethodGet, "workspaces/"+b.owner+"/permissions/repositories/"+b.name+"?"+query.Encode(), nil, &found)
	for _, v := range found.Values {
		if v.User.Account == user && (v.Permission == "write" || v.Permission == "admin") {
			return err == nil, err
		}
	}
	return false, err
}

// buildStatus of both Bitbuckets.
type buildStatus struct {
	Key         string `json:"key"`
	State       string `json:"state"`
	Name        string `json:"name"`
	Description string `json:"description"`
	URL         string `json:"url"`
}

// buildOf a status. Its key has at most 40 characters, and the URL is required.
func buildOf(s Status, cancelled, page string) buildStatus {
	key := s.Context
	if len(key) > 40 {
		sum := sha256.Sum256([]byte(key))
		key = hex.EncodeToString(sum[:20])
	}
	state := cmp.Or(map[State]string{Queued: "INPROGRESS", Running: "INPROGRESS", Success: "SUCCESSFUL", Skipped: "SUCCESSFUL", Cancelled: cancelled}[s.State], "FAILED")
	return buildStatus{key, state, line(s.Context, 255), line(s.Description, 255), cmp.Or(s.URL, page)}
}

// SetStatus of a commit.
func (b *bucket) SetStatus(ctx context.Context, s Status) error {
	if !fullCommit.MatchString(s.Commit) {
		return fmt.Errorf("%q is not a commit in full", s.Commit)
	}
	want := buildOf(s, "STOPPED", "https://bitbucket.org/"+b.path+"/commits/"+s.Commit)
	var is buildStatus
	at := b.repo("/commit/" + s.Commit + "/statuses/build")
	if _, err := b.ask(ctx, http.MethodGet, at+"/"+url.PathEscape(want.Key), nil, &is); err != nil && !errors.Is(err, ErrNotFound) || is == want {
		return err
	}
	_, err := b.ask(ctx, http.MethodPost, at, want, nil)
	return err
}

// me is the account ID of the credential.
func (b *bucket) me(ctx context.Context) (string, error) {
	var is struct {
		ID string `json:"uuid"`
	}
	_, err := b.ask(ctx, http.MethodGet, "user", nil, &is)
	if err == nil && is.ID == "" {
		err = ErrUnauthorized
	}
	if err != nil {
		return "", fmt.Errorf("asking whose credential this is: %w", err)
	}
	return is.ID, nil
}

type rawText struct {
	Raw string `json:"raw"`
}

// Comment updates the comment in place.
func (b *bucket) Comment(ctx context.Context, number int, part, body string) error {
	me, err := b.me(ctx)
	if err != nil {
		return err
	}
	at := b.repo(fmt.Sprintf("/pullrequests/%d/comments", number))
	one := func(c comment) string { return at + "/" + strconv.FormatInt(c.id, 10) }
	return comments{
		form: "[//]: # (%s)", most: 30_000,
		list: func(page int) (found []comment, more bool, err error) {
			var all struct {
				Next   string
				Values []struct {
					ID      int64
					Deleted bool
					Content rawText
					User    struct{ UUID string }
				}
			}
			if _, err := b.ask(ctx, http.MethodGet, fmt.Sprintf("%s?pagelen=100&sort=-created_on&page=%d", at, page), nil, &all); err != nil {
				return nil, false, err
			}
			for _, v := range all.Values {
				found = append(found, comment{id: v.ID, mine: v.User.UUID == me && !v.Deleted, body: v.Content.Raw})
			}
			return found, all.Next != "", nil
		},
		add: func(body string) error {
			_, err := b.ask(ctx, http.MethodPost, at, map[string]any{"content": rawText{body}}, nil)
			return err
		},
		edit: func(c comment, body string) error {
			_, err := b.ask(ctx, http.MethodPut, one(c), map[string]any{"content": rawText{body}}, nil)
			return err
		},
		remove: func(c comment) error {
			_, err := b.ask(ctx, http.MethodDelete, one(c), nil, nil)
			return err
		},
	}.put(part, body)
}

type bucketEnd struct {
	Branch     struct{ Name string }
	Commit     struct{ Hash string }
	Repository struct {
		Name string `json:"full_name"`
	}
}

type bucketPull struct {
	ID                 int
	Title, Description string
	State              string
	Author             struct {
		Account string `json:"account_id"`
	}
	Source, Destination bucketEnd
	Links               struct{ HTML struct{ Href string } }
}

func (p bucketPull) pull() *PullRequest {
	return &PullRequest{Number: p.ID, URL: p.Links.HTML.Href, Title: p.Title, Body: p.Description, Author: p.Author.Account, Head: p.Source.Branch.Name, Commit: p.Source.Commit.Hash,
		Base: p.Destination.Branch.Name, Fork: p.Source.Repository.Name == "" || p.Source.Repository.Name != p.Destination.Repository.Name, Open: p.State == "OPEN", Merged: p.State == "MERGED"}
}

// PullRequest by its number. Its commit is short there, and is asked for in full.
func (b *bucket) PullRequest(ctx context.Context, number int) (*PullRequest, error) {
	var p bucketPull
	if _, err := b.ask(ctx, http.MethodGet, b.repo(fmt.Sprintf("/pullrequests/%d", number)), nil, &p); err != nil {
		return nil, err
	}
	out := p.pull()
	from := cmp.Or(p.Source.Repository.Name, b.path)
	owner, name, _ := strings.Cut(from, "/")
	if !segment.MatchString(owner) || !segment.MatchString(name) || !segment.MatchString(out.Commit) {
		return nil, fmt.Errorf("the pull request %d has no source", number)
	}
	var full struct{ Hash string }
	_, err := b.ask(ctx, http.MethodGet, "repositories/"+from+"/commit/"+out.Commit, nil, &full)
	out.Commit = full.Hash
	return out, err
}

// PullRequests from a branch.
func (b *bucket) PullRequests(ctx context.Context, head string) (out []PullRequest, err error) {
	quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(head) + `"`
	query := url.Values{"q": {fmt.Sprintf("source.branch.name=%s AND source.repository.full_name=%q", quoted, b.path)}, "state": {"OPEN", "MERGED", "DECLINED", "SUPERSEDED"}, "sort": {"-created_on"}, "pagelen": {"50"}}
	var all struct{ Values []bucketPull }
	_, err = b.ask(ctx, http.MethodGet, b.repo("/pullrequests?"+query.Encode()), nil, &all)
	for _, p := range all.Values {
		out = append(out, *p.pull())
	}
	return out, err
}

// Propose a pull request.
func (b *bucket) Propose(ctx context.Context, p Proposal) (*PullRequest, bool, error) {
	branch := func(name string) map[string]any { return map[string]any{"branch": map[string]any{"name": name}} }
	return propose(ctx, b, p, func() (*PullRequest, error) {
		var made bucketPull
		_, err := b.ask(ctx, http.MethodPost, b.repo("/pullrequests"), map[string]any{"title": p.Title, "description": p.Body, "source": branch(p.Head), "destination": branch(p.Base)}, &made)
		return made.pull(), err
	}, func(number int) error {
		_, err := b.ask(ctx, http.MethodPut, b.repo(fmt.Sprintf("/pullrequests/%d", number)), map[string]any{"title": p.Title, "description": p.Body}, nil)
		return err
	})
}

// Commit is for Git alone.
func (b *bucket) Commit(context.Context, Commit) (string, error) { return "", errNoCommits }

// Wrote is for servers that commit.
func (b *bucket) Wrote(context.Context, string) (bool, error) { return false, errNoCommits }

// errNoCommits: the API of Bitbucket replaces no branch and signs nothing.
var errNoCommits = fmt.Errorf("%w: commits on Bitbucket are written by Git", ErrUnsupported)
