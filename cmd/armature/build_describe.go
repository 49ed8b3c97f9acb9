package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
)

func buildDescribeCommand() *cobra.Command {
	var k cluster
	var format string
	cmd := &cobra.Command{
		Use:   "describe NAME",
		Short: "Show the state of an AgentBuild, task by task, with reasons",
		Example: `  armature build describe weather -n team1
  armature build describe weather -o yaml`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: k.completeBuilds,
		RunE: k.named(func(cmd *cobra.Command, c *connection, b *api.AgentBuild) error {
			if format != "text" {
				b.SetGroupVersionKind(api.GroupVersion(c.group).WithKind(api.Kind))
				return printObjects(cmd.OutOrStdout(), format, b)
			}
			// The status of a finished run has all tasks, including skipped ones.
			var tasks []tektonv1.TaskRun
			if len(b.Status.Tasks) == 0 {
				var err error
				if tasks, err = c.taskRuns(cmd, b); err != nil {
					return err
				}
			}
			return describe(cmd.OutOrStdout(), b, tasks)
		}),
	}
	k.flags(cmd)
	outputFlag(cmd, &format, "text", "text", "yaml", "json")
	return cmd
}

// taskRuns of the build's last run, in the order of their start.
func (c *connection) taskRuns(cmd *cobra.Command, b *api.AgentBuild) ([]tektonv1.TaskRun, error) {
	if b.Status.PipelineRunName == "" {
		return nil, nil
	}
	var run tektonv1.PipelineRun
	if err := c.read(cmd.Context(), pipelineRuns, b.Namespace, b.Status.PipelineRunName, &run); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil // cleaned up: status still has the tasks
		}
		return nil, fmt.Errorf("reading run %s: %w", b.Status.PipelineRunName, err)
	}
	var out []tektonv1.TaskRun
	for _, child := range run.Status.ChildReferences {
		var task tektonv1.TaskRun
		err := c.read(cmd.Context(), taskRuns, b.Namespace, child.Name, &task)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading task %s: %w", child.Name, err)
		}
		task.Name = child.PipelineTaskName
		out = append(out, task)
	}
	return out, nil
}

// describe a build in plain text: much of its status was written by strangers.
func describe(out io.Writer, b *api.AgentBuild, tasks []tektonv1.TaskRun) error {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 4, 2, ' ', 0)
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
	row("Image", s.BuiltImage)
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
	states := s.Tasks
	for i := range tasks {
		c := tasks[i].Status.GetCondition("Succeeded")
		state := api.TaskStatus{Name: tasks[i].Name, State: "Pending", StartTime: tasks[i].Status.StartTime, CompletionTime: tasks[i].Status.CompletionTime}
		if c != nil {
			state.Reason = c.Reason
			state.State = map[string]string{"True": "Succeeded", "False": "Failed"}[string(c.Status)]
			switch {
			case state.State == "":
				state.State = "Running"
			case c.Reason == tektonv1.TaskRunReasonCancelled.String():
				state.State = "Cancelled"
			}
		}
		states = append(states, state)
	}
	if len(states) > 0 {
		fmt.Fprintln(table, "\nTASK\tSTATE\tREASON\tTOOK")
		for _, t := range states {
			took := ""
			if t.StartTime != nil && t.CompletionTime != nil {
				took = t.CompletionTime.Sub(t.StartTime.Time).String()
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", t.Name, t.State, t.Reason, took)
		}
	}
	if len(s.Conditions) > 0 {
		fmt.Fprintln(table, "\nCONDITION\tSTATUS\tREASON\tSINCE")
		for _, c := range s.Conditions {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", c.Type, c.Status, c.Reason, at(&c.LastTransitionTime))
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if d := s.FailureDetails; d != nil && len(d.LogTail) > 0 {
		fmt.Fprintf(&text, "\nLast lines of the log:\n  %s\n", strings.Join(d.LogTail, "\n  "))
	}
	_, err := io.WriteString(out, api.Plain(text.String()))
	return err
}

func at(t *metav1.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
