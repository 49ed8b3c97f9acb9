package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/builds/client"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/manifest"
	"github.com/armature-dev/armature/builds/failure/findings"
	"github.com/armature-dev/armature/builds/install"
	"github.com/armature-dev/armature/builds/registry/pins"
	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/templates"
)

func buildPlanCommand() *cobra.Command {
	var dirs []string
	var drawn bool
	var format, mode, pinned, values string
	var settings compose.Settings
	cmd := &cobra.Command{
		Use:   "plan FILE",
		Short: "Print the Pipeline and PipelineRun of an AgentBuild, without a cluster",
		Long: `Plan composes an AgentBuild from the shipped templates and steps, or from the ConfigMaps of
a folder, and prints the Pipeline and the PipelineRun. It contacts no cluster, registry or
Git server, and does not resolve the revision.

With --graph, plan draws the pipelines instead: as text, or as a Mermaid flowchart, which
GitHub and GitLab show in Markdown and from which Mermaid's own program makes a picture.
The flowchart omits dependencies that follow from others.`,
		Example: `  armature build plan examples/builds/weather.yaml
  armature build plan examples/builds/weather.yaml --mode prod --graph
  armature build plan examples/builds/weather.yaml --graph -o mermaid
  armature build plan build.yaml --templates my-templates/ --image-pins my-templates/armature.lock
  armature build plan build.yaml --templates my-templates/ -o json | jq '.items[].kind'`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			formats := planFormats(drawn)
			if format == "" {
				format = formats[0]
			}
			if err := cli.Among("output", "format", format, formats); err != nil {
				return err
			}
			if err := install.StepSettings(values, &settings); err != nil {
				return err
			}
			var err error
			settings.Group = cmd.Flag("api-group").Value.String()
			if settings.ImagePins, err = pins.Load(pinned, cmd.Flags().Changed("image-pins"),
				templates.StepLock()); err != nil {
				return err
			}
			builds, err := readBuilds(cmd, settings.Group, a[0])
			if err != nil {
				return err
			}
			library, err := manifest.Open(dirs)
			if err != nil {
				return err
			}
			var objects []any
			var pipelines []client.Pipeline
			var problems []error
			for _, b := range builds {
				if mode != "" {
					b.Spec.Mode = mode
				}
				out, err := library.Compose(b, settings)
				if err != nil {
					problems = append(problems, err)
					continue
				}
				if out.BuilderBecause != "" {
					fmt.Fprintln(cmd.ErrOrStderr(), out.BuilderBecause)
				}
				for _, w := range out.Warnings {
					fmt.Fprintln(cmd.ErrOrStderr(), "warning: "+w)
				}
				if drawn {
					pipelines = append(pipelines,
						client.PipelineOf("AgentBuild "+b.Name, &out.Pipeline.Spec))
				} else {
					objects = append(objects, manifest.Objects(out)...)
				}
			}
			if err := findings.Join(problems...); err != nil {
				return err // nothing is printed of a file with a problem
			}
			if drawn {
				return client.Write(cmd.OutOrStdout(), format, pipelines)
			}
			return cli.PrintObjects(cmd.OutOrStdout(), format, objects...)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&dirs, "templates", nil,
		"folder with template and step ConfigMaps; they override the shipped ones")
	f.BoolVar(&drawn, "graph", false, "draw the pipelines instead of printing objects")
	f.StringVar(&mode, "mode", "", "plan with this mode instead of the build's own")
	cli.CompleteFlag(cmd, "mode", manifest.ShippedModes)
	cli.ValuesFlag(cmd, &values)
	f.StringVar(&pinned, "image-pins", "",
		"YAML file that maps step images to digests, or the armature.lock of armature pin "+
			"--steps (default: the lock of this release; \"\" pins none)")
	f.StringVar(&settings.ServiceAccountName, "service-account", "",
		"ServiceAccount of builds that set none")
	f.BoolVar(&settings.PipelineObjects, "pipeline-objects", false,
		"refer to a Pipeline object instead of embedding it (clusters with disable-inline-spec)")
	f.StringVarP(&format, "output", "o", "",
		"output format: yaml (default) or json; with --graph text (default) or mermaid")
	cli.CompleteFlag(cmd, "output", func() []string { return planFormats(drawn) })
	return cmd
}

// planFormats returns the formats of -o, the default first.
func planFormats(drawn bool) []string {
	if drawn {
		return client.Formats()
	}
	return []string{"yaml", "json"}
}
