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

// migration is `armature migrate`.
type migration struct {
	cli.Input
	folder, format, harness string
	write, live             bool
	cluster                 cli.Cluster
}

func migrateCommand() *cobra.Command {
	var m migration
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
			if m.live {
				return cli.Args(cobra.NoArgs)(cmd, given)
			}
			return cli.Args(cobra.ExactArgs(1))(cmd, given)
		},

		RunE: func(cmd *cobra.Command, given []string) error {
			if m.folder != "" && !m.write {
				return cli.Usagef(
					"--output-dir requires --write; without both, migrate only reports")
			}
			if m.live {
				return m.fromCluster(cmd)
			}
			for _, name := range [...]string{"kubeconfig", "context", "namespace"} {
				if cmd.Flags().Changed(name) {
					return cli.Usagef("--%s requires --from-cluster", name)
				}
			}
			return m.run(cmd, given[0])
		},
	}
	m.Flags(cmd)
	cli.DirFlag(cmd, &m.folder, "folder to write to (default: PATH itself)")
	cli.WordFlag(cmd, &m.format, "report", "", "text",
		"write the report as "+strings.Join(migrate.Formats(), ", "), "format", migrate.Formats()...)
	cmd.Flags().BoolVar(&m.write, "write", false, "write the migrated manifests, not only the report")
	cmd.Flags().StringVar(&m.harness, "kagent-harness", "",
		"convert kagent 0.x to 1.0, with the Harness in this file")
	cmd.Flags().BoolVar(&m.live, "from-cluster", false,
		"read a namespace of a cluster instead of PATH")
	m.cluster.Flags(cmd)
	return cmd
}

// fromCluster migrates the objects of a namespace in a cluster.
func (m *migration) fromCluster(cmd *cobra.Command) error {
	config, namespace, err := m.cluster.Rest()
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
	return m.run(cmd, "-")
}

func (m *migration) run(cmd *cobra.Command, path string) error {
	src, opt, findings, activity, err := m.Load(cmd, path, m.folder, "migrating")
	if err != nil {
		return err
	}
	defer activity.End()
	var to *source.Folder
	var stream source.Spool
	sink, folder := func(string, []byte) error { return nil }, m.folder
	switch {
	case m.write && path == "-" && folder == "":
		sink = stream.Write
	case m.write:
		if folder == "" {
			if folder, err = cli.RootOf(path); err != nil {
				return err
			}
		}
		if to, err = source.NewFolder(folder, m.folder == ""); err != nil {
			return err
		}
		sink = to.Write
	}
	var reports []migrate.Report
	var found []finding.Finding
	sink = cli.Interruptible(cmd.Context(), sink)
	if m.harness == "" {
		reports, found, err = migrate.Run(src, opt, sink)
	} else {
		var text []byte
		if text, err = os.ReadFile(m.harness); err == nil {
			reports, found, err = migrate.ToSuccessor(src, opt, text, sink)
		}
	}
	activity.End()
	if err == nil {
		err = m.Report(cmd, append(findings, found...))
	}
	if err != nil {
		if to != nil {
			err = multi.Errors(err, to.Abort())
		}
		return err
	}
	out := cmd.OutOrStdout()
	if m.write && to == nil {
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
	if err := migrate.Write(out, m.format, reports); err != nil {
		return err
	}
	if m.Talks() {
		done := text.Count(len(reports), "object") +
			" would be migrated: nothing was written, set --write"
		switch {
		case len(reports) == 0:
			done = "nothing to migrate: " + path +
				" has no objects of other platforms and no additions of webhooks"
		case m.write:
			done = text.Count(len(reports), "object") + " migrated"
		}
		fmt.Fprintln(cmd.ErrOrStderr(), done)
	}
	return nil
}
