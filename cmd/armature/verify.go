package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/oci"
	"github.com/armature-dev/armature/render/verify"
)

// verifyCommand returns `armature verify`, which compares manifests with a fresh render.
func verifyCommand() *cobra.Command {
	var in cli.Input
	var required bool
	cmd := &cobra.Command{
		Use:   "verify PATH|-",
		Short: "Fail if rendered manifests differ from a fresh render of themselves",
		Long: `Verify renders manifests again and compares. Run it as the last step of a pipeline:
kustomize, for example, silently skips exec functions without --enable-exec. To compare a
folder with its source, use armature render --check; for an artifact in a registry,
armature artifact verify.`,
		Example: `  kustomize build --enable-alpha-plugins --enable-exec . | armature verify -c armature.yaml -
  armature verify rendered/ --findings github
  armature verify rendered/ --require-workloads`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			if strings.HasPrefix(given[0], oci.Scheme) {
				return cli.Usagef("verify compares manifests: use `armature artifact verify %s`",
					given[0])
			}
			return verifyManifests(cmd, given[0], &in, required)
		},
	}
	in.Flags(cmd)
	cmd.Flags().BoolVar(&required, "require-workloads", false,
		"fail if no workload opted in, for example because of a misspelt label")
	return cmd
}

func verifyManifests(cmd *cobra.Command, path string, in *cli.Input, required bool) error {
	src, opt, findings, activity, err := in.Load(cmd, path, "", "verify")
	if err != nil {
		return err
	}
	found, stats, err := verifySource(src, opt, in.Config)
	activity.End()
	if err != nil {
		return err
	}
	findings = append(findings, found...)
	if required && stats.Workloads == 0 && !finding.Failed(findings) {
		findings = append(findings,
			finding.Finding{Rule: "verify/no-workload", Severity: finding.Error,
				Place: finding.Place{File: path}, Message: "no workload opted in",
				Hint: "give a workload the label " + keys.LabelPrefix +
					"/inject: enabled, or that of the configured prefix"})
	}
	if err := in.Report(cmd, findings); err != nil {
		return err
	}
	switch {
	case !in.Talks():
	case stats.Workloads == 0:
		fmt.Fprintf(cmd.ErrOrStderr(), "verified: no workload opted in; %s are as rendered\n",
			text.Count(stats.Documents, "document"))
	default:
		fmt.Fprintf(cmd.ErrOrStderr(), "verified: %s in %s are as rendered\n",
			text.Count(stats.Workloads, "workload"), text.Count(stats.Documents, "document"))
	}
	return nil
}

// verifySource compares a source with a fresh render. A ResourceList is rendered with its own
// configuration.
func verifySource(src render.Source, opt render.Options,
	named string) ([]finding.Finding, render.Stats, error) {
	list, err := resourceList(src, opt, named)
	if err != nil {
		return nil, render.Stats{}, err
	}
	if list == nil {
		return verify.Run(src, opt)
	}
	_, findings, stats, err := verify.List(list, opt)
	return findings, stats, err
}
