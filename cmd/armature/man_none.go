//go:build !man

package main

import "github.com/spf13/cobra"

// releaseCommands are in man.go.
func releaseCommands() []*cobra.Command { return nil }
