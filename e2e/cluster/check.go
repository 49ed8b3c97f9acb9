//go:build linux

package cluster

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/armature-dev/armature/functions/multi"
)

// Check returns an error that lists every process, mount, interface, control group and file that is
// left of a stopped cluster.
func (c Cluster) Check() error {
	var found []error
	left := func(what string, args ...any) {
		found = append(found, fmt.Errorf("left behind: "+what, args...))
	}

	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, process := range processes {
		args, err := os.ReadFile(process)
		if err != nil || filepath.Dir(process) == fmt.Sprintf("/proc/%d", os.Getpid()) {
			continue // one that has just ended, or this one
		}
		pid := filepath.Base(filepath.Dir(process))
		if bytes.Contains(args, []byte("init\x00"+c.Cache)) ||
			bytes.Contains(args, []byte(root+"/")) && !ofAnother(pid) {
			left("process %s: %s", pid, bytes.ReplaceAll(args, []byte{0}, []byte(" ")))
		}
	}

	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, c.Cache) || strings.Contains(line, root) {
			left("mount %s", strings.TrimSpace(line))
		}
	}

	for _, name := range []string{"node0", "node0p", "pods0"} {
		if _, err := net.InterfaceByName(name); err == nil {
			left("interface %s", name)
		}
	}

	paths, err := c.cgroups()
	if err != nil {
		return err
	}
	// The root file system is read-only for the cluster. It would write these paths if it were not.
	paths = append(paths, c.state(), root, "/srv/git", "/run/containerd.sock", "/run/netns",
		"/var/lib/kubelet", "/var/log/pods", "/var/log/containers", "/usr/libexec/kubernetes")
	for _, path := range paths {
		if exists(path) {
			left("%s", path)
		}
	}
	return multi.Errors(found...)
}

// ofAnother reports whether a process descends from the process 1 of a cluster. The stopped cluster
// has none, so the process belongs to another repository's.
func ofAnother(pid string) bool {
	for pid != "0" {
		args, err := os.ReadFile("/proc/" + pid + "/cmdline")
		if err != nil {
			return true // it has just ended
		}
		if fields := bytes.Split(args, []byte{0}); len(fields) > 2 && string(fields[1]) == "init" &&
			filepath.Base(string(fields[2])) == ".cache" {
			return true
		}
		status, err := os.ReadFile("/proc/" + pid + "/status")
		if err != nil {
			return true
		}
		_, parent, _ := strings.Cut(string(status), "\nPPid:")
		pid = strings.Fields(parent)[0]
	}
	return false
}
