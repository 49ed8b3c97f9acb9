package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/controller/runs"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/deliver/gitrun"
)

// Servers are a registry and a Git server on loopback for one run. Their paths have a random token,
// because every user of the machine can connect.
type Servers struct {
	address, token, dir string
	// socket is a second address of the servers, and image has the program that forwards to it.
	socket, image string
	server        *http.Server
}

// serversID is the socket's name in BuildKit.
const serversID = "armature-servers"

// Serve starts Servers, which store their data below dir. image is the controller's image, which
// forwards to them from a BuildKit with a loopback address of its own.
func Serve(ctx context.Context, dir, image string) (*Servers, error) {
	blobs := filepath.Join(dir, "blobs")
	if err := os.Mkdir(blobs, 0o700); err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Servers{address: listener.Addr().String(), token: newID(), dir: dir,
		socket: filepath.Join(dir, "servers.sock"), image: image}
	socket, err := new(net.ListenConfig).Listen(ctx, "unix", s.socket)
	if err != nil {
		return nil, multi.Errors(err, listener.Close())
	}
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)),
		registry.WithBlobHandler(registry.NewDiskBlobHandler(blobs)))
	git, err := exec.LookPath("git")
	if err != nil {
		git = "" // It is needed only for Source.
	}
	sources := &cgi.Handler{Path: git, Args: []string{"http-backend"}, Stderr: io.Discard,
		Env: []string{"GIT_PROJECT_ROOT=" + filepath.Join(dir, "git"), "GIT_HTTP_EXPORT_ALL=1",
			"GIT_CONFIG_NOSYSTEM=1", "HOME=" + dir}}
	s.server = &http.Server{ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			switch {
			case q.URL.Path == "/v2/" || strings.HasPrefix(q.URL.Path, "/v2/"+s.token+"/"):
				images.ServeHTTP(w, q)
			case strings.HasPrefix(q.URL.Path, "/"+s.token+"/") && git != "":
				sources.ServeHTTP(w, q)
			default:
				http.NotFound(w, q)
			}
		})}
	go func() { _ = s.server.Serve(listener) }()
	go func() { _ = s.server.Serve(socket) }()
	return s, nil
}

// Close stops the servers.
func (s *Servers) Close() error { return s.server.Close() }

// Registry returns the part of an image's name before its repository.
func (s *Servers) Registry() string { return s.address + "/" + s.token }

// Source serves the files of a folder as a repository with one commit, without those that
// .gitignore names. Equal files yield the same commit.
func (s *Servers) Source(ctx context.Context, folder string) (url, commit string, err error) {
	if info, err := os.Stat(folder); err != nil {
		return "", "", err
	} else if !info.IsDir() {
		return "", "", fmt.Errorf("%s is not a folder", folder)
	}
	repository := filepath.Join(s.dir, "git", s.token, "source.git")
	git := func(args ...string) (string, error) {
		cmd := gitrun.Command(ctx, "", append([]string{"--git-dir=" + repository, "--work-tree=."},
			args...)...)
		cmd.Dir = folder
		cmd.Env = append(slices.DeleteFunc(cmd.Env, func(v string) bool {
			return strings.HasPrefix(v, "GIT_")
		}), "GIT_NO_LAZY_FETCH=1", "GIT_CONFIG_NOSYSTEM=1",
			"GIT_AUTHOR_NAME=armature", "GIT_AUTHOR_EMAIL=armature@localhost",
			"GIT_AUTHOR_DATE=@0 +0000", "GIT_COMMITTER_NAME=armature",
			"GIT_COMMITTER_EMAIL=armature@localhost", "GIT_COMMITTER_DATE=@0 +0000")
		out, err := cmd.Output()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("git %s: %s", args[0], strings.TrimSpace(string(exit.Stderr)))
		}
		return strings.TrimSpace(string(out)), err
	}
	if err := os.MkdirAll(repository, 0o700); err != nil {
		return "", "", err
	}
	for _, args := range [][]string{
		{"init", "--quiet", "--initial-branch=main"},
		{"-c", "core.autocrlf=false", "add", "--all", "."},
		{"-c", "core.hooksPath=" + os.DevNull, "-c", "commit.gpgSign=false", "commit", "--quiet",
			"--allow-empty", "--no-verify", "--message=The working tree"},
	} {
		if _, err := git(args...); err != nil {
			return "", "", fmt.Errorf("reading the source %s: %w", folder, err)
		}
	}
	files, err := git("ls-files", "--stage")
	if err != nil {
		return "", "", err
	}
	for line := range strings.Lines(files) {
		if _, path, _ := strings.Cut(line, "\t"); strings.HasPrefix(line, "160000 ") {
			return "", "", fmt.Errorf("the source %s: the folder %s is a Git repository of its "+
				"own, whose files would be missing\n  hint: build the Git revision, or add the "+
				"folder to .gitignore", folder, strings.TrimSpace(path))
		}
	}
	if commit, err = git("rev-parse", "HEAD"); err != nil {
		return "", "", err
	}
	return "http://" + s.address + "/" + s.token + "/source.git", commit, nil
}

// Image returns the image that a run built, as NAME@DIGEST. The controller reads the same results.
func Image(out *compose.Output, results *Result) (string, error) {
	run := &runs.PipelineRun{ObjectMeta: out.Run.ObjectMeta}
	for name, value := range results.Pipeline {
		run.Status.Results = append(run.Status.Results,
			tektonv1.PipelineRunResult{Name: name, Value: *tektonv1.NewStructuredValues(value)})
	}
	image, _, err := runs.Run{PipelineRun: run}.Image()
	return image, err
}
