package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"

	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/render/deliver/gitrun"
)

// Origin returns the remote origin of a clone to push to, with the login that the git program has
// for it.
func Origin(ctx context.Context, clone string) (gitremote.Repository, error) {
	out, err := RunGit(ctx, clone, nil, "remote", "get-url", "--push", "origin")
	if err != nil {
		return gitremote.Repository{}, fmt.Errorf("the repository has no remote origin: %w", err)
	}
	address := line(out)
	if local := filepath.FromSlash(address); !strings.Contains(address, ":") && !filepath.IsAbs(local) {
		address = filepath.Join(clone, local)
	}
	return Repository(ctx, clone, address)
}

// Repository returns the repository at an address, with the login that the git program has for it
// in the working tree of a clone, or outside of all repositories if clone is empty.
func Repository(ctx context.Context, clone, address string) (r gitremote.Repository, err error) {
	r.URL = address
	endpoint, err := transport.NewEndpoint(address)
	if err != nil {
		return r, errors.New("the URL of the remote cannot be read")
	}
	if endpoint.Protocol == "ssh" && os.Getenv("GIT_SSH_COMMAND") == "" {
		if out, err := RunGit(ctx, clone, nil, "config", "--default=", "--get",
			"core.sshCommand"); err == nil && line(out) != "" {
			return r, os.Setenv("GIT_SSH_COMMAND", line(out))
		}
	}
	if endpoint.Protocol != "http" && endpoint.Protocol != "https" {
		return r, nil
	}
	if endpoint.User != "" { // errors would repeat it, and it may be a token
		if r.URL, err = gitrun.PublicURL(address); err != nil {
			return r, err
		}
		r.Auth = &githttp.BasicAuth{Username: endpoint.User, Password: endpoint.Password}
		if endpoint.Password != "" {
			return r, nil
		}
	}
	// CI leaves its login in the configuration of the clone.
	if out, err := RunGit(ctx, clone, nil, "config", "--get-urlmatch", "http.extraheader",
		address); err == nil {
		if name, value, ok := strings.Cut(line(out), ":"); ok {
			r.Auth = header{strings.TrimSpace(name), strings.TrimSpace(value)}
			return r, nil
		}
	}
	cmd := gitrun.Command(ctx, clone, "credential", "fill")
	cmd.Env = append(cmd.Env, "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=", "SSH_ASKPASS=")
	cmd.Stdin = bytes.NewReader([]byte("url=" + address + "\n\n"))
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return r, ctx.Err()
	} else if err != nil {
		return r, nil // there is no login, and a public repository needs none
	}
	login := &githttp.BasicAuth{}
	for text := range strings.Lines(string(out)) {
		switch key, value, _ := strings.Cut(line([]byte(text)), "="); key {
		case "username":
			login.Username = value
		case "password":
			login.Password = value
		}
	}
	if login.Password != "" {
		r.Auth = login
	}
	return r, nil
}

// header authenticates each request with a header that contains a login.
type header struct{ name, value string }

func (h header) SetAuth(r *http.Request) { r.Header.Set(h.name, h.value) }
func (h header) Name() string            { return "http-header" }
func (h header) String() string          { return h.name + ": ***" }
