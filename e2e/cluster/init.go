//go:build linux

package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// The cluster's own view of the repository's .cache. It is short because paths of sockets have to
// be, and hides where the repository is.
const (
	root  = "/run/armature"
	bin   = root + "/bin"
	state = root + "/cluster"
	logs  = root + "/cluster-logs"
)

const (
	node        = "node-1"
	nodeIP      = "10.88.0.1"
	metadataIP  = "169.254.169.254"
	podCIDR     = "10.244.0.0/24"
	serviceCIDR = "10.96.0.0/16"
	apiIP       = "10.96.0.1"
	dnsIP       = "10.96.0.10"
)

// Init runs as the cluster's process 1. It returns when Serve, its one child, has ended; every
// other process of the cluster ends with it.
func (c Cluster) Init() error {
	if err := mounts(c.Cache); err != nil {
		return fmt.Errorf("mounting: %w", err)
	}
	if err := network(); err != nil {
		return fmt.Errorf("setting up the network: %w", err)
	}
	if err := syscall.Sethostname([]byte(node)); err != nil {
		return fmt.Errorf("naming the host: %w", err)
	}
	if err := os.Setenv("PATH", bin+":"+os.Getenv("PATH")); err != nil {
		return err
	}
	files := []*os.File{nil, os.Stdout, os.Stderr}
	for fd := range 1 + len(published) {
		files = append(files, os.NewFile(uintptr(3+fd), "inherited"))
	}
	serve, err := os.StartProcess("/proc/self/exe", []string{os.Args[0], "serve", c.Cache}, &os.ProcAttr{
		Dir: state, Files: files,
	})
	if err != nil {
		return fmt.Errorf("starting the servers: %w", err)
	}
	for _, file := range files[3:] {
		file.Close()
	}
	// Process 1 has to reap orphans.
	for {
		var status syscall.WaitStatus
		switch pid, err := syscall.Wait4(-1, &status, 0, nil); {
		case err == syscall.EINTR:
		case err != nil:
			return fmt.Errorf("waiting for processes: %w", err)
		case pid == serve.Pid:
			return fmt.Errorf("the servers ended with status %d, signal %d", status.ExitStatus(),
				status.Signal())
		}
	}
}

func mounts(cache string) error {
	rows := []struct {
		source, target, kind string
		flags                uintptr
		data                 string
	}{
		{"", "/", "", syscall.MS_REC | syscall.MS_PRIVATE, ""},
		{"proc", "/proc", "proc", 0, ""},
		{"run", "/run", "tmpfs", 0, "mode=755"},
		{"lib", "/var/lib", "tmpfs", 0, "mode=755"},
		{"log", "/var/log", "tmpfs", 0, "mode=755"},
		{"srv", "/srv", "tmpfs", 0, "mode=755"},
		{cache, root, "", syscall.MS_BIND, ""},
		{state + "/git", "/srv/git", "", syscall.MS_BIND, ""},
		{state + "/tmp", "/tmp", "", syscall.MS_BIND, ""},
		{state + "/tmp", "/var/tmp", "", syscall.MS_BIND, ""},
		{state + "/passwd", "/etc/passwd", "", syscall.MS_BIND, ""},
		{"", "/", "", syscall.MS_BIND | syscall.MS_REMOUNT | syscall.MS_RDONLY, ""},
		// The kubelet shares mounts with the containers that ask for it.
		{"", "/", "", syscall.MS_REC | syscall.MS_SHARED, ""},
	}
	for _, m := range rows {
		switch m.target {
		case root, "/srv/git": // on a new mount, which is empty
			if err := os.Mkdir(m.target, 0o755); err != nil {
				return err
			}
		}
		if err := syscall.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("%s on %s: %w", m.source, m.target, err)
		}
	}
	return nil
}

func network() error {
	for _, line := range []string{
		"link set lo up",
		"link add node0 type veth peer name node0p",
		"addr add " + nodeIP + "/24 dev node0",
		"addr add " + metadataIP + "/32 dev lo",
		"link set node0 up",
		"link set node0p up",
		"route add default via 10.88.0.254 dev node0",
	} {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, out)
		}
	}
	for key, value := range map[string]string{
		"net/ipv4/ip_forward":                "1",
		"net/ipv4/conf/all/route_localnet":   "1",
		"net/bridge/bridge-nf-call-iptables": "1",
	} {
		if err := os.WriteFile(filepath.Join("/proc/sys", key), []byte(value), 0o644); err != nil &&
			!os.IsNotExist(err) {
			return err
		}
	}
	return nil
}
