//go:build linux

package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// Check fails, with everything it found, if a cluster that was taken down left
// a process, mount, interface, control group or file.
func (c Cluster) Check() error {
	var found []error
	left := func(what string, args ...any) { found = append(found, fmt.Errorf("left behind: "+what, args...)) }

	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, process := range processes {
		args, err := os.ReadFile(process)
		if err != nil || filepath.Dir(process) == fmt.Sprintf("/proc/%d", os.Getpid()) {
			continue // one that has just ended, or this one
		}
		if bytes.Contains(args, []byte("init\x00"+c.Cache)) || bytes.Contains(args, []byte(root+"/")) {
			left("process %s: %s", filepath.Base(filepath.Dir(process)), bytes.ReplaceAll(args, []byte{0}, []byte(" ")))
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
	// The root file system is read-only for the cluster. These are what it would
	// write if it were not.
	paths = append(paths, c.state(), root, "/srv/git", "/run/containerd.sock", "/run/netns", "/var/lib/kubelet",
		"/var/log/pods", "/var/log/containers", "/usr/libexec/kubernetes")
	for _, path := range paths {
		if exists(path) {
			left("%s", path)
		}
	}
	return errors.Join(found...)
}
