// Package forge asks the servers that host Git repositories for what Git has no words for:
// pull requests. It is the only place that knows how GitHub, GitLab and Gitea differ. What
// it asks is three requests of each, which is why it has no client library of any.
package forge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/armature-dev/armature/functions/krm"
)

// Repository on a forge.
type Repository struct {
	forge                 forge
	owner, token, address string
	client                *http.Client
}

// Proposal is a pull request that merges a branch of the repository into another one.
type Proposal struct {
	// Head and Base are branches, without refs/heads/.
	Head, Base  string
	Title, Body string
	// Refresh the text of one that is open.
	Refresh bool
}

// Dial opens connections; nil is the network as it is.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// Clients opens repositories on forges. What a server allows one credential is counted once
// for all repositories that it opened, so that a process has one of these.
type Clients struct {
	// Dial opens connections; nil is the network as it is.
	Dial Dial
	// Proxies are used as the environment names them. A Dial that forbids addresses needs
	// false.
	Proxies bool
}

// Open a repository by its URL, on a server of a kind that Names lists.
func (c *Clients) Open(kind, repository string, credential Credential) (Forge, error) {
	return nil, fmt.Errorf("%w: %s has no client yet", ErrUnsupported, kind)
}

// Open a repository by its URL, on a forge that is one of Names. token is of an account that
// may open pull requests. It is a secret, and is sent to the repository's host alone.
func Open(name, repository, token string, dial Dial) (*Repository, error) {
	i := slices.IndexFunc(forges(), func(f forge) bool { return f.name == name })
	if i < 0 {
		return nil, fmt.Errorf("unknown forge %q", name)
	}
	scheme, host, path, err := locate(repository)
	if err != nil {
		return nil, err
	}
	r := &Repository{forge: forges()[i], token: token}
	r.address = r.forge.address(scheme, host, path)
	r.owner, _, _ = strings.Cut(path, "/")
	r.client = &http.Client{
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DialContext: dial, ForceAttemptHTTP2: true, IdleConnTimeout: 10 * time.Second, TLSHandshakeTimeout: 10 * time.Second},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return errors.New("a redirect is not followed, since it would take the token along")
		},
	}
	return r, nil
}

// Propose opens a pull request, and gives its URL. One that is open already is the one.
func (r *Repository) Propose(ctx context.Context, p Proposal) (address string, opened bool, err error) {
	found, err := r.list(ctx, r.forge.open, p.Head, p.Base)
	if err != nil {
		return "", false, fmt.Errorf("looking for an open pull request: %w", err)
	}
	if len(found) > 0 {
		return found[0].url(), false, r.refresh(ctx, found[0], p)
	}
	var made open
	body := map[string]string{r.forge.head: p.Head, r.forge.base: p.Base, "title": p.Title, r.forge.body: p.Body}
	if err := r.ask(ctx, http.MethodPost, "", body, &made); err != nil {
		return "", false, fmt.Errorf("opening a pull request: %w", err)
	}
	return made.url(), true, nil
}

// refresh the text of a pull request that is open.
func (r *Repository) refresh(ctx context.Context, o open, p Proposal) error {
	if !p.Refresh || o.Body+o.Description == p.Body && o.Title == p.Title {
		return nil
	}
	method := http.MethodPatch
	if r.forge.name == "gitlab" {
		method = http.MethodPut
	}
	err := r.ask(ctx, method, fmt.Sprintf("/%d", o.Number+o.IID), map[string]string{"title": p.Title, r.forge.body: p.Body}, &open{})
	if err != nil {
		return fmt.Errorf("changing the text of the pull request: %w", err)
	}
	return nil
}

// Refused gives the texts of the pull requests between two branches that were closed and not
// merged, of the first page that has any.
func (r *Repository) Refused(ctx context.Context, head, base string) (bodies []string, err error) {
	found, err := r.list(ctx, "closed", head, base)
	if err != nil {
		return nil, fmt.Errorf("looking for closed pull requests: %w", err)
	}
	for _, o := range found {
		if !o.Merged && o.MergedAt == "" {
			bodies = append(bodies, o.Body+o.Description)
		}
	}
	return bodies, nil
}

// list the pull requests of a state from a branch to another one, of the first page that has any.
func (r *Repository) list(ctx context.Context, state, head, base string) (found []open, err error) {
	query := r.forge.query(state, r.owner, head, base)
	for page := 1; page <= maxPages; page++ {
		if page > 1 {
			query.Set("page", strconv.Itoa(page))
		}
		found = nil
		if err := r.ask(ctx, http.MethodGet, "?"+query.Encode(), nil, &found); err != nil {
			return nil, err
		}
		if r.forge.name != "gitea" {
			return found, nil
		}
		full := len(found) > 0
		found = slices.DeleteFunc(found, func(o open) bool { return o.Head.Ref != head || o.Base.Ref != base || o.Head.ID != o.Base.ID })
		if len(found) > 0 || !full {
			return found, nil
		}
	}
	return nil, nil
}

// A forge is a kind of Git server with pull requests.
type forge struct {
	name  string
	hosts []string // that are known to be of this kind
	// api is the path of the API, and pulls of a repository's pull requests in it, whose
	// name is %s.
	api, pulls string
	// header has the token, after prefix.
	header, prefix string
	// Names of what a pull request has: branches, and the text.
	head, base, body string
	open             string // state of one that is not closed
}

// forges are those of "REST API endpoints for pull requests" (GitHub), "Merge requests API"
// (GitLab) and "/repos/{owner}/{repo}/pulls" (Gitea, Forgejo).
func forges() []forge {
	return []forge{
		{"github", []string{"github.com"}, "/api/v3", "/repos/%s/pulls", "Authorization", "Bearer ", "head", "base", "body", "open"},
		{"gitlab", []string{"gitlab.com"}, "/api/v4", "/projects/%s/merge_requests", "PRIVATE-TOKEN", "", "source_branch", "target_branch", "description", "opened"},
		{"gitea", []string{"gitea.com", "codeberg.org"}, "/api/v1", "/repos/%s/pulls", "Authorization", "token ", "head", "base", "body", "open"},
	}
}

// address of the pull requests of a repository on a host.
func (f forge) address(scheme, host, repository string) string {
	if f.name == "gitlab" {
		repository = url.PathEscape(repository)
	}
	at := host + f.api
	if host == "github.com" {
		at = "api.github.com"
	}
	return scheme + "://" + at + fmt.Sprintf(f.pulls, repository)
}

// query for pull requests from a branch of an owner's repository to another branch.
func (f forge) query(state, owner, head, base string) url.Values {
	switch f.name {
	case "gitea": // has no query for branches
		return url.Values{"state": {state}, "limit": {"50"}}
	case "github":
		head = owner + ":" + head
	}
	return url.Values{"state": {state}, f.head: {head}, f.base: {base}}
}

// Names of the kinds of servers that pull requests are opened on, and the environment
// variable in which each has its token by convention.
func Names() (names []string, variables map[string]string) {
	variables = make(map[string]string)
	for _, f := range forges() {
		names, variables[f.name] = append(names, f.name), strings.ToUpper(f.name)+"_TOKEN"
	}
	return names, variables
}

// Of is the kind of server of a repository's URL; "" where its name does not say so.
func Of(repository string) string {
	_, host, _, err := locate(repository)
	for _, f := range forges() {
		if err == nil && slices.Contains(f.hosts, host) {
			return f.name
		}
	}
	return ""
}

// locate finds the host of a repository's URL and its path there.
func locate(repository string) (scheme, host, path string, err error) {
	if !strings.Contains(repository, "://") {
		if at, rest, ok := strings.Cut(repository, ":"); ok && !strings.Contains(at, "/") { // git@host:path
			repository = "ssh://" + at + "/" + strings.TrimPrefix(rest, "/")
		}
	}
	u, err := url.Parse(repository)
	if err != nil || u.Host == "" {
		return "", "", "", errors.New("the remote origin is not a repository of a forge")
	}
	scheme, host = "https", u.Host
	switch ip := net.ParseIP(u.Hostname()); {
	case u.Scheme == "ssh":
		host = u.Hostname()
	case u.Scheme == "http" && (u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()):
		scheme = "http"
	case u.Scheme != "https":
		return "", "", "", fmt.Errorf("the remote origin has the scheme %s, and a token is sent by https only", u.Scheme)
	}
	path = strings.TrimSuffix(strings.Trim(u.Path, "/"), ".git")
	if owner, name, ok := strings.Cut(path, "/"); !ok || owner == "" || name == "" || strings.Contains(path, "..") || strings.ContainsFunc(path, unicode.IsControl) {
		return "", "", "", fmt.Errorf("the remote origin has the path %q, and not that of a repository of a forge", u.Path)
	}
	return scheme, strings.ToLower(host), path, nil
}

// open is a pull request as forges list them.
type open struct {
	Number      int    `json:"number"`
	IID         int    `json:"iid"` // of GitLab
	Title       string `json:"title"`
	Body        string `json:"body"`
	Description string `json:"description"` // of GitLab
	Merged      bool   `json:"merged"`      // of Gitea
	MergedAt    string `json:"merged_at"`

	URL    string `json:"html_url"`
	WebURL string `json:"web_url"` // of GitLab
	Head   struct {
		Ref string `json:"ref"`
		ID  int64  `json:"repo_id"` // of Gitea
	} `json:"head"`
	Base struct {
		Ref string `json:"ref"`
		ID  int64  `json:"repo_id"`
	} `json:"base"`
}

func (o open) url() string { return o.URL + o.WebURL }

// maxPages of open pull requests are looked through, with 50 on each.
const maxPages = 40

// maxAnswer is how much a forge may answer.
const maxAnswer = 8 << 20

// ask sends a request and reads the answer, which has to be a success.
func (r *Repository) ask(ctx context.Context, method, query string, body, into any) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var send io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		send = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, r.address+query, send)
	if err != nil {
		return err
	}
	request.Header.Set(r.forge.header, r.forge.prefix+r.token)
	request.Header.Set("Accept", "application/json")
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	answer, err := r.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", request.URL.Host, err)
	case len(text) > maxAnswer:
		return fmt.Errorf("%s answers more than %d bytes", request.URL.Host, maxAnswer)
	case answer.StatusCode/100 != 2:
		return fmt.Errorf("%s answers %s: %s", request.URL.Host, answer.Status, krm.Printable(strings.Join(strings.Fields(string(text[:min(len(text), 300)])), " ")))
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: reading its answer: %w", request.URL.Host, err)
	}
	return nil
}
