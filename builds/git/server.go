package git

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
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	gitssh "github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"golang.org/x/crypto/ssh"

	"github.com/armature-dev/armature/builds/commit"
	"github.com/armature-dev/armature/functions/multi"
)

// Dial opens connections to Git servers, and refuses the addresses that tenants
// may not have asked.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// ErrForbiddenAddress is what a Dial refuses an address with.
var ErrForbiddenAddress = errors.New("the address may not be asked")

const (
	// maxRefs is how much a Git server may answer, in bytes; it is room for about
	// 100,000 references.
	maxRefs = 8 << 20
	// maxUpload is how much it may answer with objects: a pack, and what is before it.
	maxUpload = commit.MaxPack + 1<<20
	// maxGitError of what it says of an error is read.
	maxGitError = 64 << 10
)

// errRefsTooLarge ends an answer that goes on and on.
var errRefsTooLarge = fmt.Errorf("the answer has more than %d MiB", maxRefs>>20)

// server is a Git server that has advertised its references.
type server struct {
	refs *packp.AdvRefs
	// upload asks for objects, which come as a pack.
	upload func(context.Context, *packp.UploadPackRequest) (io.ReadCloser, error)
	close  func() error
}

// connect to a Git server, and read the references that it advertises.
func connect(ctx context.Context, dial Dial, endpoint *transport.Endpoint, auth transport.AuthMethod) (*server, error) {
	if endpoint.Protocol == "ssh" {
		return sshConnect(ctx, dial, endpoint, auth)
	}
	client := &http.Client{Transport: &bounded{&http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dial, DisableKeepAlives: true, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: 10 * time.Second, MaxResponseHeaderBytes: maxGitError,
	}}}
	session, err := githttp.NewClient(client).NewUploadPackSession(endpoint, auth)
	if err != nil {
		return nil, err
	}
	refs, err := session.AdvertisedReferencesContext(ctx)
	if err != nil {
		return nil, multi.Errors(err, session.Close())
	}
	return &server{refs: refs, close: session.Close, upload: func(ctx context.Context, request *packp.UploadPackRequest) (io.ReadCloser, error) {
		response, err := session.UploadPack(ctx, request)
		if err != nil {
			return nil, err
		}
		return response, nil
	}}, nil
}

// bounded reads at most maxRefs of each answer, or maxUpload of one with objects.
type bounded struct{ http.RoundTripper }

func (b *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := b.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	body := response.Body
	limit, after := int64(maxRefs), errRefsTooLarge
	if r.Method == http.MethodPost {
		limit, after = maxUpload, commit.ErrTooLarge
	}
	if response.StatusCode >= http.StatusBadRequest {
		limit, after = maxGitError, io.EOF
	}
	response.Body = struct {
		io.Reader
		io.Closer
	}{&atMost{body, limit, after}, body}
	return response, nil
}

// atMost reads left bytes, then ends with after.
type atMost struct {
	from  io.Reader
	left  int64
	after error
}

func (r *atMost) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, r.after
	}
	n, err := r.from.Read(p[:min(int64(len(p)), r.left)])
	r.left -= int64(n)
	return n, err
}

// sshConnect asks over SSH. The connection has the deadline of ctx, and what comes
// over it a bound.
func sshConnect(ctx context.Context, dial Dial, endpoint *transport.Endpoint, auth transport.AuthMethod) (_ *server, err error) {
	login, ok := auth.(gitssh.AuthMethod)
	if !ok {
		return nil, transport.ErrInvalidAuthMethod
	}
	config, err := login.ClientConfig()
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort(endpoint.Host, strconv.Itoa(cmp.Or(endpoint.Port, gitssh.DefaultPort)))
	conn, err := dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = conn.Close()
		}
	}()
	if deadline, has := ctx.Deadline(); has {
		if err := conn.SetDeadline(deadline); err != nil {
			return nil, err
		}
	}
	handshake, channels, requests, err := ssh.NewClientConn(&boundedConn{conn, atMost{conn, 4 * (maxRefs + maxUpload), errRefsTooLarge}}, address, config)
	if err != nil {
		return nil, err
	}
	client := ssh.NewClient(handshake, channels, requests)
	session, err := openUploadPack(client, endpoint.Path)
	if err != nil {
		return nil, multi.Errors(err, client.Close())
	}
	_ = session.Close() // each request has a session of its own
	return &server{refs: session.refs, close: client.Close, upload: func(_ context.Context, request *packp.UploadPackRequest) (io.ReadCloser, error) {
		session, err := openUploadPack(client, endpoint.Path)
		if err != nil {
			return nil, err
		}
		return session.upload(request)
	}}, nil
}

// uploadPack is git-upload-pack over SSH that has advertised its references.
type uploadPack struct {
	*ssh.Session
	in   io.WriteCloser
	out  io.Reader
	refs *packp.AdvRefs
}

func openUploadPack(client *ssh.Client, path string) (_ *uploadPack, err error) {
	session, err := client.NewSession()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = session.Close()
		}
	}()
	u := &uploadPack{Session: session, refs: packp.NewAdvRefs()}
	if u.in, err = session.StdinPipe(); err != nil {
		return nil, err
	}
	if u.out, err = session.StdoutPipe(); err != nil {
		return nil, err
	}
	complaint := &head{}
	session.Stderr = complaint
	if err := session.Start("git-upload-pack '" + strings.ReplaceAll(path, "'", `'\''`) + "'"); err != nil {
		return nil, err
	}
	switch err := u.refs.Decode(&atMost{u.out, maxRefs, errRefsTooLarge}); {
	case errors.Is(err, errRefsTooLarge):
		return nil, err
	case errors.Is(err, packp.ErrEmptyAdvRefs), err == nil && u.refs.IsEmpty():
		return nil, transport.ErrEmptyRemoteRepository
	case err != nil:
		_, _ = u.in.Close(), session.Wait() // for what it complains of
		if text := strings.TrimSpace(string(complaint.text)); noRepository(text) {
			return nil, transport.ErrRepositoryNotFound
		} else if text != "" {
			return nil, errors.New(text)
		}
		return nil, err
	}
	return u, nil
}

// upload asks for objects. Closing the answer ends the session.
func (u *uploadPack) upload(request *packp.UploadPackRequest) (io.ReadCloser, error) {
	err := multi.Errors(request.UploadRequest.Encode(u.in), request.UploadHaves.Encode(u.in, false), pktline.NewEncoder(u.in).EncodeString("done\n"), u.in.Close())
	if err != nil {
		return nil, multi.Errors(err, u.Close())
	}
	response := packp.NewUploadPackResponse(request)
	if err := response.Decode(struct {
		io.Reader
		io.Closer
	}{&atMost{u.out, maxUpload, commit.ErrTooLarge}, u}); err != nil {
		return nil, multi.Errors(err, u.Close())
	}
	return response, nil
}

// noRepository reports whether a server says over SSH that the repository does not exist, or
// that the key may not read it.
func noRepository(text string) bool {
	text = strings.ToLower(text)
	for _, words := range []string{"not found", "does not appear to be a git repository", "does not exist", "could not be found", "not a git repository", "access denied"} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

// boundedConn bounds what is read over a connection.
type boundedConn struct {
	net.Conn
	in atMost
}

func (c *boundedConn) Read(p []byte) (int, error) { return c.in.Read(p) }

// head keeps the first words of a stream.
type head struct{ text []byte }

func (h *head) Write(p []byte) (int, error) {
	h.text = append(h.text, p[:min(len(p), 1024-len(h.text))]...)
	return len(p), nil
}
