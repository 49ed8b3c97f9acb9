//go:build linux

// Cluster starts and ends the Kubernetes of the end-to-end tests.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/armature-dev/armature/e2e/cluster"
)

const usage = `usage: cluster build|up|down|check .cache

  build  make the container images out of .cache/bin and Debian packages
  up     start the cluster, unless it runs
  down   end it
  check  fail if a cluster that ended left anything behind
`

func main() {
	if len(os.Args) != 3 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	cache, err := filepath.Abs(os.Args[2])
	if err == nil {
		c := cluster.Cluster{Cache: cache}
		switch os.Args[1] {
		case "build":
			err = c.Build(os.Stderr)
		case "up":
			err = c.Up(os.Stderr)
		case "down":
			err = c.Down()
		case "check":
			err = c.Check()
		case "init": // started by up
			err = c.Init()
		case "serve": // started by init
			err = c.Serve()
		default:
			fmt.Fprint(os.Stderr, usage)
			os.Exit(2)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}
