// Package controlplane starts a Kubernetes API for a test: a real etcd and a real kube-apiserver on
// loopback ports, with TLS, RBAC and ServiceAccount tokens, in seconds and without root. No
// controller and no kubelet runs: what a test creates stays as it is until the test changes it.
//
//	func TestSomething(t *testing.T) {
//		api := controlplane.Start(t)
//		c, err := client.New(api.Admin.Config, client.Options{})
//		…
//	}
//
// `make controlplane` builds the two programs; KUBEBUILDER_ASSETS names a folder with others. `make
// test` runs without them, `make test-servers` with them.
package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/armature-dev/armature/e2e/ports"
	"github.com/armature-dev/armature/functions/multi"
)

// ControlPlane is a running etcd and kube-apiserver. A test may run several, each used by one
// goroutine at a time; clients of an Access have no such limit.
type ControlPlane struct {
	// Admin may do everything.
	Admin Access

	plane envtest.ControlPlane
	dir   string // of all files of the servers, with their logs
	logs  []*os.File
	// audited makes the API server log requests about Secrets, and those that change anything.
	audited bool
}

// Only is named by a package most of whose tests need a control plane, as `var _ =
// controlplane.Only`, so that make test does not link it.
const Only = true

// Start runs a control plane until the test ends. If the programs to run are missing, it skips the
// test, or fails it if they are required.
func Start(t testing.TB) *ControlPlane {
	t.Helper()
	return start(t, &ControlPlane{})
}

func start(t testing.TB, c *ControlPlane) *ControlPlane {
	t.Helper()
	err := c.begin()
	switch {
	case skipped(err):
		skip(t, err)
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Run starts a control plane for a TestMain, which the caller ends with Stop. The error is
// ErrNoPrograms if etcd and kube-apiserver have not been built.
func Run() (*ControlPlane, error) {
	c := &ControlPlane{}
	if err := c.begin(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *ControlPlane) begin() error {
	bin, err := programs()
	if err != nil {
		return err
	}
	if err := c.run(bin); err != nil {
		err = fmt.Errorf("starting a control plane: %w%s", err, c.lastWords())
		return multi.Errors(err, c.Stop())
	}
	return nil
}

// patience is how long a server may take to start or stop. Three seconds are
// usual; a busy machine takes many times that.
const patience = 2 * time.Minute

func (c *ControlPlane) run(bin string) (err error) {
	if c.dir, err = os.MkdirTemp("", "controlplane-"); err != nil {
		return err
	}
	for _, server := range []string{"etcd", "kube-apiserver"} {
		if err := os.Mkdir(filepath.Join(c.dir, server), 0o700); err != nil {
			return err
		}
		log, err := os.Create(filepath.Join(c.dir, server+".log"))
		if err != nil {
			return err
		}
		c.logs = append(c.logs, log)
	}
	var free [3]string // of etcd for clients and for peers, and of the API server
	for i := range free {
		if free[i], err = ports.Free(); err != nil {
			return err
		}
	}
	c.plane.Etcd = &envtest.Etcd{
		URL:  &url.URL{Scheme: "http", Host: net.JoinHostPort(loopback, free[0])},
		Path: filepath.Join(bin, "etcd"), DataDir: filepath.Join(c.dir, "etcd"),
		StartTimeout: patience, StopTimeout: patience,
		Out: c.logs[0], Err: c.logs[0],
	}
	c.plane.Etcd.Configure().Set("listen-peer-urls", "http://"+net.JoinHostPort(loopback, free[1]))
	c.plane.APIServer = &envtest.APIServer{
		SecureServing: envtest.SecureServing{ListenAddr: envtest.ListenAddr{Address: loopback,
			Port: free[2]}},
		Path:    filepath.Join(bin, "kube-apiserver"),
		CertDir: filepath.Join(c.dir, "kube-apiserver"), StartTimeout: patience,
		StopTimeout: patience, Out: c.logs[1], Err: c.logs[1],
	}
	if c.audited {
		if err := c.audit(c.plane.APIServer); err != nil {
			return err
		}
	}
	if err := c.plane.Start(); err != nil {
		return err
	}
	if c.Admin, err = c.User("admin", "system:masters"); err != nil {
		return err
	}
	return c.ready()
}

const loopback = "127.0.0.1"

// ready waits until every start-up hook of the API server is done, such as the one that creates the
// roles of RBAC, and the namespace default exists.
func (c *ControlPlane) ready() error {
	cs, err := kubernetes.NewForConfig(c.Admin.Config)
	if err != nil {
		return err
	}
	var last error
	isReady := func(ctx context.Context) (bool, error) {
		if last = cs.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); last == nil {
			_, last = cs.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
		}
		return last == nil, nil
	}
	if err := wait.PollUntilContextTimeout(context.Background(), 50*time.Millisecond, patience,
		true, isReady); err != nil {
		return fmt.Errorf("waiting for the API server to be ready: %w: %w", err, last)
	}
	return nil
}

// Stop ends both servers and deletes their files.
func (c *ControlPlane) Stop() error {
	err := c.KillAPIServer() // a graceful end would wait for every watch
	if stop := c.plane.Stop(); !errors.Is(stop, syscall.ESRCH) {
		err = multi.Errors(err, stop) // ESRCH: it has ended already
	}
	err = multi.Errors(err, os.RemoveAll(c.dir))
	for _, log := range c.logs {
		err = multi.Errors(err, log.Close())
	}
	if err != nil {
		return fmt.Errorf("stopping a control plane: %w", err)
	}
	return nil
}

// lastWords returns the end of the servers' logs, for an error.
func (c *ControlPlane) lastWords() string {
	var words bytes.Buffer
	for _, log := range c.logs {
		text, err := os.ReadFile(log.Name())
		if err != nil {
			continue // the error at hand matters more
		}
		lines := bytes.SplitAfter(text, []byte("\n"))
		fmt.Fprintf(&words, "\n%s:\n%s", filepath.Base(log.Name()),
			bytes.Join(lines[max(0, len(lines)-12):], nil))
	}
	return words.String()
}
