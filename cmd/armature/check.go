package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/preflight"
	"github.com/armature-dev/armature/render/needs"
)

func checkCommand() *cobra.Command {
	var m cli.Manifests
	var k cli.Cluster
	var format string
	var compare bool
	cmd := &cobra.Command{
		Use:   "check PATH|-",
		Short: "Print what a package needs from a cluster, and what is missing",
		Long: `Check renders a package in memory and prints the needs of the result: a version of
Kubernetes, CSI drivers, addresses of Keycloak, kinds, Pod Security, Secrets, requests.

With --cluster, it compares each need with a cluster without changing the cluster: ok,
missing or unknown, with a remedy. The exit status is 1 if something is missing or could
not be read. Needs that the Kubernetes API does not report stay unknown and do not count.`,
		Example: `  armature check apps/
  armature check apps/ --cluster -n team1
  armature check apps/ --cluster -o json`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			if f := cmd.Flags(); !compare && (f.Changed("kubeconfig") || f.Changed("context") || f.Changed("namespace")) {
				return cli.Usagef("--kubeconfig, --context and --namespace require --cluster")
			}
			all, err := needsOf(cmd, &m, given[0])
			if err != nil {
				return err
			}
			if compare {
				config, namespace, err := k.Rest()
				if err != nil {
					return err
				}
				if _, err := cli.Interruptibly(cmd.Context(), func() (any, error) { return nil, preflight.Compare(cmd.Context(), config, namespace, all) }); err != nil {
					return err
				}
			}
			return printNeeds(cmd, format, all)
		},
	}
	m.Flags(cmd, "PATH")
	k.Flags(cmd)
	cmd.Flags().BoolVar(&compare, "cluster", false, "compare with a cluster")
	cli.OutputFlag(cmd, &format, "text", "json", "yaml")
	return cmd
}

func needsOf(cmd *cobra.Command, m *cli.Manifests, given string) ([]needs.Need, error) {
	src, opt, findings, err := m.Open(cmd, given, "")
	if err != nil {
		return nil, err
	}
	if file := m.Kustomization(src); file != "" {
		return nil, fmt.Errorf("%s has to be built first\n  hint: kustomize build … | armature check -", file)
	}
	var r render.Result
	if !krm.Failed(findings) {
		opt.ObjectsOnly = true
		if r, err = render.Run(cli.InterruptibleSource(cmd, src), opt); err != nil {
			return nil, err
		}
	}
	if err := m.Report(cmd, append(findings, r.Findings...)); err != nil {
		return nil, err
	}
	objects := 0
	for _, f := range r.Files {
		render.Objects(f, func(*krm.Object) { objects++ })
	}
	if objects == 0 {
		return nil, errors.New(given + " has no Kubernetes object: name a folder or file with manifests")
	}
	return needs.Of(r.Files), nil
}

func printNeeds(cmd *cobra.Command, format string, all []needs.Need) (err error) {
	var text strings.Builder
	counts := map[needs.Status]int{}
	for i := range all {
		n := &all[i]
		if counts[n.Status]++; n.Status == needs.Missing || n.Unread {
			err = cli.ErrFindings
		}
		if n.Status != "" {
			fmt.Fprintf(&text, "%s: ", n.Status)
		}
		fmt.Fprintf(&text, "%s", cli.OneLine(n.Need))
		if n.Found != "" {
			fmt.Fprintf(&text, " (%s)", cli.OneLine(n.Found))
		}
		fmt.Fprintf(&text, "\n  for: %s\n", cli.OneLine(strings.Join(n.For, ", ")))
		if n.Status != needs.OK {
			fmt.Fprintf(&text, "  hint: %s\n", cli.OneLine(n.Remedy))
		}
	}
	if format != "text" {
		if failed := cli.PrintObjects(cmd.OutOrStdout(), format, map[string]any{"needs": append([]needs.Need{}, all...)}); failed != nil {
			return failed
		}
		return err
	}
	if _, failed := io.WriteString(cmd.OutOrStdout(), text.String()); failed != nil {
		return failed
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s", krm.Count(len(all), "need"))
	if len(counts) > 0 && counts[""] == 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), ": %d ok, %d missing, %d unknown", counts[needs.OK], counts[needs.Missing], counts[needs.Unknown])
	}
	fmt.Fprintln(cmd.ErrOrStderr())
	return err
}
