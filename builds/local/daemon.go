package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/docker/cli/cli/connhelper/commandconn"
	"github.com/moby/buildkit/client"
	// docker-container:// in $BUILDKIT_HOST
	_ "github.com/moby/buildkit/client/connhelper/dockercontainer"
	_ "github.com/moby/buildkit/client/connhelper/kubepod"
	_ "github.com/moby/buildkit/client/connhelper/podmancontainer"
	_ "github.com/moby/buildkit/client/connhelper/ssh"

	"github.com/armature-dev/armature/functions/multi"
)

// Daemon is a connection to a BuildKit that runs steps.
type Daemon struct {
	// Name says to users which BuildKit it is, and what started it.
	Name   string
	client *client.Client
	// dial opens another connection, for steps that are clients of BuildKit.
	dial func(context.Context) (net.Conn, error)
	stop func() error
	// state is the daemon's folder if this process started it.
	state string
}

// answers bounds the time until the first answer of a daemon.
const answers = 20 * time.Second

// Connect connects to the BuildKit of $BUILDKIT_HOST, or else of docker buildx, or else to one that
// it starts with its state in a folder. Close ends a BuildKit that Connect started.
func Connect(ctx context.Context, state string) (*Daemon, error) {
	var missing []string
	if host := os.Getenv("BUILDKIT_HOST"); host != "" {
		d, err := connect(ctx, host, "BUILDKIT_HOST="+host, nil)
		if err != nil {
			return nil, fmt.Errorf("the BuildKit of BUILDKIT_HOST=%s: %w", host, err)
		}
		return d, nil
	}
	if docker, err := exec.LookPath("docker"); err == nil {
		d, err := connect(ctx, "", "docker buildx", func(ctx context.Context) (net.Conn, error) {
			return commandconn.New(ctx, docker, "buildx", "dial-stdio")
		})
		if err == nil {
			return d, nil
		}
		// The output of inspect explains the problem better than the error.
		out, _ := exec.CommandContext(ctx, docker, "buildx", "inspect").CombinedOutput()
		why, _, _ := strings.Cut(cmp.Or(strings.TrimSpace(string(out)), err.Error()), "\n")
		missing = append(missing, "docker buildx does not answer: "+why)
	} else {
		missing = append(missing, "docker is not installed")
	}
	d, err := start(ctx, state)
	if err == nil {
		return d, nil
	} else if !errors.Is(err, exec.ErrNotFound) {
		return nil, err
	}
	missing = append(missing, err.Error(), "BUILDKIT_HOST is not set")
	return nil, fmt.Errorf("no BuildKit was found: %s\n  hint: install Docker, or buildkitd, runc "+
		"and rootlesskit, or set BUILDKIT_HOST", strings.Join(missing, "; "))
}

// Close ends the connection, and the daemon if Connect started it.
func (d *Daemon) Close() error {
	err := d.client.Close()
	if d.stop != nil {
		err = multi.Errors(err, d.stop())
	}
	return err
}

func connect(ctx context.Context, address, name string,
	dial func(context.Context) (net.Conn, error)) (*Daemon, error) {
	var options []client.ClientOpt
	if dial != nil {
		options = append(options,
			client.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				return dial(ctx)
			}))
		address = "unix:///docker" // It is only a name: the dialer ignores it.
	} else if dial = dialer(address); dial == nil {
		dial = func(context.Context) (net.Conn, error) {
			return nil, fmt.Errorf("steps cannot reach the BuildKit at %s: use unix:// or tcp://",
				address)
		}
	}
	c, err := client.New(ctx, address, options...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, answers)
	defer cancel()
	info, err := c.Info(ctx)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return &Daemon{Name: fmt.Sprintf("BuildKit %s (%s)", info.BuildkitVersion.Version, name),
		client: c, dial: dial}, nil
}

// dialer returns a function that connects to a unix:// or tcp:// address; nil for any other.
func dialer(address string) func(context.Context) (net.Conn, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "unix" && u.Scheme != "tcp" {
		return nil
	}
	at := u.Host
	if u.Scheme == "unix" {
		at = u.Path
	}
	return func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, u.Scheme, at)
	}
}

// start starts a buildkitd that ends with this process.
func start(ctx context.Context, state string) (*Daemon, error) {
	programs := []string{"buildkitd", "runc"}
	if os.Geteuid() != 0 {
		programs = append([]string{"rootlesskit"}, programs...)
	}
	var found []string
	for _, name := range programs {
		path, err := exec.LookPath(name)
		if err != nil {
			return nil, fmt.Errorf("%s is not installed: %w", name, exec.ErrNotFound)
		}
		found = append(found, path)
	}
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, err
	}
	run, err := Scratch()
	if err != nil {
		return nil, err
	}
	address := "unix://" + filepath.Join(run, "s")
	arguments := append(found[:len(found)-1], "--addr="+address,
		"--root="+filepath.Join(state, "buildkit"), "--oci-worker-binary="+found[len(found)-1],
		"--oci-worker-net=host", "--allow-insecure-entitlement=network.host", "--config=/dev/null",
		"--oci-worker-gc-keepstorage=10000")
	if len(programs) == 3 {
		arguments = append([]string{found[0], "--net=host",
			"--state-dir=" + filepath.Join(run, "rootlesskit"), found[1], "--rootless"}, arguments[2:]...)
	}
	log, err := os.OpenFile(filepath.Join(state, "buildkitd.log"),
		os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, multi.Errors(err, os.RemoveAll(run))
	}
	defer log.Close()
	lives, end := context.WithCancel(context.WithoutCancel(ctx))
	cmd := exec.CommandContext(lives, arguments[0], arguments[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+run) // Only root may write to /run.
	cmd.SysProcAttr = endsWithUs()
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	ended := make(chan struct{})
	var why error
	go func() {
		// The kernel ends the daemon with the thread that started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		why = cmd.Run()
		close(ended)
	}()
	stop := func() error {
		end()
		<-ended
		return os.RemoveAll(run)
	}
	ctx, cancel := context.WithTimeout(ctx, answers)
	defer cancel()
	for {
		d, err := connect(ctx, address, "started by this command", nil)
		if err == nil {
			d.stop, d.state = stop, state
			return d, nil
		}
		select {
		case <-ended:
			_ = stop()
			return nil, fmt.Errorf("buildkitd ended: %s (%v)\n  hint: see %s; if another build "+
				"runs, wait for its end or set BUILDKIT_HOST", problem(log.Name()), why, log.Name())
		case <-ctx.Done():
			return nil, multi.Errors(fmt.Errorf("buildkitd does not answer: %s\n  hint: see %s",
				problem(log.Name()), log.Name()), stop())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// problem returns the last error of buildkitd in its log, or the last line.
func problem(file string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	for _, line := range slices.Backward(lines) {
		if text, ok := strings.CutPrefix(line, "buildkitd: "); ok {
			return text
		}
	}
	return lines[len(lines)-1]
}

// scratchPrefix begins the names of the folders of Scratch, followed by the process ID.
const scratchPrefix = "armature-build-"

// Scratch creates a temporary folder of this process with a short path, as sockets require.
func Scratch() (string, error) {
	return os.MkdirTemp("", scratchPrefix+strconv.Itoa(os.Getpid())+"-")
}

// removeScratch removes the folders of processes that have ended.
func removeScratch() error {
	found, err := filepath.Glob(filepath.Join(os.TempDir(), scratchPrefix+"*-*"))
	for _, folder := range found {
		owner, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(folder), scratchPrefix), "-")
		if pid, wrong := strconv.Atoi(owner); wrong == nil && !alive(pid) {
			err = multi.Errors(err, os.RemoveAll(folder))
		}
	}
	return err
}
