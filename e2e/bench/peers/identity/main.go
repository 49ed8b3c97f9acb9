// Command identity is a KRM function that changes nothing, written with the
// framework that kyaml offers for KRM functions.
package main

import (
	"fmt"
	"os"

	"sigs.k8s.io/kustomize/kyaml/fn/framework"
	"sigs.k8s.io/kustomize/kyaml/kio"
)

func main() {
	rw := &kio.ByteReadWriter{Reader: os.Stdin, Writer: os.Stdout, KeepReaderAnnotations: true}
	nothing := framework.ResourceListProcessorFunc(func(*framework.ResourceList) error {
		return nil
	})
	if err := framework.Execute(nothing, rw); err != nil {
		fmt.Fprintln(os.Stderr, "identity:", err)
		os.Exit(1)
	}
}
