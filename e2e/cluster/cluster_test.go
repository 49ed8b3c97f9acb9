//go:build linux

package cluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestDownWithoutItsFiles ends a cluster whose folder is gone, and neither that of
// another repository nor a process that only has the same arguments.
func TestDownWithoutItsFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "init"), []byte("while :; do sleep 1; done\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	own, link, other := filepath.Join(dir, "own", ".cache"), filepath.Join(dir, "link"),
		filepath.Join(dir, "other", ".cache")
	for _, folder := range []string{own, other} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(own, link); err != nil {
		t.Fatal(err)
	}
	// Bash reads the script "init": its arguments are those of a cluster's process 1.
	begin := func(cache string, isolated bool) (ended chan error) {
		cmd := exec.Command("/bin/bash", "init", cache)
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if isolated {
			cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
			if os.Geteuid() != 0 {
				cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
			}
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended = make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		return ended
	}
	ours, linked := begin(own, true), begin(link, true)
	theirs, alike := begin(other, true), begin(own, false)
	if err := (Cluster{Cache: own}).Down(); err != nil {
		t.Fatal(err)
	}
	for name, ended := range map[string]chan error{"the cluster": ours,
		"the cluster by a link": linked} {
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Errorf("%s runs on", name)
		}
	}
	for name, ended := range map[string]chan error{"another's": theirs,
		"a process with its arguments": alike} {
		select {
		case <-ended:
			t.Errorf("%s was ended", name)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
