package main

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/builds/local/relay"
)

// forwardCommand passes connections on, for builds on a machine whose BuildKit has a loopback
// address of its own: `armature build run --local` runs it there, with a socket that leads
// back to its registry and its sources. Where the address is in use, nothing has to be
// passed on: it is the same loopback.
func forwardCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "forward ADDRESS SOCKET",
		Short: "Pass TCP connections to ADDRESS on to a Unix socket",
		Args: func(_ *cobra.Command, given []string) error {
			if len(given) != 2 {
				return usageError{errors.New("an address and a socket are required")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, given []string) error {
			listener, err := new(net.ListenConfig).Listen(cmd.Context(), "tcp", given[0])
			if errors.Is(err, syscall.EADDRINUSE) {
				fmt.Fprintln(cmd.OutOrStdout(), "in use")
				return nil
			} else if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "listening")
			return relay.Serve(listener, func() (net.Conn, error) {
				return new(net.Dialer).DialContext(cmd.Context(), "unix", given[1])
			})
		},
	}
}
