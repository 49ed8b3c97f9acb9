package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render/migrate"
	"github.com/armature-dev/armature/render/source"
)

func migrateCommand() *cobra.Command {
	var in input
	var folder, format string
	var write, live bool
	var k cluster
	cmd := &cobra.Command{
		Use:   "migrate PATH|-",
		Short: "Convert Agents, kagent's resources and injected workloads to plain manifests",
		Long: `Migrate turns the custom resources of other agent platforms into the standard
objects that they generate, and removes from workloads what admission webhooks
put in. It reports for every field whether it is kept, moved or dropped, with
the reason, and which running workloads roll.

Nothing is written without --write. From a cluster, export the custom resources
together with the objects that their controllers created: those objects then stay
as they run. Delete the custom resources afterwards with
"kubectl delete --cascade=orphan", or the cluster deletes the workloads too.`,
		Example: `  armature migrate apps/                          say what would become of each field
  armature migrate apps/ --write                  change the files
  armature migrate apps/ -o migrated/ --write     write to another folder
  armature migrate apps/ --report markdown > migration.md
  kubectl get agents,deploy,svc -o yaml | armature migrate - --write > migrated.yaml
  armature migrate --from-cluster -n team1        read a namespace of the cluster`,
		Args: func(cmd *cobra.Command, given []string) error {
			if live {
				return args(cobra.NoArgs)(cmd, given)
			}
			return args(cobra.ExactArgs(1))(cmd, given)
		},
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		RunE: func(cmd *cobra.Command, given []string) error {
			if !slices.Contains(migrate.Formats(), format) {
				return usageError{fmt.Errorf("unknown format %q for --report: choose from %s", format, strings.Join(migrate.Formats(), ", "))}
			}
			if folder != "" && !write {
				return usageError{errors.New("--output writes, so it needs --write; without both, only the report is made")}
			}
			path := "-"
			if live {
				exported, err := k.export(cmd.Context())
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
						return usageError{fmt.Errorf("--%s requires --from-cluster", name)}
					}
				}
				path = given[0]
			}
			return runMigration(cmd, path, &in, folder, format, write)
		},
	}
	in.flags(cmd)
	cmd.Flags().StringVarP(&folder, "output", "o", "", "folder to write to (default: PATH itself)")
	cmd.Flags().StringVar(&format, "report", "text", "write the report as "+strings.Join(migrate.Formats(), ", "))
	cmd.Flags().BoolVarP(&write, "write", "w", false, "write the migrated manifests, and not only the report")
	cmd.Flags().BoolVar(&live, "from-cluster", false, "read a namespace of a cluster instead of PATH")
	k.flags(cmd)
	if err := cmd.RegisterFlagCompletionFunc("report", cobra.FixedCompletions(migrate.Formats(), cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag was defined four lines above
	}
	return cmd
}

func runMigration(cmd *cobra.Command, path string, in *input, folder, format string, write bool) error {
	defer collectAt(whileMigrating)()
	shown := begin(cmd.ErrOrStderr(), in.quiet, "reading "+path)
	defer shown.end()
	src, opt, findings, err := in.open(cmd, path, folder)
	if err != nil {
		return err
	}
	if krm.Failed(findings) {
		shown.end()
		return in.report(cmd, findings)
	}
	var to *source.Folder
	var stream source.Spool
	sink := func(string, []byte) error { return nil }
	switch {
	case write && path == "-" && folder == "":
		sink = stream.Write
	case write:
		if folder == "" {
			folder = path
			if info, err := os.Stat(path); err == nil && !info.IsDir() {
				folder = filepath.Dir(path)
			}
			to, err = source.NewFolder(folder, true)
		} else {
			to, err = source.NewFolder(folder, false)
		}
		if err != nil {
			return err
		}
		sink = to.Write
	}
	reports, found, err := migrate.Run(shown.reading("migrating", src), opt, interruptible(cmd.Context(), sink))
	shown.end()
	if err == nil {
		err = in.report(cmd, append(findings, found...))
	}
	if err != nil {
		if to != nil {
			err = errors.Join(err, to.Abort())
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
	if in.talks() {
		done := "would be migrated: nothing was written, say --write"
		if write {
			done = "migrated"
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%s %s\n", count(len(reports), "object"), done)
	}
	return nil
}
