package controller_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/api/keys"
)

// sshKey makes a key pair; the private half is in OpenSSH's form.
func (w *world) sshKey() (signer ssh.Signer, private []byte) {
	w.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	w.must(err)
	signer, err = ssh.NewSignerFromKey(key)
	w.must(err)
	block, err := ssh.MarshalPrivateKey(key, "")
	w.must(err)
	return signer, pem.EncodeToMemory(block)
}

// serveSSH answers git-upload-pack for repositories below a folder to whoever
// has the key.
func (w *world) serveSSH(host, user ssh.Signer, root string) (address string) {
	w.Helper()
	config := &ssh.ServerConfig{
		PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if string(key.Marshal()) != string(user.PublicKey().Marshal()) {
				return nil, errors.New("unknown key")
			}
			return nil, nil
		}}
	config.AddHostKey(host)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	w.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			raw, err := listener.Accept()
			if err != nil {
				return // closed
			}
			go serveSSHConnection(raw, config, root)
		}
	}()
	return listener.Addr().String()
}

func serveSSHConnection(raw net.Conn, config *ssh.ServerConfig, root string) {
	conn, channels, requests, err := ssh.NewServerConn(raw, config)
	if err != nil {
		_ = raw.Close()
		return
	}
	defer func() { _ = conn.Close() }()
	go ssh.DiscardRequests(requests)
	for open := range channels {
		channel, requests, err := open.Accept()
		if err != nil {
			return
		}
		for request := range requests {
			if request.Type != "exec" {
				_ = request.Reply(request.Type == "env", nil)
				continue
			}
			_ = request.Reply(true, nil)
			path := strings.Trim(strings.TrimPrefix(string(request.Payload[4:]), "git-upload-pack "), "'")
			cmd := exec.Command("git", "upload-pack", filepath.Join(root, path))
			stdin, err := cmd.StdinPipe()
			if err != nil {
				return
			}
			cmd.Stdout = channel
			if cmd.Start() != nil {
				return
			}
			go func() { _, _ = io.Copy(stdin, channel); _ = stdin.Close() }()
			_ = cmd.Wait()
			_, _ = channel.SendRequest("exit-status", false,
				ssh.Marshal(struct{ Status uint32 }{0}))
			_ = channel.Close()
		}
	}
}

// A revision over SSH is resolved with the Secret's key, and only from a server
// whose host key the Secret knows.
func TestGitOverSSH(t *testing.T) {
	w := newWorld(t)
	r := w.serveGit("") // for its repository; HTTP is not used
	host, _ := w.sshKey()
	user, private := w.sshKey()
	_, stranger := w.sshKey()
	other, _ := w.sshKey()
	address := w.serveSSH(host, user, filepath.Dir(r.dir))
	secret := func(name string, key []byte, known ssh.PublicKey) {
		w.must(w.Client.Create(w.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name,
				Annotations: hostsOfTests}, Type: corev1.SecretTypeSSHAuth,
			Data: map[string][]byte{"ssh-privatekey": key,
				"known_hosts": []byte(knownhosts.Line([]string{address}, known))},
		}))
	}
	secret("right", private, host.PublicKey())
	secret("stranger", stranger, host.PublicKey())
	secret("impostor", private, other.PublicKey())
	with := func(name string) func(*api.AgentBuild) {
		return func(b *api.AgentBuild) {
			b.Spec.Source = api.SourceSpec{
				SourceRepository:  "ssh://git@" + address + "/agent.git/.git",
				SourceRevision:    "main",
				SourceCredentials: &corev1.LocalObjectReference{Name: name}}
		}
	}
	w.start()
	w.create("stranger", with("stranger"))
	w.create("impostor", with("impostor"))
	for name, says := range map[string]string{"stranger": "refuses the login of Secret stranger",
		"impostor": "is not the one in the Secret's known_hosts"} {
		got := w.phase(name, api.PhaseFailed)
		if c := condition(got, api.ConditionReady); c.Reason != api.ReasonGitAuthInvalid ||
			!strings.Contains(c.Message, says) {
			t.Errorf("%s: %s %s", name, c.Reason, c.Message)
		}
	}
	w.create("right", with("right"))
	if got, want := w.run(1).Annotations[keys.AnnotationCommit], r.git("rev-parse", "main"); got != want {
		t.Errorf("main became %q, want %s", got, want)
	}
}
