// Controlplane is a Kubernetes API without nodes in one program: it is etcd or kube-apiserver,
// depending on the name under which it is started. Tests need only these two, so they are built
// separately from the rest of a cluster.
//
// Both end with the process that started them, so that a killed test leaves no server behind.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	go endWithParent(os.Getppid())
	switch name := filepath.Base(os.Args[0]); name {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	default:
		fmt.Fprintf(os.Stderr, "%s: start this program under the name etcd or kube-apiserver\n", name)
		os.Exit(2)
	}
}

// endWithParent ends the program with its parent: the kernel gives an orphan another parent.
func endWithParent(parent int) {
	for os.Getppid() == parent {
		time.Sleep(500 * time.Millisecond)
	}
	fmt.Fprintln(os.Stderr, "the process that started this server is gone: ending")
	os.Exit(1)
}
