package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/preflight"
	"github.com/armature-dev/armature/render/needs"
)

// probe is the value of --cluster with which check creates pods.
const probe = "probe"

func checkCommand() *cobra.Command {
	var in cli.Input
	var k cli.Cluster
	var format, cluster string
	cmd := &cobra.Command{
		Use:   "check PATH|-",
		Short: "Print what a package needs from a cluster, and what is missing",
		Long: `Check renders a package in memory and prints the needs of the result: a version of
Kubernetes, CSI drivers, addresses of Keycloak, kinds, Pod Security, Secrets, requests.

With --cluster, it compares each need with a cluster without changing the cluster: ok,
missing or unknown, with a remedy. The exit status is 1 if something is missing or could
not be read. Needs that the Kubernetes API does not report stay unknown and do not count.
Without PATH, it compares what attested builds need: who may write in the namespace of
their runs, for one. With --cluster=probe, it also starts two pods there, to find out
whether NetworkPolicies are enforced, and removes them.`,
		Example: `  armature check apps/
  armature check apps/ --cluster -n team1
  armature check --cluster=probe
  armature check apps/ --cluster -o json`,
		Args: cli.Args(func(cmd *cobra.Command, given []string) error {
			if cluster != "" {
				return cobra.MaximumNArgs(1)(cmd, given)
			}
			return cobra.ExactArgs(1)(cmd, given)
		}),
		RunE: func(cmd *cobra.Command, given []string) error {
			compare := cluster != ""
			if f := cmd.Flags(); !compare &&
				(f.Changed("kubeconfig") || f.Changed("context") || f.Changed("namespace")) {
				return cli.Usagef("--kubeconfig, --context and --namespace require --cluster")
			}
			all := needs.Builds()
			if len(given) > 0 {
				var err error
				if all, err = needsOf(cmd, &in, given[0]); err != nil {
					return err
				}
			}
			if builds := needs.Builds(); cluster == probe &&
				!slices.ContainsFunc(all,
					func(n needs.Need) bool { return n.Kind == needs.Enforced }) {
				all = append(all, builds[len(builds)-1])
			}
			if compare {
				config, namespace, err := k.Rest()
				if err != nil {
					return err
				}
				if _, err := cli.Interruptibly(cmd.Context(), func() (any, error) {
					return nil, preflight.Compare(cmd.Context(), config, namespace, all)
				}); err != nil {
					return err
				}
				// Probe ends with the context, after it has removed the pods, so it is not run
				// interruptibly.
				if cluster == probe {
					if err := preflight.Probe(cmd.Context(), config,
						all); cmd.Context().Err() != nil {
						return fmt.Errorf("interrupted: %w", err)
					} else if err != nil {
						return err
					}
				}
			}
			return printNeeds(cmd, format, all)
		},
	}
	in.PackageFlags(cmd, "PATH")
	k.Flags(cmd)
	cli.WordFlag(cmd, &cluster, "cluster", "", "",
		"read: compare with a cluster; probe: also make two pods there for a moment, to find out "+
			"whether NetworkPolicies are enforced", "comparison", "read", probe)
	cmd.Flags().Lookup("cluster").NoOptDefVal = "read"
	cli.OutputFlag(cmd, &format, "text", "json", "yaml")
	return cmd
}

func needsOf(cmd *cobra.Command, in *cli.Input, given string) ([]needs.Need, error) {
	src, opt, findings, activity, err := in.Load(cmd, given, "", "rendering")
	if err != nil {
		return nil, err
	}
	defer activity.End()
	if file := in.Kustomization(src); file != "" {
		return nil, fmt.Errorf(
			"%s has to be built first\n  hint: kustomize build … | armature check -", file)
	}
	opt.ObjectsOnly = true
	r, err := render.Run(src, opt)
	activity.End()
	if err != nil {
		return nil, err
	}
	if err := in.Report(cmd, append(findings, r.Findings...)); err != nil {
		return nil, err
	}
	objects := 0
	for _, f := range r.Files {
		render.Objects(f, func(*krm.Object) { objects++ })
	}
	if objects == 0 {
		return nil, errors.New(given +
			" has no Kubernetes object: name a folder or file with manifests")
	}
	return needs.Of(r.Files), nil
}

func printNeeds(cmd *cobra.Command, format string, all []needs.Need) (err error) {
	var body strings.Builder
	counts := map[needs.Status]int{}
	for i := range all {
		n := &all[i]
		if counts[n.Status]++; n.Status == needs.Missing || n.Unread {
			err = cli.ErrFindings
		}
		if n.Status != "" {
			fmt.Fprintf(&body, "%s: ", n.Status)
		}
		fmt.Fprintf(&body, "%s", cli.OneLine(n.Need))
		if n.Found != "" {
			fmt.Fprintf(&body, " (%s)", cli.OneLine(n.Found))
		}
		body.WriteByte('\n')
		if len(n.For) > 0 {
			fmt.Fprintf(&body, "  for: %s\n", cli.OneLine(strings.Join(n.For, ", ")))
		}
		if n.Status != needs.OK {
			fmt.Fprintf(&body, "  hint: %s\n", cli.OneLine(n.Remedy))
		}
	}
	if failed := cli.PrintAs(cmd, format, body.String(),
		map[string]any{"needs": append([]needs.Need{}, all...)}); failed != nil || format != "text" {
		return cmp.Or(failed, err)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s", text.Count(len(all), "need"))
	if len(counts) > 0 && counts[""] == 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), ": %d ok, %d missing, %d unknown", counts[needs.OK],
			counts[needs.Missing], counts[needs.Unknown])
	}
	fmt.Fprintln(cmd.ErrOrStderr())
	return err
}
