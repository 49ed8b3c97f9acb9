package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

func buildLogsCommand() *cobra.Command {
	var k cluster
	var follow bool
	cmd := &cobra.Command{
		Use:   "logs NAME",
		Short: "Print the logs of an AgentBuild's last run, task by task",
		Example: `  armature build logs weather -n team1
  armature build logs weather --follow`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: k.completeBuilds,
		RunE: k.named(func(cmd *cobra.Command, c *connection, b *api.AgentBuild) error {
			pods, err := c.pods()
			if err != nil {
				return err
			}
			return c.logs(cmd, pods, b.Name, follow)
		}),
	}
	k.flags(cmd)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the run ends")
	return cmd
}

// poll is how often a run that is followed is looked at for new steps.
const poll = time.Second

// logs prints each step's log once; with follow it waits for those to come.
func (c *connection) logs(cmd *cobra.Command, pods kubernetes.Interface, name string, follow bool) error {
	ctx := cmd.Context()
	printed := map[string]bool{} // tasks, and containers by pod
	for {
		b, err := c.build(ctx, name)
		if err != nil {
			return err
		}
		over := b.Over()
		if b.Status.PipelineRunName == "" && (over || !follow) {
			return fmt.Errorf("AgentBuild %s/%s has no run: %s", b.Namespace, b.Name, b.Status.Message)
		}
		tasks, err := c.taskRuns(cmd, b)
		if err != nil {
			return err
		}
		if len(tasks) == 0 && over && len(printed) == 0 {
			return errors.New("the run and its logs are gone\n  hint: spec.cleanupAfterBuild: false or a retention limit keeps them")
		}
		for i := range tasks {
			if err := c.taskLogs(cmd, pods, b, &tasks[i], follow, printed); err != nil {
				return err
			}
		}
		if over && len(tasks) == 0 {
			for _, t := range b.Status.Tasks {
				if !printed[t.Name] && t.State != "Skipped" {
					fmt.Fprintf(cmd.ErrOrStderr(), "[%s] the log is gone with its run: spec.cleanupAfterBuild: false or a retention limit keeps it\n", t.Name)
				}
			}
		}
		if over || !follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(poll):
		}
	}
}

// taskLogs prints the steps of a task that have begun and were not printed yet.
func (c *connection) taskLogs(cmd *cobra.Command, pods kubernetes.Interface, b *api.AgentBuild, task *tektonv1.TaskRun, follow bool, printed map[string]bool) error {
	for _, step := range task.Status.Steps {
		key := task.Status.PodName + "/" + step.Container
		if printed[key] || step.Running == nil && step.Terminated == nil {
			continue
		}
		printed[key], printed[task.Name] = true, true
		options := &corev1.PodLogOptions{Container: step.Container, Follow: follow && step.Terminated == nil}
		stream, err := pods.CoreV1().Pods(b.Namespace).GetLogs(task.Status.PodName, options).Stream(cmd.Context())
		if err != nil {
			if client.IgnoreNotFound(err) == nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "[%s/%s] the log is gone\n", task.Name, step.Name)
				continue
			}
			return fmt.Errorf("reading the log of task %s, step %s: %w", task.Name, step.Name, err)
		}
		// A line may be as long as it likes: a list of an image's contents is one.
		lines := bufio.NewReader(stream)
		for err == nil {
			var line string
			if line, err = lines.ReadString('\n'); line != "" {
				fmt.Fprintf(cmd.OutOrStdout(), "[%s/%s] %s\n", task.Name, step.Name, strings.TrimSuffix(line, "\n"))
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if err := errors.Join(err, stream.Close()); err != nil {
			return fmt.Errorf("reading the log of task %s, step %s: %w", task.Name, step.Name, err)
		}
	}
	return nil
}
