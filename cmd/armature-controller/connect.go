package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/spf13/cobra"
)

// connectCommand connects to an address, or listens on one: `armature check --cluster=probe` finds
// out with it whether a network enforces NetworkPolicies. The exit status is 1 where the last of
// its attempts did not connect. A policy may take a moment to apply to a new pod.
func connectCommand() *cobra.Command {
	var listen string
	var lasting time.Duration
	cmd := &cobra.Command{
		Use:    "connect ADDRESS",
		Short:  "Connect to an address by TCP, to find out whether a network lets it through",
		Hidden: true,
		Args: func(_ *cobra.Command, given []string) error {
			if (len(given) == 1) == (listen != "") {
				return usageError{errors.New("an address to connect to, or --listen, is required")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, given []string) error {
			if listen != "" {
				return acceptAll(cmd.Context(), listen)
			}
			dialer := net.Dialer{Timeout: 2 * time.Second}
			for end := time.Now().Add(lasting); ; time.Sleep(time.Second) {
				conn, err := dialer.DialContext(cmd.Context(), "tcp", given[0])
				if err == nil {
					err = conn.Close()
				}
				if time.Now().After(end) {
					return err
				}
			}
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "", "listen address, whose connections are closed")
	cmd.Flags().DurationVar(&lasting, "for", 0, "how long to repeat it; the last attempt counts")
	return cmd
}

func acceptAll(ctx context.Context, address string) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("listening: %w", err)
		}
		_ = conn.Close()
	}
}
