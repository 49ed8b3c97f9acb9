// Package gitrepo parses Git repositories into the canonical form in which they are cloned,
// attested and compared. Git, curl, servers and libraries interpret URLs differently that have dot
// segments, encoded slashes or an '@' in their path; here these URLs are errors.
package gitrepo

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/text"
)

// Repository is a Git repository. Equal values are the same repository. The zero value is none.
type Repository struct{ scheme, user, host, path string }

// Hint describes how a repository is written.
const Hint = "write it like https://host/path, ssh://git@host/path or git@host:path, with each " +
	"character as itself and no '.' or '..' as a part of the path"

// maxLength is the longest repository, in bytes, as in the CRD of AgentBuild.
const maxLength = 2048

var (
	hostForm = text.Pattern(
		`^[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*$`)
	userForm = text.Pattern(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)
	scpForm  = text.Pattern(`^([^@/:]*)@([^@/:]+):([^:]*)$`)
	digits   = text.Pattern(`^[0-9]+$`)
	// encoded matches a percent-encoded space or byte of a character beyond ASCII. Other characters
	// of a path must not be encoded.
	encoded = text.Pattern(`%(20|[89A-Fa-f][0-9A-Fa-f])`)
	// segment matches a segment of a path without encoded characters: those of RFC 3986 except '@'.
	segment = text.Pattern(`^[A-Za-z0-9._~!$&'()*+,;=:-]+$`)
)

// ports are the default ports of the schemes.
var ports = map[string]string{"https": "443", "http": "80", "ssh": "22"}

// Parse parses a URL over https, http or ssh, the form git@host:path, or host/path, which means
// https. The error does not repeat the text, which may contain a password.
func Parse(text string) (Repository, error) {
	if len(text) > maxLength {
		return Repository{}, fmt.Errorf("has more than %d characters", maxLength)
	}
	if m := scpForm().FindStringSubmatch(text); m != nil {
		return parseSCP(m[1], m[2], m[3])
	}
	scheme, rest, found := strings.Cut(text, "://")
	if !found {
		scheme, rest = "https", text
	}
	r := Repository{scheme: strings.ToLower(scheme)}
	if ports[r.scheme] == "" {
		return Repository{}, errors.New("is not a Git URL over https or ssh")
	}
	authority, name, _ := strings.Cut(rest, "/")
	user, host, hasUser := strings.Cut(authority, "@")
	switch {
	case !hasUser:
		user, host = "", authority
	case r.scheme != "ssh":
		return Repository{}, errors.New("names a user before the host, where a login may be: " +
			"remove it, and name a Secret in sourceCredentials")
	case !userForm().MatchString(user):
		return Repository{}, errors.New("has a user that is not a plain name")
	}
	host, err := parseHost(host, ports[r.scheme])
	if err == nil {
		name, err = parsePath(name)
	}
	if err != nil {
		return Repository{}, err
	}
	r.user, r.host, r.path = user, host, "/"+name
	return r, nil
}

// parseSCP parses user@host:path. A path that does not begin with a slash is relative to the home
// folder of the user.
func parseSCP(user, host, name string) (_ Repository, err error) {
	r := Repository{scheme: "ssh", user: user}
	if !userForm().MatchString(user) {
		return Repository{}, errors.New("has a user that is not a plain name")
	}
	if r.host, err = parseHost(host, ""); err != nil {
		return Repository{}, err
	}
	relative, absolute := strings.CutPrefix(name, "/")
	if r.path, err = parsePath(relative); err != nil {
		return Repository{}, err
	}
	first, _, _ := strings.Cut(r.path, "/")
	switch {
	case absolute:
		r.path = "/" + r.path
	case digits().MatchString(first):
		return Repository{}, errors.New(
			"has a number after the host, which some programs read as a port: write it as ssh://")
	case strings.HasPrefix(first, "-"), strings.Contains(r.path, "%"):
		return Repository{}, errors.New("has a path that is not of plain names")
	}
	return r, nil
}

// parseHost returns a host in lower case, with its port unless that is the implied one.
func parseHost(host, implied string) (string, error) {
	host = strings.ToLower(host)
	name, port, hasPort := host, "", false
	if end := strings.LastIndex(host, "]"); end >= 0 {
		name, port, hasPort = host[:end+1], strings.TrimPrefix(host[end+1:], ":"), host[end+1:] != ""
		address, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(name, "["), "]"))
		if err != nil || !address.Is6() || address.Zone() != "" || hasPort && host[end+1] != ':' {
			return "", errors.New("has a host in brackets that is not an IPv6 address")
		}
		name = "[" + address.String() + "]"
	} else if name, port, hasPort = strings.Cut(host, ":"); !hostForm().MatchString(name) {
		return "", errors.New("has no host of letters, digits, '-' and '.'")
	}
	if !hasPort {
		return name, nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
		return "", errors.New("has a port that is not a number from 1 to 65535")
	}
	if port == implied {
		return name, nil
	}
	return name + ":" + port, nil
}

// parsePath parses a path without its first slash. It ignores one slash at the end.
func parsePath(text string) (string, error) {
	text = strings.TrimSuffix(text, "/")
	if text == "" {
		return "", errors.New("has no path")
	}
	for _, part := range strings.Split(text, "/") {
		switch plain := encoded().ReplaceAllString(part, "x"); {
		case part == "":
			return "", errors.New("has an empty part in its path")
		case part == ".", part == "..":
			return "", errors.New("has the part '.' or '..' in its path")
		case strings.Contains(plain, "%"):
			return "", errors.New(
				"has a character in its path that is percent-encoded, and need not be")
		case strings.Contains(plain, "@"):
			return "", errors.New("has an '@' in its path")
		case strings.ContainsAny(plain, "?#"):
			return "", errors.New("has a query or a fragment")
		case !segment().MatchString(plain):
			return "", errors.New("has a character in its path that URLs of Git do not have")
		}
	}
	return encoded().ReplaceAllStringFunc(text, strings.ToUpper), nil
}

// String returns the URL to clone, which Parse parses to the same repository.
func (r Repository) String() string {
	switch {
	case r == Repository{}:
		return ""
	case !path.IsAbs(r.path):
		return r.user + "@" + r.host + ":" + r.path
	case r.user != "":
		return r.scheme + "://" + r.user + "@" + r.host + r.path
	}
	return r.scheme + "://" + r.host + r.path
}

// Same reports whether two repositories are the same, ignoring the ending .git of their names.
func (r Repository) Same(other Repository) bool {
	r.path, other.path = bare(r.path), bare(other.path)
	return r == other
}

func bare(name string) string {
	if dir, base := path.Split(name); len(base) > len(".git") {
		return dir + strings.TrimSuffix(base, ".git")
	}
	return name
}
