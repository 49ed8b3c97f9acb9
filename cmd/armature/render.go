package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/host"
	"github.com/armature-dev/armature/render/source"
)

func renderCommand() *cobra.Command {
	var in cli.Input
	var out output
	var names []string
	var closed bool
	var gate cli.ImageGate
	cmd := &cobra.Command{
		Use:   "render PATH|-",
		Short: "Render manifests: a folder, a file or standard input",
		Long: `Render reads Kubernetes manifests and adds the identity infrastructure and
configuration to every workload that opted in. All other bytes stay unchanged. On an
error, nothing is written.

Rendering needs neither a cluster nor a network. A second render changes nothing;
"armature uninject" undoes it.

With --verify-images, render also queries registries: every image in the output must
have a digest and satisfy the policy, or nothing is written. The content of skills is
judged as well.`,
		Example: `  armature render apps/ | kubectl apply -f -
  armature render apps/ -d rendered/
  armature render apps/ --in-place
  helm template my-release chart/ | armature render - > all.yaml
  armature render apps/ -d rendered/ --verify-images policy.yaml
  armature render apps/ -d rendered/ --findings sarif --findings-file out.sarif`,
		Args: cli.Args(cobra.ExactArgs(1)),

		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range names {
				if _, ok := functions.Lookup(name); !ok {
					return cli.Usagef("function %q does not exist: see armature functions", name)
				}
			}
			if err := gate.Open(); err != nil {
				return err
			}
			do := gate.Before(cmd.Context(), &in.Place, render.Stream)
			return transform(cmd, args[0], &in, &out, "%s injected, %s generated", func(src render.Source, opt render.Options, sink render.Sink) ([]krm.Finding, render.Stats, error) {
				opt.Functions, opt.Closed = names, closed
				return do(src, opt, sink)
			})
		},
	}
	in.Flags(cmd)
	out.flags(cmd)
	gate.Flag(cmd)
	cmd.Flags().StringSliceVar(&names, "functions", nil, "run only these functions (see armature functions)")
	cmd.Flags().BoolVar(&closed, "closed", false, "refuse an AgentCard or AgentRuntime whose workload is not in the package")
	cli.CompleteFlag(cmd, "functions", functions.Names)
	return cmd
}

func uninjectCommand() *cobra.Command {
	var in cli.Input
	var out output
	cmd := &cobra.Command{
		Use:   "uninject PATH|-",
		Short: "Restore rendered manifests to what their author wrote",
		Long: `Uninject removes exactly what a render of any version added, and restores the custom
resources that the render consumed.`,
		Example: `  armature uninject rendered/ -d apps/
  armature uninject apps/ --in-place
  armature render web.yaml | armature uninject - | diff web.yaml -`,
		Args: cli.Args(cobra.ExactArgs(1)),

		RunE: func(cmd *cobra.Command, args []string) error {
			return transform(cmd, args[0], &in, &out, "%s restored, %s removed", render.Uninject)
		},
	}
	in.Flags(cmd)
	out.flags(cmd)
	return cmd
}

// whileListing is how far the heap may grow while a folder is listed and what is remembered of it
// is read: all of it is needed to the end, so that there is nothing to collect before files are
// rendered.
const whileListing = 400

// resourceList gives standard input as what a host passes, nil where it is
// something else. A configuration that was named wins over the list's.
func resourceList(src render.Source, opt render.Options) (*host.List, error) {
	if len(src.Files) != 1 || src.Files[0].Path != "-" || !host.IsResourceList(src.Files[0].Data) {
		return nil, nil
	}
	list, err := host.ReadList(src.Files[0].Data)
	if err == nil && opt.Config != nil {
		list.Config = opt.Config
	}
	return list, err
}

// output is where rendered manifests go.
type output struct {
	folder  string
	inPlace bool
}

func (out *output) flags(cmd *cobra.Command) {
	cli.DirFlag(cmd, &out.folder, "folder to write to (default: standard output)")
	cmd.Flags().BoolVarP(&out.inPlace, "in-place", "i", false, "write back to PATH")
}

// transform takes manifests from PATH to where they go, all or nothing.
func transform(cmd *cobra.Command, path string, in *cli.Input, out *output, done string, do cli.Transformation) error {
	folder := out.folder
	if out.inPlace && folder != "" {
		return cli.Usagef("--output-dir and --in-place exclude each other")
	}
	if out.inPlace {
		if path == "-" {
			return cli.Usagef("standard input cannot be written back: leave out --in-place")
		}
		var err error
		if folder, err = cli.RootOf(path); err != nil {
			return err
		}
	}
	skip := folder
	if out.inPlace {
		skip = ""
	}
	listed := cli.CollectAt(whileListing)
	defer listed()
	shown := cli.Begin(cmd.ErrOrStderr(), in.Quiet, "reading "+path)
	defer shown.End()
	src, opt, findings, err := in.Open(cmd, path, skip)
	if err != nil {
		return err
	}
	if krm.Failed(findings) {
		shown.End()
		return in.Report(cmd, findings)
	}
	src = shown.Reading(cmd.Name(), src)
	if folder == "" {
		listed()
		return toStream(cmd, path, in, done, src, opt, findings, shown, do)
	}
	to, err := source.NewFolder(folder, out.inPlace)
	if err != nil {
		return err
	}
	opt.Beside = true
	if len(src.Files) > 1000 {
		listed()
	}
	found, stats, err := do(src, opt, cli.Interruptible(cmd.Context(), to.Write))
	shown.End()
	if err == nil {
		err = in.Report(cmd, append(findings, found...))
	}
	if err != nil {
		return multi.Errors(err, to.Abort())
	}
	written, removed, err := to.Commit()
	if err != nil {
		return fmt.Errorf("writing to %s: %w", folder, err)
	}
	summary(cmd, in, done, stats, fmt.Sprintf(" to %s: %s written, %d unchanged, %d removed", folder, krm.Count(written, "file"), to.Files()-written, removed))
	return nil
}

func toStream(cmd *cobra.Command, path string, in *cli.Input, done string, src render.Source, opt render.Options, findings []krm.Finding, shown *cli.Activity, do cli.Transformation) error {
	if list, err := resourceList(src, opt); err != nil {
		return err
	} else if list != nil {
		return toList(cmd, in, list, opt, shown, do)
	}
	opt.Workers, opt.Pieces = 1, true // files in order
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		opt.ObjectsOnly = true
		if file := in.Kustomization(src); file != "" && cmd.Name() == "render" {
			findings = append(findings, krm.Finding{Rule: "package/kustomization", Severity: krm.Warning, Place: krm.Place{File: file},
				Message: "the output has the files of the folder, and not what this kustomization builds of them",
				Hint:    "run kustomize build, with armature.yaml as a transformer (armature init --for kustomize)"})
		}
	}
	var spool source.Spool
	found, stats, err := do(src, opt, cli.Interruptible(cmd.Context(), spool.Write))
	shown.End()
	if err != nil {
		return err
	}
	if err := in.Report(cmd, append(findings, found...)); err != nil {
		return err
	}
	if _, err := spool.WriteTo(cmd.OutOrStdout()); err != nil {
		return fmt.Errorf("writing: %w", err)
	}
	summary(cmd, in, done, stats, "")
	return nil
}

func toList(cmd *cobra.Command, in *cli.Input, list *host.List, opt render.Options, shown *cli.Activity, do cli.Transformation) error {
	out, findings, _, err := list.Run(opt, do)
	shown.End()
	if err != nil {
		return err
	}
	if _, err := cmd.OutOrStdout().Write(out); err != nil {
		return err
	}
	return in.Report(cmd, findings)
}

// summary reports what was done, in the words of done: a format of the numbers of
// workloads and generated objects.
func summary(cmd *cobra.Command, in *cli.Input, done string, stats render.Stats, rest string) {
	if !in.Talks() {
		return
	}
	fmt.Fprintf(cmd.ErrOrStderr(), done+" from %s%s\n", krm.Count(stats.Workloads, "workload"), krm.Count(stats.Generated, "object"), krm.Count(stats.Documents, "document"), rest)
}
