package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/dynamic"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/migrate"
	"github.com/armature-dev/armature/render/source"
)

func migrateCommand() *cobra.Command {
	var in cli.Input
	var folder, format, harness string
	var write, live bool
	var k cli.Cluster
	cmd := &cobra.Command{
		Use:   "migrate PATH|-",
		Short: "Convert Agents, kagent's resources and injected workloads to plain manifests",
		Long: `Migrate converts the custom resources of other agent platforms to the standard objects
that their controllers generate, and removes the additions of admission webhooks from
workloads. It reports for each field whether it is kept, moved or dropped and why, and
which running workloads roll.

Nothing is written without --write. From a cluster, export the custom resources
together with the objects that their controllers created: those objects then stay
unchanged. Delete the custom resources afterwards with
"kubectl delete --cascade=orphan", or the cluster deletes the workloads too.

With --kagent-harness, migrate converts resources of kagent 0.x to kagent 1.0 instead: each
Agent becomes an AgentTemplate, a Harness and an Agent, by kagent's own mapping. The file
has a Harness of 1.0 with the image and the place of agents. Agents that need another
environment or memory get their own Harness.`,
		Example: `  armature migrate apps/                          report what each field would become
  armature migrate apps/ --write                  change the files
  armature migrate apps/ -d migrated/ --write     write to another folder
  armature migrate apps/ --report markdown > migration.md
  kubectl get agents,deploy,svc -o yaml | armature migrate - --write > migrated.yaml
  armature migrate --from-cluster -n team1        read a namespace of the cluster
  armature migrate kagent/ --kagent-harness harness.yaml -d kagent-1.0/ --write`,
		Args: func(cmd *cobra.Command, given []string) error {
			if live {
				return cli.Args(cobra.NoArgs)(cmd, given)
			}
			return cli.Args(cobra.ExactArgs(1))(cmd, given)
		},

		RunE: func(cmd *cobra.Command, given []string) error {
			if folder != "" && !write {
				return cli.Usagef(
					"--output-dir requires --write; without both, migrate only reports")
			}
			path := "-"
			if live {
				config, namespace, err := k.Rest()
				if err != nil {
					return err
				}
				c, err := dynamic.NewForConfig(config)
				if err != nil {
					return fmt.Errorf("connecting to the cluster: %w", err)
				}
				exported, err := cli.Export(cmd.Context(), c, namespace)
				if err != nil {
					return err
				}
				if len(exported) == 0 {
					return errors.New("the cluster has nothing to migrate there")
				}
				cmd.SetIn(bytes.NewReader(exported))
			} else {
				for _, name := range [...]string{"kubeconfig", "context", "namespace"} {
					if cmd.Flags().Changed(name) {
						return cli.Usagef("--%s requires --from-cluster", name)
					}
				}
				path = given[0]
			}
			return runMigration(cmd, path, &in, folder, format, harness, write)
		},
	}
	in.Flags(cmd)
	cli.DirFlag(cmd, &folder, "folder to write to (default: PATH itself)")
	cli.WordFlag(cmd, &format, "report", "", "text",
		"write the report as "+strings.Join(migrate.Formats(), ", "), "format", migrate.Formats()...)
	cmd.Flags().BoolVar(&write, "write", false, "write the migrated manifests, not only the report")
	cmd.Flags().StringVar(&harness, "kagent-harness", "",
		"convert kagent 0.x to 1.0, with the Harness in this file")
	cmd.Flags().BoolVar(&live, "from-cluster", false,
		"read a namespace of a cluster instead of PATH")
	k.Flags(cmd)
	return cmd
}

func runMigration(cmd *cobra.Command, path string, in *cli.Input, folder, format, harness string,
	write bool) error {
	shown := cli.Begin(cmd.ErrOrStderr(), in.Quiet, "reading "+path)
	defer shown.End()
	src, opt, findings, err := in.Open(cmd, path, folder)
	if err != nil {
		return err
	}
	if finding.Failed(findings) {
		shown.End()
		return in.Report(cmd, findings)
	}
	var to *source.Folder
	inPlace := false
	var stream source.Spool
	sink := func(string, []byte) error { return nil }
	switch {
	case write && path == "-" && folder == "":
		sink = stream.Write
	case write:
		if folder == "" {
			inPlace = true
			if folder, err = cli.RootOf(path); err != nil {
				return err
			}
		}
		if to, err = source.NewFolder(folder, inPlace); err != nil {
			return err
		}
		sink = to.Write
	}
	var reports []migrate.Report
	var found []finding.Finding
	src, sink = shown.Reading("migrating", src), cli.Interruptible(cmd.Context(), sink)
	if harness == "" {
		reports, found, err = migrate.Run(src, opt, sink)
	} else {
		var text []byte
		if text, err = os.ReadFile(harness); err == nil {
			reports, found, err = migrate.ToSuccessor(src, opt, text, sink)
		}
	}
	shown.End()
	if err == nil {
		err = in.Report(cmd, append(findings, found...))
	}
	if err != nil {
		if to != nil {
			err = multi.Errors(err, to.Abort())
		}
		return err
	}
	out := cmd.OutOrStdout()
	if write && to == nil {
		out = cmd.ErrOrStderr()
		if _, err := stream.WriteTo(cmd.OutOrStdout()); err != nil {
			return fmt.Errorf("writing: %w", err)
		}
	}
	if to != nil {
		if _, _, err := to.Commit(); err != nil {
			return fmt.Errorf("writing to %s: %w", folder, err)
		}
	}
	if err := migrate.Write(out, format, reports); err != nil {
		return err
	}
	if in.Talks() {
		done := text.Count(len(reports), "object") +
			" would be migrated: nothing was written, set --write"
		switch {
		case len(reports) == 0:
			done = "nothing to migrate: " + path +
				" has no objects of other platforms and no additions of webhooks"
		case write:
			done = text.Count(len(reports), "object") + " migrated"
		}
		fmt.Fprintln(cmd.ErrOrStderr(), done)
	}
	return nil
}
