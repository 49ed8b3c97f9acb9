package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/dynamic"

	"github.com/armature-dev/armature/builds/live/chain"
	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/render/deliver/status"
)

// statusCommand is `armature status`: how what was rendered fares.
func statusCommand() *cobra.Command {
	var k cli.Cluster
	var format string
	var watch, packages bool
	cmd := &cobra.Command{
		Use:   "status [NAME]...",
		Short: "Show the state of actors, agents and injected workloads in a cluster",
		Long: `Status reads live objects and reports the state of rendered workloads: actors with the
states and columns of their former operator, agents with their conditions, and all other
injected workloads, each with the components of the identity infrastructure that are
ready. It writes nothing and reads no Secrets.

With one NAME, status also shows the chain from the source commit to the pods: the run, the
image, its attestation and the lock in Git, and which link is not complete and why.

With --packages, status lists the packages that armature apply has applied, or the objects
of the package NAME and their health.

The exit status is 0 if everything is ready, 3 if something is in progress, and 1
if something failed or cannot be read. docs/status.md explains each
state.`,
		Example: `  armature status
  armature status weather-agent -n team1 -o wide
  armature status -A --watch
  armature status --packages -A
  armature status --packages weather -n team1
  armature status -o json`,
		Args: cli.Args(func(cmd *cobra.Command, names []string) error {
			if packages {
				return cobra.MaximumNArgs(1)(cmd, names)
			}
			return nil
		}),
		ValidArgsFunction: func(cmd *cobra.Command, given []string,
			typed string) ([]string, cobra.ShellCompDirective) {
			if packages {
				return k.CompletePackages(cmd, given, typed)
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, names []string) error {
			if packages && watch {
				return cli.Usagef("--packages and --watch exclude each other")
			}
			if packages {
				return showPackages(cmd, &k, names, format)
			}
			if watch && format != "table" && format != "wide" {
				return cli.Usagef("--watch prints tables: leave out -o %s", format)
			}
			config, namespace, err := k.Rest()
			if err != nil {
				return err
			}
			c, err := dynamic.NewForConfig(config)
			if err != nil {
				return fmt.Errorf("connecting to the cluster: %w", err)
			}
			s := statusOf{c: c, namespace: namespace, names: names, format: format, watch: watch}
			if watch {
				return s.follow(cmd)
			}
			health, err := s.show(cmd)
			if err != nil {
				return err
			}
			return exitOf(health)
		},
	}
	k.Flags(cmd)
	k.AllFlag(cmd)
	cmd.Flags().BoolVar(&packages, "packages", false,
		"list the applied packages, or the objects of the package NAME")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false,
		"show the state again when it changes, until Ctrl-C")
	cli.ListFlag(cmd, &format)
	return cmd
}

func exitOf(h status.Health) error {
	switch h {
	case status.Well:
		return nil
	case status.Busy:
		return cli.InProgress
	}
	return cli.ErrFindings
}

// statusOf is what a call shows.
type statusOf struct {
	c         dynamic.Interface
	namespace string
	names     []string
	format    string
	watch     bool
	last      string
}

// show prints the report, with --watch only where it differs from the last one.
func (s *statusOf) show(cmd *cobra.Command) (status.Health, error) {
	live, err := status.Read(cmd.Context(), s.c, s.namespace)
	if err != nil {
		return status.Ill, err
	}
	report := status.Of(live)
	if len(s.names) > 0 {
		found := report.Only(s.names)
		missing := slices.DeleteFunc(slices.Clone(s.names),
			func(n string) bool { return slices.Contains(found, n) })
		if len(missing) > 0 && !s.watch {
			return status.Ill, fmt.Errorf("no rendered object has the name %s%s",
				strings.Join(missing, ", "), cli.Where(s.namespace))
		}
	}
	chains, err := s.chains(cmd.Context(), live, report)
	if err != nil {
		return status.Ill, err
	}
	var text strings.Builder
	tables := s.format == "table" || s.format == "wide"
	switch {
	case tables:
		if err = report.Write(&text, s.namespace == "", s.format == "wide"); err == nil {
			err = writeChains(&text, chains)
		}
	case s.format == "name":
		text.WriteString(strings.Join(append(report.Names(), ""), "\n"))
	default:
		err = cli.PrintObjects(&text, s.format, struct {
			status.Report `json:",inline"`
			Chains        []chain.Chain `json:"chains,omitempty"`
		}{report, chains})
	}
	out := text.String()
	if tables {
		out = cli.Harmless(out) // a registry's words come here through the kubelet
	}
	if err != nil || s.watch && out == s.last {
		return report.Health(), err
	}
	if s.last != "" {
		fmt.Fprintf(cmd.OutOrStdout(), "\n%s\n", live.Now.Format(time.TimeOnly))
	}
	s.last = out
	if report.Empty() && tables {
		fmt.Fprintf(cmd.ErrOrStderr(), "no rendered objects%s\n", cli.Where(s.namespace))
	}
	_, err = io.WriteString(cmd.OutOrStdout(), out)
	return report.Health(), err
}

// follow shows the report until Ctrl-C, whose exit status is that of the last
// report. If the cluster does not answer for a while, follow says so and asks again.
func (s *statusOf) follow(cmd *cobra.Command) error {
	const every = 2 * time.Second
	tick := time.NewTicker(every)
	defer tick.Stop()
	health, failed := status.Ill, "" // until something was shown
	for {
		now, err := s.show(cmd)
		switch {
		case cmd.Context().Err() != nil:
			return exitOf(health)
		case err != nil && s.last == "":
			return err
		case err != nil && err.Error() != failed:
			failed = err.Error()
			fmt.Fprintf(cmd.ErrOrStderr(), "%s (every %s)\n", failed, every)
		case err == nil:
			health, failed = now, ""
		}
		select {
		case <-cmd.Context().Done():
			return exitOf(health)
		case <-tick.C:
		}
	}
}
