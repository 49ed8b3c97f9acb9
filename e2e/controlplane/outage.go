package controlplane

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// KillAPIServer ends the API server with SIGKILL, as a crash would, and returns after it has ended.
// etcd keeps running. It needs Linux's /proc.
func (c *ControlPlane) KillAPIServer() error {
	for started := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		pid, err := c.apiServer()
		switch {
		case err != nil:
			return fmt.Errorf("killing the API server: %w", err)
		case pid == 0:
			return nil
		case time.Since(started) > patience:
			return fmt.Errorf("killing the API server: process %d outlives SIGKILL", pid)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("killing the API server, process %d: %w", pid, err)
		}
	}
}

// StartAPIServer starts the API server again after KillAPIServer, with the same address, keys and
// data.
func (c *ControlPlane) StartAPIServer() error {
	if err := c.plane.APIServer.Start(); err != nil {
		return fmt.Errorf("starting the API server again: %w%s", err, c.lastWords())
	}
	return c.ready()
}

// apiServer returns the process whose certificates are in this control plane's folder (envtest does
// not tell which it started); 0 means none.
func (c *ControlPlane) apiServer() (int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	flag := []byte("--cert-dir=" + filepath.Join(c.dir, "kube-apiserver"))
	for _, file := range files {
		args, err := os.ReadFile(file)
		if err != nil {
			continue // a process that ended in between
		}
		for _, arg := range bytes.Split(args, []byte{0}) {
			if bytes.Equal(arg, flag) {
				return strconv.Atoi(filepath.Base(filepath.Dir(file)))
			}
		}
	}
	return 0, nil
}

// StopEtcd ends both servers and returns the folder with etcd's data, which a test may copy
// or replace before StartEtcd.
func (c *ControlPlane) StopEtcd() (data string, err error) {
	if err := c.KillAPIServer(); err != nil {
		return "", err
	}
	if err := c.plane.Etcd.Stop(); err != nil {
		return "", fmt.Errorf("stopping etcd: %w", err)
	}
	return c.plane.Etcd.DataDir, nil
}

// StartEtcd starts both servers again after StopEtcd, with the data in the folder.
func (c *ControlPlane) StartEtcd() error {
	if err := c.plane.Etcd.Start(); err != nil {
		return fmt.Errorf("starting etcd again: %w%s", err, c.lastWords())
	}
	return c.StartAPIServer()
}
