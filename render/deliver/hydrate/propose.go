package hydrate

import (
	"bytes"
	"cmp"
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

	"github.com/armature-dev/armature/functions/krm"
)

// Proposal is a pull request that merges a branch of the remote into another one.
type Proposal struct {
	// Forge is the kind of server that the remote is on: one of Forges.
	Forge string
	// Base is the branch to merge into, without refs/heads/.
	Base string
	// Title and Body of the pull request; empty ones describe what hydrate does.
	Title, Body string
	// Token of an account that may open pull requests. It is a secret, and is sent to the
	// remote's host alone.
	Token string
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

// Forges names the kinds of servers that pull requests are opened on, and the environment
// variable in which each has its token by convention.
func Forges() (names []string, variables map[string]string) {
	variables = make(map[string]string)
	for _, f := range forges() {
		names, variables[f.name] = append(names, f.name), strings.ToUpper(f.name)+"_TOKEN"
	}
	return names, variables
}

// ForgeOf is the kind of server of a repository's URL; "" where its name does not say so.
func ForgeOf(repository string) string {
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
	if owner, name, ok := strings.Cut(path, "/"); !ok || owner == "" || name == "" || strings.Contains(path, "..") || strings.ContainsFunc(path, isControl) {
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

// Propose opens a pull request that merges a commit of the branch, which is pushed, and gives
// its URL. One that is open already gets its text,
// if the proposal has one. Where there is nothing to merge, the URL
// is "".
func (b *Branch) Propose(ctx context.Context, commit string, p Proposal) (address string, opened bool, err error) {
	c, err := b.converse(ctx, p)
	if err != nil {
		return "", false, err
	}
	if merged, err := b.merged(ctx, commit, p.Base); err != nil || merged {
		return "", false, err
	}
	found, err := c.list(ctx, c.forge.open, b.Name, p.Base)
	if err != nil {
		return "", false, fmt.Errorf("looking for an open pull request: %w", err)
	}
	if len(found) > 0 {
		return found[0].url(), false, c.refresh(ctx, found[0], p)
	}
	var made open
	body := map[string]string{c.forge.head: b.Name, c.forge.base: p.Base, "title": cmp.Or(p.Title, "Hydrate "+p.Base),
		c.forge.body: cmp.Or(p.Body, "`armature hydrate` renders this branch. `hydrator.metadata` names the commit that it was rendered from.")}
	if err := c.ask(ctx, http.MethodPost, "", body, &made); err != nil {
		return "", false, fmt.Errorf("opening a pull request: %w", err)
	}
	return made.url(), true, nil
}

// refresh the text of a pull request that is open.
func (c conversation) refresh(ctx context.Context, o open, p Proposal) error {
	if p.Body == "" || o.Body+o.Description == p.Body && o.Title == p.Title {
		return nil
	}
	method := http.MethodPatch
	if c.forge.name == "gitlab" {
		method = http.MethodPut
	}
	err := c.ask(ctx, method, fmt.Sprintf("/%d", o.Number+o.IID), map[string]string{"title": p.Title, c.forge.body: p.Body}, &open{})
	if err != nil {
		return fmt.Errorf("changing the text of the pull request: %w", err)
	}
	return nil
}

// Refused gives the bodies of the pull requests from the branch that were closed and not
// merged, at most those of the newest 50 on each page that is looked through.
func (b *Branch) Refused(ctx context.Context, p Proposal) (bodies []string, err error) {
	c, err := b.converse(ctx, p)
	if err != nil {
		return nil, err
	}
	found, err := c.list(ctx, "closed", b.Name, p.Base)
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

// converse with the forge of the remote origin.
func (b *Branch) converse(ctx context.Context, p Proposal) (c conversation, err error) {
	i := slices.IndexFunc(forges(), func(f forge) bool { return f.name == p.Forge })
	if i < 0 {
		return c, fmt.Errorf("unknown forge %q", p.Forge)
	}
	c = conversation{forge: forges()[i], token: p.Token}
	remote, err := OriginURL(ctx, b.Folder)
	if err != nil {
		return c, err
	}
	scheme, host, repository, err := locate(remote)
	c.address = c.forge.address(scheme, host, repository)
	c.owner, _, _ = strings.Cut(repository, "/")
	return c, err
}

// list the pull requests of a state from a branch to another one, of the first page that has any.
func (c conversation) list(ctx context.Context, state, head, base string) (found []open, err error) {
	query := c.forge.query(state, c.owner, head, base)
	for page := 1; page <= maxPages; page++ {
		if page > 1 {
			query.Set("page", strconv.Itoa(page))
		}
		found = nil
		if err := c.ask(ctx, http.MethodGet, "?"+query.Encode(), nil, &found); err != nil {
			return nil, err
		}
		if c.forge.name != "gitea" {
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

// merged reports whether a branch of the remote has all that a commit has.
func (b *Branch) merged(ctx context.Context, commit, base string) (bool, error) {
	w := &writing{Branch: b, git: b.git()}
	ref := "refs/heads/" + base
	for range 3 {
		out, err := w.git.network(ctx, "ls-remote", "--quiet", origin, ref)
		if err != nil {
			return false, err
		}
		id, _, _ := strings.Cut(string(out), "\t")
		if !isHash(id) {
			return false, fmt.Errorf("the branch %s does not exist on %s, so that nothing can be merged into it", base, origin)
		}
		if here, err := w.fetch(ctx, map[string]string{ref: id}); err != nil {
			return false, err
		} else if !here {
			continue
		}
		trees, err := w.git.run(ctx, "", "rev-parse", id+"^{tree}", commit+"^{tree}")
		if err != nil {
			return false, err
		}
		if both := strings.Fields(string(trees)); len(both) == 2 && both[0] == both[1] {
			return true, nil
		}
		return w.git.yes(ctx, "merge-base", "--is-ancestor", commit, id)
	}
	return false, fmt.Errorf("the branch %s of %s changes faster than it can be fetched", base, origin)
}

// conversation is with the API of one repository.
type conversation struct {
	forge                 forge
	owner, token, address string
}

// maxAnswer is how much a forge may answer.
const maxAnswer = 8 << 20

// ask sends a request and reads the answer, which has to be a success.
func (c conversation) ask(ctx context.Context, method, query string, body, into any) error {
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
	r, err := http.NewRequestWithContext(ctx, method, c.address+query, send)
	if err != nil {
		return err
	}
	r.Header.Set(c.forge.header, c.forge.prefix+c.token)
	r.Header.Set("Accept", "application/json")
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
		return errors.New("a redirect is not followed, since it would take the token along")
	}}
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", r.URL.Host, err)
	case len(text) > maxAnswer:
		return fmt.Errorf("%s answers more than %d bytes", r.URL.Host, maxAnswer)
	case answer.StatusCode/100 != 2:
		return fmt.Errorf("%s answers %s: %s", r.URL.Host, answer.Status, krm.Printable(strings.Join(strings.Fields(string(text[:min(len(text), 300)])), " ")))
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: reading its answer: %w", r.URL.Host, err)
	}
	return nil
}
