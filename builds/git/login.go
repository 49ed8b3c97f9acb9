package git

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

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/multi"
)

// login returns the credentials of a Secret. Findings and errors have none of its text.
func login(b *api.AgentBuild, endpoint *transport.Endpoint, secret *corev1.Secret) (transport.AuthMethod, *krm.Finding) {
	invalid := func(message, hint string) (transport.AuthMethod, *krm.Finding) {
		return nil, compose.Place(b).At("spec.source.sourceCredentials.name").Fault(api.ReasonSecretInvalid, message, hint)
	}
	if endpoint.Protocol == "ssh" {
		if secret == nil {
			return nil, compose.Place(b).At("spec.source.sourceCredentials").Fault(api.ReasonRepositoryPrivate, "a repository over SSH needs a Secret",
				"name a Secret of type kubernetes.io/ssh-auth with known_hosts")
		}
		key, hosts := secret.Data[corev1.SSHAuthPrivateKey], secret.Data["known_hosts"]
		if len(key) == 0 || len(hosts) == 0 {
			return invalid(fmt.Sprintf("Secret %s lacks ssh-privatekey or known_hosts", secret.Name),
				"put the key under ssh-privatekey and the output of ssh-keyscan under known_hosts")
		}
		auth, err := ssh.NewPublicKeys(cmp.Or(endpoint.User, "git"), key, "")
		if err != nil {
			return invalid(fmt.Sprintf("the ssh-privatekey of Secret %s cannot be read", secret.Name),
				"use a private key without a passphrase")
		}
		known, err := hostKeys(hosts)
		if err != nil {
			return invalid(fmt.Sprintf("the known_hosts of Secret %s cannot be read", secret.Name),
				"use the output of ssh-keyscan")
		}
		auth.HostKeyCallback = known.HostKeyCallback()
		auth.HostKeyAlgorithms = known.HostKeyAlgorithms(endpoint.Host + ":" + strconv.Itoa(cmp.Or(endpoint.Port, 22)))
		return auth, nil
	}
	if secret == nil {
		return nil, nil
	}
	user := cmp.Or(b.Spec.Source.RepoUser, strings.TrimSpace(string(secret.Data[corev1.BasicAuthUsernameKey])), "git")
	password := strings.TrimSpace(cmp.Or(string(secret.Data["token"]), string(secret.Data[corev1.BasicAuthPasswordKey])))
	if password == "" {
		return invalid(fmt.Sprintf("Secret %s has neither a password nor a token", secret.Name),
			"put the token under token, or use a Secret of type kubernetes.io/basic-auth")
	}
	return &http.BasicAuth{Username: user, Password: password}, nil
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
