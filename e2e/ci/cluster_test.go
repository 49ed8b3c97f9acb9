package ci

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/e2e/programs"
)

// cluster is an API server, and the kubectl of the page's reader.
type cluster struct {
	testing.TB
	plane     *controlplane.ControlPlane
	kubectl   string
	variables map[string]string // PATH and KUBECONFIG
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	kubectl := programs.Peer(t, "kubectl")
	plane := controlplane.Start(t)
	return &cluster{TB: t, plane: plane, kubectl: kubectl, variables: map[string]string{
		"PATH":       strings.Join([]string{bin, os.Getenv("PATH"), filepath.Dir(kubectl)}, ":"),
		"KUBECONFIG": plane.Admin.Kubeconfig,
	}}
}

// run returns what kubectl prints.
func (c *cluster) run(args ...string) string {
	c.Helper()
	out, err := c.command(c.Context(), args...).CombinedOutput()
	if err != nil {
		c.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (c *cluster) command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, c.kubectl,
		append([]string{"--kubeconfig", c.plane.Admin.Kubeconfig}, args...)...)
}

// play writes an object's status as its controller would, again and again from when
// the object is there until the test ends, which fails where it never worked.
func (c *cluster) play(namespace, object, status string) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan string)
	go func() {
		last := "not tried"
		for ; ctx.Err() == nil; time.Sleep(500 * time.Millisecond) {
			out, err := c.command(ctx, "-n", namespace, "patch", object, "--subresource=status",
				"--type=merge", "--patch", status).CombinedOutput()
			if err == nil {
				last = ""
			} else if last != "" && ctx.Err() == nil {
				last = string(out)
			}
		}
		done <- last
	}()
	c.Cleanup(func() {
		cancel()
		if last := <-done; last != "" {
			c.Errorf("the status of %s cannot be written: %s", object, last)
		}
	})
}

// module is the folder of a module that another module of the repository requires.
func module(t *testing.T, of, name string) string {
	t.Helper()
	list := exec.Command("go", "list", "-m", "-f", "{{.Version}}", name)
	list.Dir = filepath.Join(root, filepath.FromSlash(of))
	version, err := list.Output()
	if err != nil {
		t.Fatalf("looking for the version of %s: %v", name, err)
	}
	download := exec.Command("go", "mod", "download", "-json",
		name+"@"+strings.TrimSpace(string(version)))
	download.Dir = list.Dir
	out, err := download.Output()
	var found struct{ Dir string }
	if err == nil {
		err = json.Unmarshal(out, &found)
	}
	if err != nil || found.Dir == "" {
		t.Fatalf("downloading %s: %v", name, err)
	}
	return found.Dir
}

// repository is an empty bare repository, and the variables with which Git reaches
// it at the address.
func repository(t *testing.T, address string) (url string, variables map[string]string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "origin.git")
	git(t, filepath.Dir(dir), "init", "--quiet", "--bare", "--initial-branch=main", dir)
	url = "file://" + dir
	return url, map[string]string{"GIT_CONFIG_COUNT": "1",
		"GIT_CONFIG_KEY_0": "url." + url + ".insteadOf", "GIT_CONFIG_VALUE_0": address}
}
