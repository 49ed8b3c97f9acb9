//go:build !man

package main

import "github.com/spf13/cobra"

// releaseCommands returns nothing without the build tag man: see man.go.
func releaseCommands() []*cobra.Command { return nil }
