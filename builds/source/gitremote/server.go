// Package gitremote talks to Git servers in Git's own protocol. Git servers are not trusted: their
// answers are bounded in size and time. It uses the messages and packs of go-git, but not its
// client, which bounds neither, dials any address, and compares the hash that a push replaces with
// an earlier fetch instead of leaving that to the server.
package gitremote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/transport"
	gitssh "github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"github.com/go-git/go-git/v5/utils/ioutil"
	"golang.org/x/crypto/ssh"

	"github.com/armature-dev/armature/builds/source/commit"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/answers"
)

// Dial opens connections to Git servers, and refuses addresses that tenants may not contact.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// ErrForbiddenAddress is the error of a Dial that refuses an address.
var ErrForbiddenAddress = errors.New("the address may not be contacted")

const (
	// maxRefs bounds the references that a server advertises, in bytes: about 100,000 of them.
	maxRefs = 8 << 20
	// maxGitError bounds the body of an error answer, in bytes.
	maxGitError = 64 << 10
	// maxWords bounds the part of a program's standard error that is kept, in bytes.
	maxWords = 1 << 10
)

// ErrRefsTooLarge reports more references than maxRefs allows.
var ErrRefsTooLarge = fmt.Errorf("the answer has more than %d MiB", maxRefs>>20)

// httpClient returns a client that reads at most objects bytes of an answer with objects, and at
// most maxRefs of any other.
func httpClient(dial Dial, objects int64) *http.Client {
	return &http.Client{Transport: answers.Bounded{RoundTripper: &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dial, DisableKeepAlives: true,
		ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second,
		MaxResponseHeaderBytes: maxGitError,
	}, Limit: func(asked *http.Request, answer *http.Response) (int64, error) {
		switch {
		case answer.StatusCode >= http.StatusBadRequest:
			return maxGitError, io.EOF
		case asked.Method == http.MethodPost:
			return objects, commit.ErrTooLarge
		}
		return maxRefs, ErrRefsTooLarge
	}}}
}

// sshClient connects with the deadline of ctx, and reads at most limit bytes.
func sshClient(ctx context.Context, dial Dial, endpoint *transport.Endpoint,
	auth transport.AuthMethod, limit int64) (*ssh.Client, error) {
	login, ok := auth.(gitssh.AuthMethod)
	if !ok {
		return nil, transport.ErrInvalidAuthMethod
	}
	config, err := login.ClientConfig()
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort(endpoint.Host,
		strconv.Itoa(cmp.Or(endpoint.Port, gitssh.DefaultPort)))
	conn, err := dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if deadline, has := ctx.Deadline(); has {
		if err := conn.SetDeadline(deadline); err != nil {
			return nil, multi.Errors(err, conn.Close())
		}
	}
	bounded := &boundedConn{conn, answers.AtMost(conn, limit, ErrRefsTooLarge)}
	handshake, channels, requests, err := ssh.NewClientConn(bounded, address, config)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return ssh.NewClient(handshake, channels, requests), nil
}

// process is a Git program that runs on the server or on this machine.
type process struct {
	in    io.WriteCloser
	out   io.Reader
	head  *text.Head   // the beginning of its standard error
	wait  func() error // waits until it has ended
	close func() error
}

func sshProcess(client *ssh.Client, program, path string) (p process, err error) {
	session, err := client.NewSession()
	if err != nil {
		return p, err
	}
	p = process{head: &text.Head{Most: maxWords}, wait: session.Wait, close: session.Close}
	session.Stderr = p.head
	p.in, err = session.StdinPipe()
	if err == nil {
		p.out, err = session.StdoutPipe()
	}
	if err == nil {
		err = session.Start(remoteCommand(program, path))
	}
	if err != nil {
		_ = session.Close()
	}
	return p, err
}

// remoteCommand returns the shell command that runs a Git program on a path.
func remoteCommand(program, path string) string {
	return program + " '" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// pack is a git-upload-pack or git-receive-pack that has advertised its references.
type pack struct {
	process
	refs *packp.AdvRefs
}

func openPack(from process, err error) (*pack, error) {
	if err != nil {
		return nil, err
	}
	p := &pack{from, packp.NewAdvRefs()}
	switch err := p.refs.Decode(answers.AtMost(p.out, maxRefs, ErrRefsTooLarge)); {
	case errors.Is(err, ErrRefsTooLarge):
		_ = p.close()
		return nil, err
	case errors.Is(err, packp.ErrEmptyAdvRefs), err == nil && p.refs.IsEmpty():
		_ = p.close()
		return nil, transport.ErrEmptyRemoteRepository
	case err != nil:
		_, _ = p.in.Close(), p.wait() // so that its standard error is complete
		_ = p.close()
		if text := strings.TrimSpace(string(p.head.Kept)); noRepository(text) {
			return nil, transport.ErrRepositoryNotFound
		} else if text != "" {
			return nil, errors.New(text)
		}
		return nil, err
	}
	return p, nil
}

// upload requests objects of at most limit bytes. Closing the answer ends the session.
func (p *pack) upload(request *packp.UploadPackRequest, limit int64) (io.ReadCloser, error) {
	err := multi.Errors(request.UploadRequest.Encode(p.in), request.UploadHaves.Encode(p.in, false),
		pktline.NewEncoder(p.in).EncodeString("done\n"), p.in.Close())
	if err != nil {
		return nil, multi.Errors(err, p.close())
	}
	response := packp.NewUploadPackResponse(request)
	objects := io.NopCloser(answers.AtMost(p.out, limit, commit.ErrTooLarge))
	if err := response.Decode(ioutil.NewReadCloserWithCloser(objects, p.close)); err != nil {
		return nil, multi.Errors(err, p.close())
	}
	return response, nil
}

// noRepository reports whether a server says over SSH that the repository does not exist or that
// the key may not read it.
func noRepository(text string) bool {
	text = strings.ToLower(text)
	for _, words := range []string{
		"not found", "does not appear to be a git repository", "does not exist",
		"could not be found", "not a git repository", "access denied",
	} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

type boundedConn struct {
	net.Conn
	in io.Reader
}

func (c *boundedConn) Read(p []byte) (int, error) { return c.in.Read(p) }
