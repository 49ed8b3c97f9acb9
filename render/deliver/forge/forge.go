// Package forge calls the APIs of servers that host Git repositories: permissions to push, statuses
// of commits, comments, pull requests, and commits that the server signs. It contains all
// differences between GitHub, GitLab and Gitea (with Forgejo). It uses their official clients, over
// one transport that enforces the limits.
package forge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/answers"
	"github.com/armature-dev/armature/render/gitrepo"
)

// These are the kinds of servers. Gitea includes Forgejo.
const (
	GitHub = "github"
	GitLab = "gitlab"
	Gitea  = "gitea"
)

// Dial opens connections. Nil means any address.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// Clients opens repositories on forges. It counts the rate limits of a credential across all
// repositories that it opened, so that a process needs only one.
type Clients struct {
	// Dial opens connections. Nil means any address.
	Dial Dial

	mu       sync.Mutex
	accounts *cache.LRUExpireCache // of *account, by the hash of a credential
	memory   *answers.Budget
}

// Open opens a repository by its URL. kind is one of Names, or empty if the host determines it.
func (c *Clients) Open(kind, repository string, login Credential) (Forge, error) {
	r, err := c.open(kind, repository, login)
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (c *Clients) open(kind, address string, login Credential) (r repository, err error) {
	kind = cmp.Or(kind, Of(address))
	i := slices.IndexFunc(kinds(), func(k kindOf) bool { return k.name == kind })
	if names, _ := Names(); kind == "" {
		return r, fmt.Errorf("name the kind of server of the repository: %s", strings.Join(names, ", "))
	} else if i < 0 {
		return r, fmt.Errorf("unknown forge %q", kind)
	}
	k := kinds()[i]
	scheme, host, path, err := locate(address)
	switch {
	case err != nil:
		return r, err
	case login.App != nil && kind != GitHub:
		return r, fmt.Errorf("%s has no Apps: use a token", kind)
	case login.App == nil && login.Token == "":
		return r, errors.New("the credential has no token")
	}
	at := remote{path: path, login: login}
	at.owner, at.name, _ = strings.Cut(path, "/")
	if kind != GitLab && (!segment().MatchString(at.owner) || !segment().MatchString(at.name)) {
		return r, fmt.Errorf("%q is not the path of a repository on %s", path, kind)
	}
	at.api = &url.URL{Scheme: scheme, Host: host, Path: k.api}
	if host == k.host && k.public != "" {
		at.api.Host, at.api.Path = k.public, k.publicPath
	}
	at.account = c.account(kind, at.api.Host, login)
	at.transport = &transport{
		scheme: scheme, host: at.api.Host, account: at.account, login: login, memory: c.memory,
		RoundTripper: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: c.Dial, ForceAttemptHTTP2: true,
			IdleConnTimeout: 10 * time.Second, TLSHandshakeTimeout: 10 * time.Second,
			MaxResponseHeaderBytes: 1 << 20,
		},
	}
	r.server, err = k.open(at)
	r.kind, r.maxComment = kind, k.maxComment
	return r, err
}

// CredentialOf parses the data of a Secret of a namespace: a GitHub App with Flux's names of
// fields, a token, or a password with its username.
func CredentialOf(namespace string, data map[string][]byte) (c Credential, err error) {
	c.Namespace = namespace
	text := func(name string) string { return strings.TrimSpace(string(data[name])) }
	if text("githubAppID") != "" {
		c.App = &App{Key: data["githubAppPrivateKey"]}
		if c.App.ID, err = strconv.ParseInt(text("githubAppID"), 10, 64); err != nil {
			return c, errors.New("githubAppID is not a number")
		}
		installation := cmp.Or(text("githubAppInstallationID"), "0")
		if c.App.Installation, err = strconv.ParseInt(installation, 10, 64); err != nil {
			return c, errors.New("githubAppInstallationID is not a number")
		}
		return c, nil
	}
	if c.Token = cmp.Or(text("token"), text("password")); c.Token == "" {
		return c, errors.New("it has neither a token, a password nor a githubAppID")
	}
	return c, nil
}

// segment matches a segment of a path, which names an owner or a repository.
var segment = text.Pattern(`^[A-Za-z0-9~_][A-Za-z0-9._-]{0,255}$`)

// remote is one repository, with the transport to its server.
type remote struct {
	path, owner, name string
	api               *url.URL // ends in a slash
	login             Credential
	account           *account
	transport         *transport
}

// kindOf is a kind of server.
type kindOf struct {
	name, host string // host is the public server of this kind
	// api is the path of the API. The API of the public server is at publicPath of the host public.
	api, public, publicPath string
	open                    func(remote) (server, error)
	maxComment              int // bytes
}

func kinds() []kindOf {
	return []kindOf{
		{GitHub, "github.com", "/api/v3/", "api.github.com", "/", openGitHub, 65_000},
		{GitLab, "gitlab.com", "/api/v4/", "", "", openGitLab, 900_000},
		{Gitea, "gitea.com", "/", "", "", openGitea, 65_000},
	}
}

// Names returns the kinds of servers, and the conventional environment variable for the token of
// each.
func Names() (names []string, variables map[string]string) {
	variables = make(map[string]string)
	for _, k := range kinds() {
		names = append(names, k.name)
		variables[k.name] = strings.ToUpper(k.name) + "_TOKEN"
	}
	return names, variables
}

// Of returns the kind of server in a repository's URL, or "" if the host does not determine it.
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

// locate returns the host in a repository's URL and its path there. It accepts the URLs of gitrepo,
// and those of Git remotes, which may have a login or lack the user before host:path.
func locate(repository string) (scheme, host, path string, err error) {
	if r, err := gitrepo.Parse(repository); err == nil {
		repository = r.String()
	}
	if !strings.Contains(repository, "://") {
		// git@host:path
		if at, rest, ok := strings.Cut(repository, ":"); ok && !strings.Contains(at, "/") {
			if number, _, _ := strings.Cut(rest, "/"); number != "" &&
				strings.Trim(number, "0123456789") == "" {
				return "", "", "", errors.New("the remote origin has a number after the host, " +
					"which some programs read as a port: write it as ssh://")
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
		err := fmt.Errorf("the remote origin has the scheme %s, and a token is sent by https only",
			u.Scheme)
		return "", "", "", err
	}
	path = strings.TrimSuffix(strings.Trim(u.Path, "/"), ".git")
	owner, name, _ := strings.Cut(path, "/")
	if owner == "" || name == "" || strings.Contains(path, "..") ||
		strings.ContainsFunc(path, unicode.IsControl) {
		err := fmt.Errorf(
			"the remote origin has the path %q, and not that of a repository of a forge", u.Path)
		return "", "", "", err
	}
	return scheme, strings.ToLower(host), path, nil
}
