// Package gitrepo holds the one form in which repositories of Git are cloned, attested and
// compared. What a URL means differs between Git, curl, servers and libraries where it
// has dot segments, encoded slashes or an '@' in its path; here such a URL is an error.
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

// Repository of Git. Two are the same to Git if they are equal; the zero value is none.
type Repository struct{ scheme, user, host, path string }

// Hint says how a repository is written.
const Hint = "write it like https://host/path, ssh://git@host/path or git@host:path, with each " +
	"character as itself and no '.' or '..' as a part of the path"

// maxLength of a repository, in bytes, as the CRD of AgentBuild has it.
const maxLength = 2048

var (
	hostForm = text.Pattern(
		`^[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*$`)
	userForm = text.Pattern(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)
	scpForm  = text.Pattern(`^([^@/:]*)@([^@/:]+):([^:]*)$`)
	digits   = text.Pattern(`^[0-9]+$`)
	// encoded is a percent-encoded space or a byte of a character beyond ASCII. All others
	// that a path may have are written as themselves.
	encoded = text.Pattern(`%(20|[89A-Fa-f][0-9A-Fa-f])`)
	// segment of a path, without what is encoded: the characters of RFC 3986 but '@'.
	segment = text.Pattern(`^[A-Za-z0-9._~!$&'()*+,;=:-]+$`)
)

// ports that a scheme implies.
var ports = map[string]string{"https": "443", "http": "80", "ssh": "22"}

// Parse a URL over https, http or ssh, the form git@host:path, or host/path, which means
// https. The error does not repeat the text, which may hold a password.
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

// parseSCP reads user@host:path. A path that does not begin with a slash is relative to a
// folder of the user's.
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

// parseHost returns a host in small letters, with its port unless that is the implied one.
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
	} else {
		if name, port, hasPort = strings.Cut(host, ":"); !hostForm().MatchString(name) {
			return "", errors.New("has no host of letters, digits, '-' and '.'")
		}
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

// parsePath without its first slash; one slash at the end makes no difference.
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

// Same reports whether two are one repository: the ending .git of a name makes no difference.
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
