package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
			ctx, cancel := context.WithTimeout(cmd.Context(), limit)
			defer cancel()
			for _, b := range builds {
				if b.Namespace == "" {
					b.Namespace = c.namespace
				}
				generation, err := c.apply(ctx, b.AgentBuild)
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "agentbuild %s/%s applied\n", b.Namespace, b.Name)
				if wait {
					if err := c.await(ctx, cmd.OutOrStdout(), b.AgentBuild, generation); err != nil {
						return err
					}
				}
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
	if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("armature")); err != nil {
		return 0, fmt.Errorf("applying AgentBuild %s/%s: %w", b.Namespace, b.Name, err)
	}
	return u.GetGeneration(), nil
}

// await the end of a build, telling each change of its state once.
func (c *connection) await(ctx context.Context, out io.Writer, b *api.AgentBuild, generation int64) error {
	watch, err := c.Watch(ctx, &api.AgentBuildList{}, client.InNamespace(b.Namespace), client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("metadata.name", b.Name)})
	if err != nil {
		return fmt.Errorf("watching AgentBuild %s/%s: %w", b.Namespace, b.Name, err)
	}
	defer watch.Stop()
	said := ""
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for AgentBuild %s/%s: %w", b.Namespace, b.Name, ctx.Err())
		case event, ok := <-watch.ResultChan():
			if !ok {
				return fmt.Errorf("waiting for AgentBuild %s/%s: the API server ended the watch", b.Namespace, b.Name)
			}
			now, ok := event.Object.(*api.AgentBuild)
			if !ok || now.Status.ObservedGeneration < generation || now.Status.Phase == "" {
				continue
			}
			if line := fmt.Sprintf("%s: %s", now.Status.Phase, now.Status.Message); line != said {
				said = line
				fmt.Fprintln(out, line)
			}
			switch now.Status.Phase {
			case api.PhaseSucceeded:
				return nil
			case api.PhaseFailed, api.PhaseCancelled:
				return errors.New("the build did not succeed\n  hint: `armature build describe " + b.Name + "` tells more")
			}
		}
	}
}
