package gitremote

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"github.com/skeema/knownhosts"
	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/functions/multi"
)

// LoginError reports a Secret without a login for a repository. It repeats no text of the Secret.
type LoginError struct{ Message, Hint string }

func (e *LoginError) Error() string { return e.Message + "\n  hint: " + e.Hint }

// hostAnnotation is the prefix of annotations that name the hosts that a Secret is for, as in
// Tekton. A number follows it.
const hostAnnotation = "tekton.dev/git-"

// Take returns the data of a Secret if it may be sent to a repository. A build names both, so that
// a Secret is sent only to hosts that its own annotations name, and over http only to those in
// plainHTTP, with or without a port.
func Take(secret *corev1.Secret, address string,
	plainHTTP []string) (map[string][]byte, *LoginError) {
	endpoint, unfit := MayHave(secret, address)
	if unfit == nil && endpoint.Protocol == "http" && !names(plainHTTP, endpoint) {
		unfit = &LoginError{fmt.Sprintf("a login is not sent to %s over plain http",
			hostOf(endpoint)),
			"use https or ssh, or let the operator name the host in --plain-http-hosts of " +
				"the controller"}
	}
	if unfit != nil {
		return nil, unfit
	}
	return secret.Data, nil
}

// MayHave returns the endpoint of a repository, or why a Secret may not be sent to its host over
// any protocol.
func MayHave(secret *corev1.Secret, address string) (*transport.Endpoint, *LoginError) {
	endpoint, err := transport.NewEndpoint(address)
	if err != nil || endpoint.Host == "" {
		return nil, &LoginError{"the repository has no host that a login could be sent to",
			"write it like https://host/path"}
	}
	var hosts []string
	for name, value := range secret.Annotations {
		if strings.HasPrefix(name, hostAnnotation) {
			hosts = append(hosts, hostIn(value))
		}
	}
	host := hostOf(endpoint)
	hint := fmt.Sprintf("if it is for that host: kubectl annotate secret %s -n %s %s0=https://%s",
		secret.Name, secret.Namespace, hostAnnotation, host)
	switch {
	case len(hosts) == 0:
		text := fmt.Sprintf("Secret %s names no host that it is for, and is not sent to %s",
			secret.Name, host)
		return nil, &LoginError{text, hint}
	case !names(hosts, endpoint):
		return nil, &LoginError{
			fmt.Sprintf("Secret %s is not for %s, but for the hosts that its annotations %sN name",
				secret.Name, host, hostAnnotation), hint}
	}
	return endpoint, nil
}

// hostIn returns the host in an annotation, which is a URL or a host with or without a port.
func hostIn(value string) string {
	if u, err := url.Parse(value); err == nil && u.Host != "" {
		return strings.ToLower(u.Host)
	}
	value, _, _ = strings.Cut(value, "/")
	return strings.ToLower(value)
}

// hostOf returns the host of an endpoint, with its port unless it is the default.
func hostOf(e *transport.Endpoint) string {
	if e.Port == 0 || e.Port == map[string]int{"https": 443, "http": 80, "ssh": 22}[e.Protocol] {
		return e.Host
	}
	return net.JoinHostPort(strings.Trim(e.Host, "[]"), strconv.Itoa(e.Port))
}

// names reports whether hosts include that of an endpoint. A host without a port matches all ports.
func names(hosts []string, e *transport.Endpoint) bool {
	return slices.ContainsFunc(hosts, func(host string) bool {
		allPorts := strings.EqualFold(strings.Trim(host, "[]"), strings.Trim(e.Host, "[]"))
		return host != "" && (allPorts || strings.EqualFold(host, hostOf(e)))
	})
}

// Login returns the login of a repository from the data of a Secret: ssh-privatekey and known_hosts
// for SSH, token or password otherwise. user is the user of the token, and defaults to the Secret's
// username or git.
func Login(endpoint *transport.Endpoint, user, secret string,
	data map[string][]byte) (transport.AuthMethod, *LoginError) {
	unfit := func(problem, hint string) (transport.AuthMethod, *LoginError) {
		return nil, &LoginError{fmt.Sprintf(problem, secret), hint}
	}
	if endpoint.Protocol == "ssh" {
		key, hosts := data[corev1.SSHAuthPrivateKey], data["known_hosts"]
		if len(key) == 0 || len(hosts) == 0 {
			return unfit("Secret %s lacks ssh-privatekey or known_hosts",
				"put the key under ssh-privatekey and the output of ssh-keyscan under known_hosts")
		}
		auth, err := ssh.NewPublicKeys(cmp.Or(endpoint.User, "git"), key, "")
		if err != nil {
			return unfit("the ssh-privatekey of Secret %s cannot be read",
				"use a private key without a passphrase")
		}
		known, err := hostKeys(hosts)
		if err != nil {
			return unfit("the known_hosts of Secret %s cannot be read",
				"use the output of ssh-keyscan")
		}
		auth.HostKeyCallback = known.HostKeyCallback()
		auth.HostKeyAlgorithms = known.HostKeyAlgorithms(endpoint.Host + ":" +
			strconv.Itoa(cmp.Or(endpoint.Port, 22)))
		return auth, nil
	}
	password := Token(data)
	if password == "" {
		return unfit("Secret %s has neither a password nor a token",
			"put the token under token, or use a Secret of type kubernetes.io/basic-auth")
	}
	user = cmp.Or(user, strings.TrimSpace(string(data[corev1.BasicAuthUsernameKey])), "git")
	return &http.BasicAuth{Username: user, Password: password}, nil
}

// Token returns the token in a Secret's data, or else its password, or "".
func Token(data map[string][]byte) string {
	return strings.TrimSpace(cmp.Or(string(data["token"]),
		string(data[corev1.BasicAuthPasswordKey])))
}

// hostKeys reads the lines of a known_hosts file through a temporary one, because the library reads
// only files. The lines are not secret.
func hostKeys(lines []byte) (*knownhosts.HostKeyDB, error) {
	file, err := os.CreateTemp("", "known_hosts-")
	if err != nil {
		return nil, err
	}
	_, err = file.Write(lines)
	if err := multi.Errors(err, file.Close()); err != nil {
		return nil, multi.Errors(err, os.Remove(file.Name()))
	}
	known, err := ssh.NewKnownHostsDb(file.Name())
	return known, multi.Errors(err, os.Remove(file.Name()))
}
