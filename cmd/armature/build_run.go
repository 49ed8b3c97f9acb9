package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/manifest"
)

func buildRunCommand() *cobra.Command {
	var k cluster
	var wait bool
	var limit time.Duration
	cmd := &cobra.Command{
		Use:   "run FILE",
		Short: "Apply the AgentBuilds of a file, and wait for their images if asked",
		Example: `  armature build run examples/builds/weather.yaml
  armature build run build.yaml -n team1 --wait --timeout 20m`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			c, err := k.connect(cmd)
			if err != nil {
				return err
			}
			data, err := readFile(a[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			builds, err := manifest.Builds(a[0], data, c.group)
			if err != nil {
				return err
			}
			for _, b := range builds {
				if k.namespace != "" && b.Namespace != "" && b.Namespace != k.namespace {
					return fmt.Errorf("%s: metadata.namespace: is %q, but --namespace says %q\n  hint: leave one of the two out", b.Place, b.Namespace, k.namespace)
				}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), limit)
			defer cancel()
			generations := make([]int64, len(builds))
			for i, b := range builds {
				if b.Namespace == "" {
					b.Namespace = c.namespace
				}
				if generations[i], err = c.apply(ctx, b.AgentBuild); err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "agentbuild %s/%s applied\n", b.Namespace, b.Name)
			}
			if !wait {
				return nil
			}
			failed := 0
			for i, b := range builds {
				switch err := c.await(ctx, cmd, b.AgentBuild, generations[i]); {
				case errors.Is(err, errNotBuilt):
					failed++
					fmt.Fprintf(cmd.ErrOrStderr(), "agentbuild %s/%s was not built\n  hint: see `armature build describe %s -n %s`\n", b.Namespace, b.Name, b.Name, b.Namespace)
				case err != nil:
					return err
				}
			}
			if failed > 0 {
				return errFindings
			}
			return nil
		},
	}
	k.flags(cmd)
	cmd.Flags().BoolVarP(&wait, "wait", "w", false, "wait until each image is built; a build that fails makes the exit status 1")
	cmd.Flags().DurationVar(&limit, "timeout", time.Hour, "how long to wait")
	return cmd
}

// apply a build by server-side apply; the generation says which status is new.
func (c *connection) apply(ctx context.Context, b *api.AgentBuild) (int64, error) {
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(b)
	if err != nil {
		return 0, fmt.Errorf("converting AgentBuild %s: %w", b.Name, err)
	}
	delete(raw, "status")
	u := &unstructured.Unstructured{Object: raw}
	u.SetAPIVersion(api.GroupVersion(c.group).String())
	u.SetKind(api.Kind)
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	applied, err := c.Resource(c.builds()).Namespace(b.Namespace).Apply(ctx, b.Name, u, metav1.ApplyOptions{FieldManager: "armature"})
	if err != nil {
		return 0, c.failed(fmt.Sprintf("applying AgentBuild %s/%s", b.Namespace, b.Name), err)
	}
	return applied.GetGeneration(), nil
}

// errNotBuilt ends the wait for a build that failed or was cancelled.
var errNotBuilt = errors.New("the build did not succeed")

// await waits for the end of a build, and prints each change of its state once. A run that is
// tried again is not an end.
func (c *connection) await(ctx context.Context, cmd *cobra.Command, b *api.AgentBuild, generation int64) error {
	last := ""
	shown := begin(cmd.ErrOrStderr(), false, fmt.Sprintf("waiting for %s/%s", b.Namespace, b.Name))
	defer func() { shown.end() }()
	for {
		over, err := c.watch(ctx, b, func(now *api.AgentBuild) (bool, error) {
			if now.Status.ObservedGeneration < generation || now.Status.Phase == "" {
				return false, nil
			}
			if line := fmt.Sprintf("%s/%s %s: %s", b.Namespace, b.Name, now.Status.Phase, api.Plain(now.Status.Message)); line != last {
				last = line
				shown.end()
				fmt.Fprintln(cmd.OutOrStdout(), line)
				shown = begin(cmd.ErrOrStderr(), false, fmt.Sprintf("%s/%s is %s", b.Namespace, b.Name, now.Status.Phase))
			}
			if now.Over() && now.Status.Phase != api.PhaseSucceeded {
				return true, errNotBuilt
			}
			return now.Over(), nil
		})
		if over || err != nil {
			return err
		}
		// API servers end a watch after half an hour, or when they restart.
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("AgentBuild %s/%s did not finish in time\n  hint: it continues; wait longer with --timeout, or see `armature build describe %s -n %s`", b.Namespace, b.Name, b.Name, b.Namespace)
			}
			return fmt.Errorf("no longer waiting for AgentBuild %s/%s; it continues", b.Namespace, b.Name)
		case <-time.After(time.Second):
		}
	}
}

func deleted(b *api.AgentBuild) error {
	return fmt.Errorf("AgentBuild %s/%s was deleted", b.Namespace, b.Name)
}

// watch a build until look says that it is over, or the API server ends the watch.
func (c *connection) watch(ctx context.Context, b *api.AgentBuild, look func(now *api.AgentBuild) (over bool, err error)) (over bool, err error) {
	watch, err := c.Resource(c.builds()).Namespace(b.Namespace).Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", b.Name).String()})
	switch {
	case err != nil && denied(err):
		return false, fmt.Errorf("watching AgentBuild %s/%s: %w", b.Namespace, b.Name, err)
	case err != nil:
		return false, nil
	}
	defer watch.Stop()
	// A watch reports only deletions that follow it.
	if err := c.read(ctx, c.builds(), b.Namespace, b.Name, &api.AgentBuild{}); apierrors.IsNotFound(err) {
		return false, deleted(b)
	}
	for event := range watch.ResultChan() {
		u, ok := event.Object.(*unstructured.Unstructured)
		switch {
		case !ok: // the API server says why it ends the watch
			return false, nil
		case event.Type == apiwatch.Deleted:
			return false, deleted(b)
		}
		now := &api.AgentBuild{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, now); err != nil {
			return false, fmt.Errorf("reading AgentBuild %s/%s: %w", b.Namespace, b.Name, err)
		}
		if over, err := look(now); over || err != nil {
			return over, err
		}
	}
	return false, nil
}

// denied reports whether the API server refused, and did not only fail to answer.
func denied(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err)
}
