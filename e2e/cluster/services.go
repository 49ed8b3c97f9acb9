//go:build linux

package cluster

import (
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// service is a program that runs as long as the cluster.
type service struct {
	program string
	args    []string
}

var (
	etcd = service{"etcd", []string{
		"--data-dir=" + state + "/etcd", "--unsafe-no-fsync",
		"--listen-client-urls=https://127.0.0.1:2379", "--advertise-client-urls=https://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380",
		"--cert-file=" + pki + "/etcd.crt", "--key-file=" + pki + "/etcd.key",
		"--client-cert-auth", "--trusted-ca-file=" + pki + "/ca.crt",
	}}
	apiServer = service{"kube-apiserver", []string{
		"--advertise-address=" + nodeIP, "--secure-port=6443", "--allow-privileged",
		"--etcd-servers=https://127.0.0.1:2379", "--etcd-cafile=" + pki + "/ca.crt",
		"--etcd-certfile=" + pki + "/etcd-client.crt", "--etcd-keyfile=" + pki + "/etcd-client.key",
		"--client-ca-file=" + pki + "/ca.crt",
		"--tls-cert-file=" + pki + "/apiserver.crt", "--tls-private-key-file=" + pki + "/apiserver.key",
		"--kubelet-certificate-authority=" + pki + "/ca.crt", "--kubelet-preferred-address-types=InternalIP",
		"--kubelet-client-certificate=" + pki + "/apiserver-kubelet-client.crt",
		"--kubelet-client-key=" + pki + "/apiserver-kubelet-client.key",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + pki + "/sa.pub", "--service-account-signing-key-file=" + pki + "/sa.key",
		"--service-cluster-ip-range=" + serviceCIDR,
		"--audit-policy-file=" + state + "/audit.yaml", "--audit-log-path=" + logs + "/audit.log",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--requestheader-client-ca-file=" + pki + "/front-proxy-ca.crt",
		"--requestheader-allowed-names=front-proxy-client", "--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + pki + "/front-proxy-client.crt",
		"--proxy-client-key-file=" + pki + "/front-proxy-client.key",
	}}
	controllerManager = service{"kube-controller-manager", append(as("kube-controller-manager"),
		"--cluster-cidr="+podCIDR, "--service-cluster-ip-range="+serviceCIDR, "--allocate-node-cidrs=false",
		"--use-service-account-credentials",
		"--root-ca-file="+pki+"/ca.crt", "--service-account-private-key-file="+pki+"/sa.key",
		"--cluster-signing-cert-file="+pki+"/ca.crt", "--cluster-signing-key-file="+pki+"/ca.key",
	)}
	scheduler = service{"kube-scheduler", as("kube-scheduler")}
	kubeProxy = service{"kube-proxy", []string{"--config=" + state + "/kube-proxy.yaml"}}
	kubelet   = service{"kubelet", []string{
		"--config=" + state + "/kubelet.yaml", "--kubeconfig=" + pki + "/kubelet.kubeconfig",
		"--root-dir=" + state + "/kubelet", "--hostname-override=" + node, "--node-ip=" + nodeIP,
	}}
	containerd  = service{"containerd", []string{"--config=" + state + "/containerd.toml"}}
	csi         = service{"csi", []string{state + "/kubelet", workloadAPI}}
	spireServer = service{spireProgram, []string{"run", "-config", state + "/spire/server.conf"}}
	spireAgent  = service{bin + "/spire/spire-agent", []string{"run", "-config", state + "/spire/agent.conf"}}
	sshd        = service{"/usr/sbin/sshd", []string{"-D", "-e", "-f", state + "/sshd_config"}}
)

// workloadAPI is the folder that csi shows pods. SPIRE's agent has a socket in there.
const workloadAPI = state + "/workload-api"

// spireProgram is the server, and the command that manages it by the socket that it
// makes if nobody names one.
const spireProgram = bin + "/spire/spire-server"

// as are the flags of a component that talks to the API under its own name.
func as(component string) []string {
	config := pki + "/" + component + ".kubeconfig"
	return []string{
		"--kubeconfig=" + config, "--authentication-kubeconfig=" + config, "--authorization-kubeconfig=" + config,
		"--leader-elect=false", "--bind-address=127.0.0.1",
	}
}

// start runs services, each again when it ends: a story may kill one.
func start(services ...service) error {
	for _, s := range services {
		out, err := os.Create(filepath.Join(logs, filepath.Base(s.program)+".log"))
		if err != nil {
			return err
		}
		go func() {
			for {
				cmd := exec.Command(s.program, s.args...)
				cmd.Stdout, cmd.Stderr = out, out
				err := cmd.Run()
				log.Printf("%s ended (%v): starting it again", s.program, err)
				fmt.Fprintf(out, "--- ended (%v): starting again\n", err)
				time.Sleep(time.Second)
			}
		}()
	}
	return nil
}
