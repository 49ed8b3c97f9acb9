// Package forge asks the servers that host Git repositories for what Git has no words for:
// who may push, statuses of commits, comments, pull requests, and commits that the server
// signs. It is the only place that knows how GitHub, GitLab and Gitea (with Forgejo) differ.
// They are asked with their official clients, over one transport that has the limits of all.
package forge

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/armature-dev/armature/render/answers"
	"github.com/armature-dev/armature/render/gitrepo"
)

// The kinds of servers. Gitea is Forgejo too.
const (
	GitHub = "github"
	GitLab = "gitlab"
	Gitea  = "gitea"
)

// Dial opens connections; nil is the network as it is.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// Clients opens repositories on forges. What a server allows one credential is counted once
// for all repositories that it opened, so that a process has one of these.
type Clients struct {
	// Dial opens connections; nil is the network as it is.
	Dial Dial

	mu       sync.Mutex
	accounts map[[sha256.Size]byte]*account
	memory   *answers.Budget
}

// Open a repository by its URL, on a server of a kind that Names lists.
func (c *Clients) Open(kind, repository string, login Credential) (Forge, error) {
	i := slices.IndexFunc(kinds(), func(k kindOf) bool { return k.name == kind })
	if i < 0 {
		return nil, fmt.Errorf("unknown forge %q", kind)
	}
	k := kinds()[i]
	scheme, host, path, err := locate(repository)
	switch {
	case err != nil:
		return nil, err
	case login.App != nil && kind != GitHub:
		return nil, fmt.Errorf("%s has no Apps: use a token", kind)
	case login.App == nil && login.Token == "":
		return nil, errors.New("the credential has no token")
	}
	at := remote{path: path, login: login}
	var rest string
	if at.owner, at.name, _ = strings.Cut(path, "/"); kind != GitLab {
		if _, rest, _ = strings.Cut(at.name, "/"); rest != "" || !segment().MatchString(at.owner) || !segment().MatchString(at.name) {
			return nil, fmt.Errorf("%q is not the path of a repository on %s", path, kind)
		}
	}
	at.api = &url.URL{Scheme: scheme, Host: host, Path: k.api}
	if host == k.host && k.public != "" {
		at.api.Host, at.api.Path = k.public, k.publicPath
	}
	at.account = c.account(kind, at.api.Host, login)
	at.transport = &transport{scheme: scheme, host: at.api.Host, account: at.account, login: login, memory: c.memory, RoundTripper: &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: c.Dial, ForceAttemptHTTP2: true, IdleConnTimeout: 10 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second, MaxResponseHeaderBytes: 1 << 20,
	}}
	return k.open(at)
}

// CredentialOf the data of a Secret of a namespace: a GitHub App as Flux names its fields, a
// token, or a password with its username.
func CredentialOf(namespace string, data map[string][]byte) (c Credential, err error) {
	c.Namespace = namespace
	text := func(name string) string { return strings.TrimSpace(string(data[name])) }
	if text("githubAppID") != "" {
		c.App = &App{Key: data["githubAppPrivateKey"]}
		if c.App.ID, err = strconv.ParseInt(text("githubAppID"), 10, 64); err != nil {
			return c, errors.New("githubAppID is not a number")
		}
		if c.App.Installation, err = strconv.ParseInt(cmp.Or(text("githubAppInstallationID"), "0"), 10, 64); err != nil {
			return c, errors.New("githubAppInstallationID is not a number")
		}
		return c, nil
	}
	if c.Token = text("token"); c.Token == "" {
		c.Token, c.User = text("password"), text("username")
	}
	if c.Token == "" {
		return c, errors.New("it has neither a token, a password nor a githubAppID")
	}
	return c, nil
}

// segment of a path, which names an owner or a repository.
var segment = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9~_][A-Za-z0-9._-]{0,255}$`) })

// remote is one repository, and how it is asked.
type remote struct {
	path, owner, name string
	api               *url.URL // ends in a slash
	login             Credential
	account           *account
	transport         *transport
}

// kindOf server.
type kindOf struct {
	name, host string // host that is known to be of this kind
	// api is the path of the API, or publicPath on the host public for the known host.
	api, public, publicPath string
	open                    func(remote) (Forge, error)
}

func kinds() []kindOf {
	return []kindOf{
		{GitHub, "github.com", "/api/v3/", "api.github.com", "/", openGitHub},
		{GitLab, "gitlab.com", "/api/v4/", "", "", openGitLab},
		{Gitea, "gitea.com", "/", "", "", openGitea},
	}
}

// Names of the kinds of servers, and the environment variable in which each has its token by
// convention.
func Names() (names []string, variables map[string]string) {
	variables = make(map[string]string)
	for _, k := range kinds() {
		names = append(names, k.name)
		variables[k.name] = strings.ToUpper(k.name) + "_TOKEN"
	}
	return names, variables
}

// Of is the kind of server of a repository's URL; "" where its name does not show it.
func Of(repository string) string {
	_, host, _, err := locate(repository)
	if err != nil {
		return ""
	}
	if host == "codeberg.org" {
		return Gitea
	}
	for _, k := range kinds() {
		if k.host == host {
			return k.name
		}
	}
	return ""
}

// locate finds the host of a repository's URL and its path there. What gitrepo reads is read
// as there; remotes may also have a login, or lack the user before host:path.
func locate(repository string) (scheme, host, path string, err error) {
	if r, err := gitrepo.Parse(repository); err == nil {
		repository = r.String()
	}
	if !strings.Contains(repository, "://") {
		if at, rest, ok := strings.Cut(repository, ":"); ok && !strings.Contains(at, "/") { // git@host:path
			if number, _, _ := strings.Cut(rest, "/"); number != "" && strings.Trim(number, "0123456789") == "" {
				return "", "", "", errors.New("the remote origin has a number after the host, which some programs read as a port: write it as ssh://")
			}
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

// What callers give goes into addresses and queries.
var (
	fullCommit = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)
	userName   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9:._-]{0,127}(\[bot\])?$`) })
	markerForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9/._:-]{1,200}$`) })
)

// comments are the calls of one server for the comments of a pull request.
type comments struct {
	// list a page of comments, from 1, with those of this account marked.
	list func(page int) (found []comment, more bool, err error)
	add  func(body string) error
	// edit and remove a comment.
	edit   func(c comment, body string) error
	remove func(c comment) error
	most   int // bytes of a comment
}

type comment struct {
	id   int64
	mine bool
	body string
}

const maxPages = 40 // of anything that a server lists

// put a part of the one comment of this account. What other parts have stays.
func (c comments) put(part, body string) error {
	if !markerForm().MatchString(part) {
		return fmt.Errorf("%q cannot mark a comment", part)
	}
	const first, prefix, suffix = "<!-- armature -->", "<!-- armature: ", " -->"
	var ours []comment
	seen := make(map[int64]bool) // a server may have one page only, whatever it is asked for
	for page, more := 1, true; more && page <= maxPages; page++ {
		found, next, err := c.list(page)
		if err != nil {
			return fmt.Errorf("listing the comments: %w", err)
		}
		before := len(seen)
		for _, f := range found {
			f.body = strings.ReplaceAll(f.body, "\r", "")
			if !seen[f.id] && f.mine && strings.HasPrefix(f.body, first+"\n") {
				ours = append(ours, f)
			}
			seen[f.id] = true
		}
		more = next && len(seen) > before
	}
	parts, at := make(map[string]string), ""
	if len(ours) > 0 {
		for text := range strings.Lines(ours[0].body) {
			if name, ok := strings.CutPrefix(strings.TrimSpace(text), prefix); ok {
				at = strings.TrimSuffix(name, suffix)
			} else if at != "" {
				parts[at] += text
			}
		}
	}
	parts[part] = strings.ReplaceAll(body, prefix, prefix[:len(prefix)-2]+"; ") // or it could begin another part
	want := first + "\n"
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		if text := strings.TrimSpace(parts[name]); text != "" {
			want += fmt.Sprintf("\n%s%s%s\n\n%s\n", prefix, name, suffix, cut(text, c.most/len(parts)-len(prefix)-250))
		}
	}
	empty := want == first+"\n"
	for i, f := range ours {
		var err error
		switch {
		case empty || i > 0: // two writers may both have added one
			err = c.remove(f)
		case strings.TrimSpace(f.body) != strings.TrimSpace(want):
			err = c.edit(f, want)
		}
		if err != nil {
			return fmt.Errorf("changing the comment: %w", err)
		}
	}
	if empty || len(ours) > 0 {
		return nil
	}
	if err := c.add(want); err != nil {
		return fmt.Errorf("writing the comment: %w", err)
	}
	return nil
}

// propose finds the open pull request, and creates or changes it.
func propose(ctx context.Context, f Forge, p Proposal, create func() (*PullRequest, error), change func(number int) error) (*PullRequest, bool, error) {
	find := func() (*PullRequest, error) {
		all, err := f.PullRequests(ctx, p.Head)
		for _, one := range all {
			if one.Open && one.Base == p.Base && !one.Fork {
				return &one, nil
			}
		}
		return nil, err
	}
	there, err := find()
	if err != nil {
		return nil, false, fmt.Errorf("looking for an open pull request: %w", err)
	}
	if there == nil {
		made, failed := create()
		if failed == nil {
			return made, true, nil
		}
		// It may exist since: another writer was faster, or an answer was lost.
		if there, err = find(); err != nil || there == nil {
			return nil, false, fmt.Errorf("opening a pull request: %w", failed)
		}
	}
	if !p.Refresh || there.Title == p.Title && strings.TrimSpace(there.Body) == strings.TrimSpace(p.Body) {
		return there, false, nil
	}
	if err := change(there.Number); err != nil {
		return nil, false, fmt.Errorf("changing the text of the pull request: %w", err)
	}
	return there, false, nil
}

// moved is ErrMoved if a commit was refused because its branch is not at was any longer, and
// otherwise the refusal.
func moved(refused error, was string, tip func() (string, error)) error {
	if !errors.Is(refused, ErrRefused) && !errors.Is(refused, ErrNotFound) {
		return refused
	}
	if now, err := tip(); err == nil && now != was {
		return fmt.Errorf("%w: %w", ErrMoved, refused)
	}
	return refused
}

// cut a text to a number of bytes at a character.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-len("…")], "") + "…"
}

// line of a text for a description.
func line(text string, most int) string {
	return cut(strings.Join(strings.Fields(text), " "), most)
}
