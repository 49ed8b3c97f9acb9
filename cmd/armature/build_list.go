package main

import (
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/client"
	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/text"
)

func buildListCommand() *cobra.Command {
	var k cli.Cluster
	var format string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List AgentBuilds",
		Example: `  armature build list -n team1
  armature build list -A -o wide`,
		Args:              cli.Args(cobra.NoArgs),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := connect(cmd, &k)
			if err != nil {
				return err
			}
			list, err := c.List(cmd.Context())
			if err != nil {
				return err
			}
			l := cli.Listing{
				Columns: []string{"NAMESPACE", "NAME", "MODE", "PHASE", "REASON", "IMAGE", "AGE"},
				Wide:    []string{"RUN", "REPOSITORY", "COMMIT", "MESSAGE"},
				Objects: &list,
				Empty:   "no AgentBuilds" + cli.Where(c.Namespace),
			}
			// Typed clients omit the kind, and the printed objects have to be appliable.
			list.SetGroupVersionKind(api.GroupVersion(c.Group).WithKind(api.Kind + "List"))
			for i := range list.Items {
				b := &list.Items[i]
				b.SetGroupVersionKind(api.GroupVersion(c.Group).WithKind(api.Kind))
				l.Add("agentbuild."+c.Group+"/"+b.Name, b.Namespace, b.Name, text.Plain(b.Spec.Mode),
					string(b.Status.Phase), ready(b), text.Plain(b.Status.BuiltImage),
					duration.HumanDuration(time.Since(b.CreationTimestamp.Time)),
					b.Status.PipelineRunName, text.Plain(b.Spec.Source.SourceRepository),
					text.Plain(client.Summary{AgentBuild: b}.Commit()), text.Plain(b.Status.Message))
			}
			return l.Print(cmd, format)
		},
	}
	k.Flags(cmd)
	k.AllFlag(cmd)
	cli.ListFlag(cmd, &format)
	return cmd
}

// ready returns the reason of the condition Ready, which kubectl shows in a column.
func ready(b *api.AgentBuild) string {
	if c := meta.FindStatusCondition(b.Status.Conditions, api.ConditionReady); c != nil {
		return text.Plain(c.Reason)
	}
	return ""
}
