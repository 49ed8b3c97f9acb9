package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/host"
	"github.com/armature-dev/armature/render/needs"
	"github.com/armature-dev/armature/render/source"
)

func renderCommand() *cobra.Command {
	var in cli.Input
	var out output
	var names []string
	var closed bool
	var gate cli.ImageGate
	cmd := &cobra.Command{
		Use:        "render PATH|-",
		SuggestFor: []string{"inject"},
		Short:      "Render manifests: a folder, a file or standard input",
		Long: `Render reads Kubernetes manifests and adds the identity infrastructure and
configuration to every workload that opted in. All other bytes stay unchanged. On an
error, nothing is written.

Rendering needs neither a cluster nor a network. A second render changes nothing;
"armature uninject" undoes it.

With --verify-images, render also queries registries: every image in the output must
have a digest and satisfy the policy, or nothing is written. Render then also checks the
content of skills.

Render writes no RenderConfig to --output-dir, so that kubectl apply -f accepts the folder.
With --check, render writes nothing: it compares the folder with a new render, prints the
difference, and fails if there is one.`,
		Example: `  armature render apps/ | kubectl apply -f -
  armature render apps/ -d rendered/
  armature render apps/ --in-place
  armature render apps/ -d rendered/ --check   # in CI: fail if rendered/ is out of date
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
			return transform(cmd, args[0], &in, &out, "%s injected, %s generated",
				func(src render.Source, opt render.Options,
					sink render.Sink) ([]finding.Finding, render.Stats, error) {
					opt.Functions, opt.Closed = names, closed
					var untouched cli.Untouched
					untouched.Watch(&opt)
					found, stats, err := do(src, opt, sink)
					if stats.Workloads == 0 && names == nil {
						found = append(found, untouched.Finding()...)
					}
					return found, stats, err
				})
		},
	}
	in.Flags(cmd)
	out.flags(cmd)
	cmd.Flags().BoolVar(&out.check, "check", false,
		"write nothing; fail with a diff if the folder differs from a new render")
	gate.Flag(cmd)
	cmd.Flags().StringSliceVar(&names, "functions", nil,
		"run only these functions (see armature functions)")
	cmd.Flags().BoolVar(&closed, "closed", false,
		"refuse an AgentCard or AgentRuntime whose workload is not in the package")
	cli.CompleteFlag(cmd, "functions", functions.Names)
	return cmd
}

func uninjectCommand() *cobra.Command {
	var in cli.Input
	var out output
	cmd := &cobra.Command{
		Use:        "uninject PATH|-",
		SuggestFor: []string{"unrender"},
		Short:      "Restore rendered manifests to their original text",
		Long: `Uninject removes all additions of a render of any version, and restores the custom
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

// resourceList parses standard input as the ResourceList of a host, and returns nil for other
// input. The list's configuration is overridden by one that was named, and overrides one that was
// found.
func resourceList(src render.Source, opt render.Options, named string) (*host.List, error) {
	if len(src.Files) != 1 || src.Files[0].Path != "-" || !host.IsResourceList(src.Files[0].Data) {
		return nil, nil
	}
	list, err := host.ReadList(src.Files[0].Data)
	if err == nil && opt.Config != nil && (named != "" || list.Config == nil) {
		list.Config = opt.Config
	}
	return list, err
}

// output is where rendered manifests go.
type output struct {
	folder  string
	inPlace bool
	check   bool
}

func (out *output) flags(cmd *cobra.Command) {
	cli.DirFlag(cmd, &out.folder, "folder to write to (default: standard output)")
	cmd.Flags().BoolVarP(&out.inPlace, "in-place", "i", false, "write back to PATH")
}

// writer takes what was rendered to a folder, or compares the folder with it.
type writer interface {
	Write(file string, data []byte) error
	For(path string) error
	Abort() error
}

// writer of a folder.
func (out *output) writer(folder string) (writer, error) {
	if out.check {
		return source.NewComparison(folder, out.inPlace)
	}
	return source.NewFolder(folder, out.inPlace)
}

// withoutConfig keeps the configuration of a package out of the folder that it is
// rendered to, as no cluster has its kind, and counts the manifests.
func withoutConfig(sink render.Sink, in *cli.Input, path string,
	manifests *atomic.Int64) render.Sink {
	left := []string{render.ConfigFile}
	if root, err := cli.RootOf(path); err == nil && in.Config != "" {
		if file, err := filepath.Rel(root, in.Config); err == nil {
			left = append(left, filepath.ToSlash(file))
		}
	}
	return func(file string, data []byte) error {
		if slices.Contains(left, file) {
			return nil
		}
		if data != nil && render.IsManifest(file) {
			manifests.Add(1)
		}
		return sink(file, data)
	}
}

// command is what writes what --check compares.
func (out *output) command(path string) string {
	if out.inPlace {
		return "armature render " + path + " --in-place"
	}
	return "armature render " + path + " -d " + out.folder
}

// outdated prints how a folder differs from what a render writes now, and reports each
// of its files that does.
func outdated(cmd *cobra.Command, path, command string,
	c *source.Comparison) (findings []finding.Finding, err error) {
	differences, err := c.Differences()
	for _, d := range differences {
		if _, err := cmd.OutOrStdout().Write(d.Text); err != nil {
			return nil, err
		}
		findings = append(findings, finding.Finding{Rule: "render/outdated",
			Severity: finding.Error, Place: finding.Place{File: d.File, Line: 1},
			Message: "it differs from a new render of " + path,
			Hint:    "run " + command + " and commit the result"})
	}
	return findings, err
}

// sameFolder reports whether a folder to write to is the one that PATH is or is in.
func sameFolder(path, folder string) (bool, error) {
	root, err := cli.RootOf(path)
	if err != nil {
		return false, err
	}
	from, err := os.Stat(root)
	if err != nil {
		return false, err
	}
	to, err := os.Stat(folder)
	return err == nil && os.SameFile(from, to), nil
}

// transform takes manifests from PATH to where they go, all or nothing.
func transform(cmd *cobra.Command, path string, in *cli.Input, out *output, done string,
	do cli.Transformation) error {
	folder := out.folder
	if out.check && folder == "" && !out.inPlace {
		return cli.Usagef("--check compares a folder: name it with -d, or use --in-place")
	}
	if out.inPlace && folder != "" {
		return cli.Usagef("--output-dir and --in-place exclude each other")
	}
	if path != "-" && folder != "" {
		if same, err := sameFolder(path, folder); err != nil || same {
			return cmp.Or(err,
				cli.Usagef(
					"-d %s is PATH itself: use --in-place to write back, or name another folder", folder))
		}
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
	src, opt, findings, shown, err := in.Load(cmd, path, skip, cmd.Name())
	if err != nil {
		return err
	}
	defer shown.End()
	if file, base := source.Outside(src); file != "" && cmd.Name() == "render" && !out.inPlace &&
		!opt.Excludes(file) {
		return fmt.Errorf("%s has to be built first: it builds on %s, which is not in %s\n"+
			"  hint: kustomize build %s | armature render -, or leave it out with spec.exclude "+
			"in armature.yaml", in.File(file), base, path, filepath.Dir(in.File(file)))
	}
	if folder == "" {
		return toStream(cmd, path, in, done, src, opt, findings, shown, do)
	}
	to, err := out.writer(folder)
	if err != nil {
		return err
	}
	if err := to.For(path); err != nil {
		return multi.Errors(err, to.Abort())
	}
	var manifests atomic.Int64
	var brief needs.Brief
	sink := render.Sink(to.Write)
	if cmd.Name() == "render" {
		sink = brief.Sink(sink)
	}
	if cmd.Name() == "render" && !out.inPlace {
		sink = withoutConfig(sink, in, path, &manifests)
	}
	opt.Beside = true
	found, stats, err := do(src, opt, cli.Interruptible(cmd.Context(), sink))
	shown.End()
	findings = append(findings, found...)
	if cmd.Name() == "render" && !out.inPlace && err == nil && !finding.Failed(findings) &&
		manifests.Load() == 0 {
		err = fmt.Errorf("%s holds no manifests: %s stays as it is\n  hint: name the folder with "+
			"the manifests, or remove %s if the package is gone", path, folder, folder)
	}
	if compared, ok := to.(*source.Comparison); ok {
		if err == nil && !finding.Failed(findings) {
			found, err = outdated(cmd, path, out.command(path), compared)
			findings = append(findings, found...)
		}
		if err == nil {
			err = in.Report(cmd, findings)
		}
		if err == nil && in.Talks() {
			fmt.Fprintf(cmd.ErrOrStderr(), "checked: %s is up to date with %s\n", folder, path)
		}
		return err
	}
	if err == nil {
		err = in.Report(cmd, findings)
	}
	if err != nil {
		return multi.Errors(err, to.Abort())
	}
	rendered := to.(*source.Folder)
	written, removed, err := rendered.Commit()
	if err != nil {
		return fmt.Errorf("writing to %s: %w", folder, err)
	}
	summary(cmd, in, done, stats, fmt.Sprintf(" to %s: %s written, %d unchanged, %d removed",
		folder, text.Count(written, "file"), rendered.Files()-written, removed))
	in.SayNeeds(cmd, &brief, path, stats)
	return nil
}

func toStream(cmd *cobra.Command, path string, in *cli.Input, done string, src render.Source,
	opt render.Options, findings []finding.Finding, shown *cli.Activity,
	do cli.Transformation) error {
	if list, err := resourceList(src, opt, in.Config); err != nil {
		return err
	} else if list != nil {
		return toList(cmd, in, list, opt, shown, do)
	}
	opt.Workers, opt.Pieces = 1, true // files in order
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		opt.ObjectsOnly = true
		if file := in.Kustomization(src); file != "" && cmd.Name() == "render" {
			findings = append(findings, finding.Finding{Rule: "package/kustomization",
				Severity: finding.Warning, Place: finding.Place{File: file},
				Message: "the output has the files of the folder, not the result of this " +
					"kustomization",
				Hint: "run kustomize build, with armature.yaml as a transformer (armature " +
					"init --for kustomize)"})
		}
	}
	var brief needs.Brief
	var spool source.Spool
	found, stats, err := do(src, opt, cli.Interruptible(cmd.Context(), brief.Sink(spool.Write)))
	shown.End()
	if err != nil {
		return err
	}
	if err := in.Report(cmd, append(findings, found...)); err != nil {
		return err
	}
	if stats.Documents == 0 {
		return cli.ErrNoManifests(path)
	}
	if _, err := spool.WriteTo(cmd.OutOrStdout()); err != nil {
		return fmt.Errorf("writing: %w", err)
	}
	summary(cmd, in, done, stats, "")
	in.SayNeeds(cmd, &brief, path, stats)
	return nil
}

func toList(cmd *cobra.Command, in *cli.Input, list *host.List, opt render.Options,
	shown *cli.Activity, do cli.Transformation) error {
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
	fmt.Fprintf(cmd.ErrOrStderr(), done+" from %s%s\n", text.Count(stats.Workloads, "workload"),
		text.Count(stats.Generated, "object"), text.Count(stats.Documents, "document"), rest)
}
