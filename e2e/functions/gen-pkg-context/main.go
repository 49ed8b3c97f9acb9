// Command gen-pkg-context is kpt's function that writes a ConfigMap with the name of a
// package. kpt calls it in its own process.
package main

import (
	"fmt"
	"os"

	"github.com/kptdev/kpt/pkg/lib/builtins"
	"github.com/kptdev/kpt/pkg/lib/builtins/builtintypes"
)

func main() {
	out := os.Stdout
	os.Stdout = os.Stderr // which GetBuiltinFn prints to
	function := builtins.GetBuiltinFn(&builtintypes.PackageConfig{PackagePath: "agents"})
	if err := function.Run(os.Stdin, out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
