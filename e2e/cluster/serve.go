//go:build linux

package cluster

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
	"time"
)

// Info describes the cluster that a story runs on. Addresses are for use inside the cluster; those
// that begin with Host are the same servers from the machine's own network.
type Info struct {
	Registry, HostRegistry               string
	PrivateRegistry, HostPrivateRegistry string
	RegistryUser, RegistryPassword       string

	// Git serves public/NAME.git to everyone, and private/NAME.git to clients with the token, as
	// password of any user. A push requires the token and creates the repository if it does not
	// exist.
	GitHTTP, HostGitHTTP string
	GitToken             string
	// GitSSH serves the same to clients with the private key: add public/NAME.git.
	GitSSH                string
	SSHKey, SSHKnownHosts string

	// Metadata is the URL at which pods find a metadata service, as the nodes of a cloud have, and
	// MetadataToken is the token that it returns to every client. Both are empty if the cluster has
	// none.
	Metadata, MetadataToken string

	// Images are the images of Build as references by digest, by name. Mirror has the same images
	// under the names that shipped steps use.
	Images map[string]string
	Mirror string

	// VulnerabilityDatabase is the URL of a database for grype with two advisories: PyYAML before
	// 5.4 is critical, setuptools before 70.0.0 is high. Empty means grype's own.
	VulnerabilityDatabase string

	// AuditLog is a file with the requests of ServiceAccounts to the API server, one
	// JSON object a line. Empty if the cluster has none.
	AuditLog string

	// Process is the ancestor of all processes of the cluster.
	Process int

	// SPIREServer is the command, with its first arguments, that manages the SPIRE
	// server: `entry create …`, `bundle show`. The trust domain is example.com, and
	// SPIREAgent the SPIFFE ID of the agent that issues to pods, at the socket
	// /spire-agent.sock of csi.spiffe.io. Empty if the cluster has none.
	SPIREServer []string
	SPIREAgent  string
}

// Info describes the running cluster.
func (c Cluster) Info() (*Info, error) {
	text, err := os.ReadFile(filepath.Join(c.state(), "info.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("no cluster runs\n  hint: start one with `make cluster-up`")
	}
	if err != nil {
		return nil, err
	}
	info := &Info{}
	return info, json.Unmarshal(text, info)
}

func writeInfo(info *Info, dir string) error {
	text, err := json.MarshalIndent(info, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "info.json"), text, 0o600)
}

// Serve starts everything, reports that it is ready, and then keeps it running.
func (c Cluster) Serve() error {
	progress := os.NewFile(3, "progress")
	info := &Info{Images: map[string]string{}}
	if err := c.bringUp(info, progress); err != nil {
		// Up reports the last line as the reason.
		fmt.Fprintln(progress, strings.ReplaceAll(err.Error(), "\n", " "))
		return err
	}
	fmt.Fprintln(progress, ready)
	progress.Close()
	select {}
}

func (c Cluster) bringUp(info *Info, progress io.Writer) error {
	commands, err := c.services()
	if err != nil {
		return err
	}
	phases := []struct {
		name string
		do   func() error
	}{
		{"keys, registries, Git", func() error { return c.prepare(info) }},
		{"API server", func() error {
			if err := start(commands, "etcd", "kube-apiserver", "containerd", "sshd"); err != nil {
				return err
			}
			return until("get", "--raw=/readyz")
		}},
		{"images in the registry", func() error { return pushImages(info) }},
		{"node", func() error {
			// SPIRE's agent would create the folder without access for the users of pods.
			if err := os.MkdirAll(workloadAPI, 0o755); err != nil {
				return err
			}
			if err := start(commands, "kube-controller-manager", "kube-scheduler", "csi", "kubelet",
				"kube-proxy", "spire-server", "spire-agent"); err != nil {
				return err
			}
			return until("wait", "--for=condition=Ready", "node/"+node, "--timeout=1s")
		}},
		{"DNS and Tekton applied", func() error { return c.install(info) }},
		{"DNS and Tekton ready", func() error {
			return until("wait", "--for=condition=Available", "--timeout=10s", "deployment",
				"--all", "--all-namespaces")
		}},
	}
	began := time.Now()
	for _, phase := range phases {
		phaseBegan := time.Now()
		if err := phase.do(); err != nil {
			return fmt.Errorf("%s: %w", phase.name, err)
		}
		fmt.Fprintf(progress, "%6.1f s  %s (%.1f s)\n",
			time.Since(began).Seconds(), phase.name, time.Since(phaseBegan).Seconds())
	}
	return writeInfo(info, state)
}

// prepare creates the files that the servers read, and starts the servers that are part of this
// program.
func (c Cluster) prepare(info *Info) error {
	// kubectl learns the API once for all its calls.
	if err := os.Setenv("KUBECACHEDIR", state+"/kubectl"); err != nil {
		return err
	}
	hostAPI, err := publish(info)
	if err != nil {
		return err
	}
	if err := makeCertificates(hostAPI); err != nil {
		return err
	}
	if err := makeSSHKeys(info); err != nil {
		return err
	}
	stored, err := openImages(root)
	if err != nil {
		return err
	}
	if err := stored.writeTo(info); err != nil {
		return err
	}
	values := c.values(info.Images)
	for volume := range volumes {
		if err := os.MkdirAll(filepath.Join(state, "volumes", fmt.Sprint(volume)), 0o755); err != nil {
			return err
		}
	}
	for from, to := range map[string]string{
		"containerd.toml":   "containerd.toml",
		"cni.conflist":      "cni/pods.conflist",
		"kubelet.yaml":      "kubelet.yaml",
		"kube-proxy.yaml":   "kube-proxy.yaml",
		"resolv.conf":       "resolv.conf",
		"sshd_config":       "sshd_config",
		"cluster.yaml":      "manifests/00-cluster.yaml",
		"audit.yaml":        "audit.yaml",
		"spire-server.conf": "spire/server.conf",
		"spire-agent.conf":  "spire/agent.conf",
	} {
		if err := render(from, filepath.Join(state, to), values); err != nil {
			return err
		}
	}
	for _, registry := range []string{info.Registry, info.PrivateRegistry} {
		dir := filepath.Join(state, "registries", registry)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		plainHTTP := fmt.Sprintf("[host.%q]\ncapabilities = [\"pull\", \"resolve\"]\n",
			"http://"+registry)
		if err := os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(plainHTTP), 0o644); err != nil {
			return err
		}
	}
	return c.makeCgroups()
}

//go:embed config
var config embed.FS

// volumes is the number of volumes for claims. Each is used once until the cluster ends; a run of
// all stories uses about fifty.
const volumes = 300

// values returns the values of the templates in config.
func (c Cluster) values(images map[string]string) map[string]any {
	return map[string]any{
		"State": state, "PKI": pki, "Cgroup": c.cgroup(), "Images": images, "Volumes": volumes,
		"Node": node, "NodeIP": nodeIP, "PodCIDR": podCIDR, "ServiceCIDR": serviceCIDR,
		"DNSIP": dnsIP, "Logs": logs, "WorkloadAPI": workloadAPI, "SPIRE": spire,
	}
}

func render(from, to string, values map[string]any) error {
	text, err := template.ParseFS(config, "config/"+from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	file, err := os.Create(to)
	if err != nil {
		return err
	}
	defer file.Close()
	return text.Execute(file, values)
}

// makeCgroups creates the groups for the pods in the hierarchies of v1; in v2's the kubelet does. A
// new group of v1 has no core and no memory node until it is assigned some.
func (c Cluster) makeCgroups() error {
	hierarchies, err := filepath.Glob("/sys/fs/cgroup/*/tasks")
	if err != nil {
		return err
	}
	for _, tasks := range hierarchies {
		hierarchy := filepath.Dir(tasks)
		group := filepath.Join(hierarchy, c.cgroup())
		if err := os.MkdirAll(group, 0o755); err != nil {
			return err
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			all, err := os.ReadFile(filepath.Join(hierarchy, file))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(group, file), all, 0o644)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// makeSSHKeys creates the SSH server's key and the client's.
func makeSSHKeys(info *Info) error {
	for _, dir := range []string{state + "/ssh", "/run/sshd"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	for _, key := range []string{"host", "client"} {
		out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", key, "-f",
			state+"/ssh/"+key).CombinedOutput()
		if err != nil {
			return fmt.Errorf("making an SSH key: %w: %s", err, out)
		}
	}
	private, err := os.ReadFile(state + "/ssh/client")
	if err != nil {
		return err
	}
	public, err := os.ReadFile(state + "/ssh/host.pub")
	if err != nil {
		return err
	}
	info.SSHKey, info.SSHKnownHosts = string(private), nodeIP+" "+string(public)
	return nil
}

// pushImages fills the registry. It links the blobs, which the registry finds by their digests,
// instead of pushing them.
func pushImages(info *Info) error {
	const sha256 = "/blobs/sha256"
	if err := os.MkdirAll(state+sha256, 0o755); err != nil {
		return err
	}
	blobs, err := os.ReadDir(filepath.Join(root, imageDir, sha256))
	if err != nil {
		return err
	}
	for _, blob := range blobs {
		if err := os.Link(filepath.Join(root, imageDir, sha256, blob.Name()),
			filepath.Join(state, sha256, blob.Name())); err != nil {
			return err
		}
	}
	stored, err := openImages(root)
	if err != nil {
		return err
	}
	return stored.push(info.Registry)
}

// install applies the manifests of the cluster's own parts and of Tekton.
func (c Cluster) install(info *Info) error {
	manifests, err := filepath.Glob(root + "/tekton-config/*.yaml")
	if err != nil {
		return err
	}
	for _, manifest := range manifests {
		text, err := os.ReadFile(manifest)
		if err != nil {
			return err
		}
		text = []byte(withImages(string(text), info.Images))
		if err := os.WriteFile(filepath.Join(state, "manifests", filepath.Base(manifest)), text,
			0o644); err != nil {
			return err
		}
	}
	out, err := kubectl("apply", "--server-side", "-f", state+"/manifests")
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func kubectl(args ...string) ([]byte, error) {
	return exec.Command("kubectl", append([]string{"--kubeconfig=" + pki + "/admin.kubeconfig"},
		args...)...).CombinedOutput()
}

// until repeats a kubectl command until it succeeds.
func until(args ...string) error {
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		out, err := kubectl(args...)
		if err == nil {
			return nil
		}
		if time.Since(began) > 3*time.Minute {
			return fmt.Errorf("not within 3 minutes: kubectl %s: %w: %s", strings.Join(args, " "),
				err, out)
		}
	}
}
