package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/client"
	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/text"
)

func buildDescribeCommand() *cobra.Command {
	var k cli.Cluster
	var format string
	catalog := knownCatalog()
	cmd := &cobra.Command{
		Use:   "describe NAME",
		Short: "Show the state of an AgentBuild, task by task, with reasons",
		Example: `  armature build describe weather -n team1
  armature build describe weather -o yaml`,
		Args:              cli.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: completeBuilds(&k),
		RunE: named(&k, func(cmd *cobra.Command, c *client.Client, b *api.AgentBuild) error {
			if format != "text" {
				b.SetGroupVersionKind(api.GroupVersion(c.Group).WithKind(api.Kind))
				return cli.PrintObjects(cmd.OutOrStdout(), format, b)
			}
			c.Door = doorAt(cmd, &k, catalog)
			tasks, err := c.Tasks(cmd.Context(), b)
			if err != nil && b.Status.PipelineRunNamespace == "" {
				return err
			}
			if err != nil { // the rest needs no right in the platform's namespace
				fmt.Fprintln(cmd.ErrOrStderr(), "Warning: the tasks that run are not shown:",
					cli.Harmless(err.Error()))
			}
			return describe(cmd.OutOrStdout(), b, tasks)
		}),
	}
	k.Flags(cmd)
	catalog.Flags(cmd.Flags(), "catalog-server", doorUsage)
	cli.OutputFlag(cmd, &format, "text", "json", "yaml")
	return cmd
}

// describe prints a build as plain text. Much of its status is untrusted.
func describe(out io.Writer, b *api.AgentBuild, tasks []api.TaskStatus) error {
	var body strings.Builder
	table := tabwriter.NewWriter(&body, 0, 4, 2, ' ', 0)
	row := func(key, value string) {
		if value != "" {
			fmt.Fprintf(table, "%s:\t%s\n", key, value)
		}
	}
	s := b.Status
	row("Name", b.Namespace+"/"+b.Name)
	row("Mode", b.Spec.Mode)
	row("Repository", b.Spec.Source.SourceRepository)
	row("Revision", b.Spec.Source.SourceRevision)
	if s.Source != nil {
		row("Commit", s.Source.Git.CommitSHA)
		for _, v := range s.Source.Git.Verified {
			row("Verified", strings.TrimRight(v.Policy+": "+v.Ref+", "+v.Signer, ", "))
		}
	}
	row("Phase", string(s.Phase))
	row("Message", strings.ReplaceAll(s.Message, "\n", "\n\t"))
	if row("Image", s.BuiltImage); s.BuiltImage != "" {
		row("Attestation", b.Claim())
	}
	for _, p := range s.Platforms {
		row(p.Platform, p.Digest)
	}
	row("Run", s.PipelineRunName)
	if s.Attempt > 0 {
		row("Started because of", fmt.Sprintf("%s, attempt %d", s.RunReason, s.Attempt))
	}
	row("Created", at(s.LastBuildTime))
	row("Completed", at(s.CompletionTime))
	if d := s.FailureDetails; d != nil {
		row("Failure", d.Reason)
		row("Cause", string(d.Cause))
		row("Task", d.Task)
		row("Step", d.Step)
		if d.ExitCode != nil {
			row("Exit code", fmt.Sprint(*d.ExitCode))
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(tasks) > 0 {
		fmt.Fprintln(table, "\nTASK\tSTATE\tREASON\tTOOK")
	}
	for _, t := range tasks {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", t.Name, t.State, t.Reason, took(t))
	}
	if len(s.Conditions) > 0 {
		fmt.Fprintln(table, "\nCONDITION\tSTATUS\tREASON\tSINCE")
	}
	for _, c := range s.Conditions {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", c.Type, c.Status, c.Reason, at(&c.LastTransitionTime))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if d := s.FailureDetails; d != nil && len(d.LogTail) > 0 {
		fmt.Fprintf(&body, "\nLast lines of the log:\n  %s\n", strings.Join(d.LogTail, "\n  "))
	}
	_, err := io.WriteString(out, text.Plain(body.String()))
	return err
}

func at(t *metav1.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

func took(t api.TaskStatus) string {
	if t.StartTime == nil || t.CompletionTime == nil {
		return ""
	}
	return t.CompletionTime.Sub(t.StartTime.Time).String()
}
