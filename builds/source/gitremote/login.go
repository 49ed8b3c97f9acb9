package gitremote

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"github.com/skeema/knownhosts"
	corev1 "k8s.io/api/core/v1"

	"github.com/armature-dev/armature/functions/multi"
)

// LoginError is a Secret without a login for a repository. It has none of the Secret's text.
type LoginError struct{ Message, Hint string }

func (e *LoginError) Error() string { return e.Message + "\n  hint: " + e.Hint }

// Login of a repository from the data of a Secret: ssh-privatekey and known_hosts for SSH,
// otherwise token or password. user is that of the token; if empty, it is the Secret's
// username or git.
func Login(
	endpoint *transport.Endpoint, user, secret string, data map[string][]byte,
) (transport.AuthMethod, *LoginError) {
	if endpoint.Protocol == "ssh" {
		key, hosts := data[corev1.SSHAuthPrivateKey], data["known_hosts"]
		if len(key) == 0 || len(hosts) == 0 {
			return nil, &LoginError{fmt.Sprintf("Secret %s lacks ssh-privatekey or known_hosts",
				secret),
				"put the key under ssh-privatekey and the output of ssh-keyscan under known_hosts"}
		}
		auth, err := ssh.NewPublicKeys(cmp.Or(endpoint.User, "git"), key, "")
		if err != nil {
			return nil, &LoginError{fmt.Sprintf("the ssh-privatekey of Secret %s cannot be read",
				secret),
				"use a private key without a passphrase"}
		}
		known, err := hostKeys(hosts)
		if err != nil {
			return nil, &LoginError{fmt.Sprintf("the known_hosts of Secret %s cannot be read",
				secret),
				"use the output of ssh-keyscan"}
		}
		auth.HostKeyCallback = known.HostKeyCallback()
		auth.HostKeyAlgorithms = known.HostKeyAlgorithms(endpoint.Host + ":" +
			strconv.Itoa(cmp.Or(endpoint.Port, 22)))
		return auth, nil
	}
	password := Token(data)
	if password == "" {
		return nil, &LoginError{fmt.Sprintf("Secret %s has neither a password nor a token", secret),
			"put the token under token, or use a Secret of type kubernetes.io/basic-auth"}
	}
	user = cmp.Or(user, strings.TrimSpace(string(data[corev1.BasicAuthUsernameKey])), "git")
	return &http.BasicAuth{Username: user, Password: password}, nil
}

// Token of a Secret's data, or else its password; empty for none.
func Token(data map[string][]byte) string {
	return strings.TrimSpace(cmp.Or(string(data["token"]),
		string(data[corev1.BasicAuthPasswordKey])))
}

// hostKeys reads the lines of a known_hosts file. The library reads files only,
// and these lines are not secret.
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
