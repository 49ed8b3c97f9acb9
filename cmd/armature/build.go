package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/api"
)

// buildCommand is `armature build`: AgentBuilds, from a plan without a cluster to
// the logs of a run.
func buildCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Plan, run and watch AgentBuilds",
		Example: `  armature build plan build.yaml --graph     what would run, without a cluster
  armature build run build.yaml --wait       build it and wait for the image
  armature build describe weather -n team1   why it failed`,
	}
	cmd.PersistentFlags().String("api-group", api.DefaultGroup, "API group of AgentBuild")
	group(cmd, buildPlanCommand(), buildLintCommand(), buildRunCommand(), buildListCommand(), buildDescribeCommand(),
		buildLogsCommand(), buildCancelCommand(), buildRerunCommand())
	return cmd
}

// readFile reads a file, or stdin for "-".
func readFile(name string, stdin io.Reader) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(stdin)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("reading the build: %w", err)
	}
	return data, nil
}

// printObjects writes objects as YAML documents, or as a JSON list.
// Several objects are several YAML documents, and one List in JSON.
func printObjects(out io.Writer, format string, objects ...any) error {
	if format == "json" && len(objects) > 1 {
		objects = []any{map[string]any{"apiVersion": "v1", "kind": "List", "items": objects}}
	}
	for i, o := range objects {
		data, err := yaml.Marshal(o)
		if err != nil {
			return fmt.Errorf("marshalling: %w", err)
		}
		if format == "json" {
			if data, err = yaml.YAMLToJSON(data); err != nil {
				return fmt.Errorf("marshalling: %w", err)
			}
			data = append(data, '\n')
		} else if i > 0 {
			data = append([]byte("---\n"), data...)
		}
		if _, err := out.Write(data); err != nil {
			return err
		}
	}
	return nil
}

// outputFlag adds -o with the formats that a command knows.
func outputFlag(cmd *cobra.Command, format *string, value string, formats ...string) {
	cmd.Flags().StringVarP(format, "output", "o", value, fmt.Sprintf("output format: %v", formats))
	completeFlag(cmd, "output", formats...)
	cmd.PreRunE = func(*cobra.Command, []string) error {
		for _, f := range formats {
			if *format == f {
				return nil
			}
		}
		return usageError{fmt.Errorf("-o %q: use one of %v", *format, formats)}
	}
}

// completeFlag offers the values of a flag.
func completeFlag(cmd *cobra.Command, flag string, values ...string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag is not there
	}
}
