// Command istioconfig takes what `istioctl manifest generate` prints and writes
// the files that `istioctl kube-inject` needs to work without a cluster.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/kustomize/kyaml/kio"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "istioctl manifest generate | istioconfig FOLDER")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "istioconfig:", err)
		os.Exit(1)
	}
}

// files of the folder, by ConfigMap and key.
var files = map[[2]string]string{
	{"istio-sidecar-injector", "config"}: "inject-config.yaml",
	{"istio-sidecar-injector", "values"}: "inject-values.yaml",
	{"istio", "mesh"}:                    "mesh-config.yaml",
}

func write(folder string) error {
	objects, err := (&kio.ByteReader{Reader: os.Stdin}).Read()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	written := 0
	for _, o := range objects {
		if o.GetKind() != "ConfigMap" {
			continue
		}
		for key, text := range o.GetDataMap() {
			file, ok := files[[2]string{o.GetName(), key}]
			if !ok {
				continue
			}
			if err := os.WriteFile(filepath.Join(folder, file), []byte(text), 0o644); err != nil {
				return err
			}
			written++
		}
	}
	if written < len(files) {
		return errors.New("the manifests lack the injector's ConfigMaps")
	}
	return nil
}
