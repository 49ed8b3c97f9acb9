//go:build linux

// Package cluster runs a whole Kubernetes with Tekton on one Linux machine, from
// programs built from pinned modules and from Debian packages: etcd, API server,
// controller manager, scheduler, kubelet, kube-proxy, containerd, DNS, Tekton
// Pipelines, two registries, SPIRE, and Git over HTTP and SSH.
//
//	Up     makes a folder and starts Init in namespaces of its own
//	Init   is process 1 in there: mounts, network, and one child, Serve
//	Serve  starts the servers, fills the registry and installs Tekton
//	Down   kills process 1, and with it the kernel ends all the rest
//	Check  looks for anything that is left
//
// In there the root file system is read-only: a cluster writes to the
// repository's .cache and to memory, nowhere else.
package cluster

import (
	"bufio"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/armature-dev/armature/functions/multi"
)

// Cluster is the cluster of a repository.
type Cluster struct {
	Cache string // the repository's .cache, an absolute path
}

func (c Cluster) state() string { return filepath.Join(c.Cache, "cluster") }
func (c Cluster) logs() string  { return filepath.Join(c.Cache, "cluster-logs") }

// cgroup returns the name of the control group that has the pods, below each hierarchy's root.
func (c Cluster) cgroup() string {
	return fmt.Sprintf("armature-%08x", crc32.ChecksumIEEE([]byte(c.Cache)))
}

// Up starts the cluster, unless it runs, and reports progress. A cluster that cannot be started is
// stopped again; its logs stay.
func (c Cluster) Up(progress io.Writer) error {
	if pid := c.pid(); pid != 0 {
		fmt.Fprintf(progress, "the cluster is up already (process %d)\n", pid)
		return c.refresh()
	}
	if os.Geteuid() != 0 {
		return errors.New("a cluster needs root, for its namespaces and mounts\n" +
			"  hint: run as root, or set E2E_KUBECONFIG to use another cluster")
	}
	if err := c.Down(); err != nil { // a reboot may have left files
		return err
	}
	if err := c.start(progress); err != nil {
		return multi.Errors(fmt.Errorf("starting the cluster (logs in %s): %w", c.logs(), err), c.Down())
	}
	return nil
}

// refresh updates the vulnerability database of a running cluster and the images that were built
// since. It affects images that are named by digest, such as the controller's; the node keeps a
// step image that it has pulled.
func (c Cluster) refresh() error {
	info, err := c.Info()
	if err != nil {
		return err
	}
	built, err := openImages(c.Cache)
	if err != nil {
		return err
	}
	info.Process, info.AuditLog = c.pid(), filepath.Join(c.logs(), "audit.log")
	// The server accepts only callers of its own namespaces.
	info.SPIREServer = []string{"nsenter", "--target", strconv.Itoa(c.pid()), "--mount", "--pid",
		"--net", spireProgram}
	info.SPIREAgent = "spiffe://example.com/spire/agent/x509pop/" + node
	return multi.Errors(built.writeTo(info), built.push(info.HostRegistry),
		makeGrypeDatabase(c.Cache), writeInfo(info, c.state()))
}

// grypeDatabase is where the database for vulnerability scans is, below state.
const grypeDatabase = "/grype-database"

// makeGrypeDatabase builds the database again each time: grype refuses one that is older than five
// days.
func makeGrypeDatabase(cache string) error {
	dir := filepath.Join(cache, "cluster") + grypeDatabase
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	out, err := exec.Command(filepath.Join(cache, "bin", "grype-database"), dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("making the vulnerability database: %w: %s", err, out)
	}
	return nil
}

func (c Cluster) start(progress io.Writer) error {
	if err := os.RemoveAll(c.logs()); err != nil {
		return err
	}
	for _, dir := range []string{c.logs(), filepath.Join(c.state(), "git")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := os.Mkdir(filepath.Join(c.state(), "tmp"), 0o777|os.ModeSticky); err != nil {
		return err
	}
	// SSH admits the user git, which exists only in the cluster's mount namespace.
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return err
	}
	passwd = append(passwd, "git:x:0:0::/srv/git:/usr/bin/git-shell\n"...)
	if err := os.WriteFile(filepath.Join(c.state(), "passwd"), passwd, 0o644); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(c.logs(), "cluster.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()

	// The cluster has no interface on the machine's network. The servers that tests need use these
	// listeners, which were opened outside of it.
	init := exec.Command("/proc/self/exe", "init", c.Cache)
	init.Stdout, init.Stderr = log, log
	init.ExtraFiles = []*os.File{write}
	for range published {
		listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			return err
		}
		defer listener.Close()
		file, err := listener.File()
		if err != nil {
			return err
		}
		defer file.Close()
		init.ExtraFiles = append(init.ExtraFiles, file)
	}
	init.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID |
			syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
	}
	err = init.Start()
	write.Close()
	if err != nil {
		return err
	}
	last := "it ended without a word"
	for lines := bufio.NewScanner(read); lines.Scan(); {
		if last = lines.Text(); last == ready {
			return c.refresh()
		}
		fmt.Fprintln(progress, last)
	}
	_ = init.Wait() // it failed, and has printed why
	return errors.New(last)
}

// ready is the last line of progress of a cluster that works.
const ready = "ready"

// Down ends the cluster and deletes everything except its logs. Without a cluster it does nothing.
func (c Cluster) Down() error {
	// Process 1 ends after all its children.
	for pid := c.pid(); pid != 0; pid = c.pid() {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("killing the cluster's first process, %d: %w", pid, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err := multi.Errors(c.removeCgroups(), os.RemoveAll(c.state())); err != nil {
		return fmt.Errorf("cleaning up after the cluster: %w", err)
	}
	return nil
}

// pid returns the cluster's process 1, as seen from outside; 0 if none runs. It is found by its
// arguments and by being process 1 of a namespace, because a file with its number could be missing
// or stale.
func (c Cluster) pid() int {
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0
	}
	own := resolved(c.Cache)
	for _, file := range processes {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has just ended
		}
		args := strings.Split(string(text), "\x00")
		if len(args) != 4 || args[1] != "init" || args[2] != c.Cache && resolved(args[2]) != own {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil && isFirst(pid) {
			return pid
		}
	}
	return 0
}

// resolved returns a path without links. A path that does not exist stays.
func resolved(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// isFirst reports whether a process is the first of its own namespace.
func isFirst(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(status), "\nNSpid:")
	line, _, _ := strings.Cut(rest, "\n")
	inside := strings.Fields(line)
	return len(inside) > 1 && inside[len(inside)-1] == "1"
}

// cgroups returns the folders of the cluster's control groups: one for each hierarchy of the
// machine, v1, v2 or both.
func (c Cluster) cgroups() ([]string, error) {
	found, err := filepath.Glob("/sys/fs/cgroup/*/" + c.cgroup())
	if v2 := "/sys/fs/cgroup/" + c.cgroup(); exists(v2) {
		found = append(found, v2)
	}
	return found, err
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// removeCgroups removes the control groups from the leaves up.
func (c Cluster) removeCgroups() error {
	roots, err := c.cgroups()
	if err != nil {
		return err
	}
	for _, root := range roots {
		var dirs []string
		if err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			return err
		}); err != nil {
			return err
		}
		for _, dir := range slices.Backward(dirs) {
			if err := removeCgroup(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeCgroup removes a control group once the kernel has noticed that its last process ended.
func removeCgroup(dir string) error {
	for range 100 {
		err := syscall.Rmdir(dir)
		if !errors.Is(err, syscall.EBUSY) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("control group %s still has processes", dir)
}
