package main

import (
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
	t := transformation{done: "%s injected, %s generated"}
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
			do := gate.Before(cmd.Context(), &t.in.Place, render.Stream)
			t.do = func(src render.Source, opt render.Options,
				sink render.Sink) ([]finding.Finding, render.Stats, error) {
				opt.Functions, opt.Closed = names, closed
				untouched := cli.Untouched(&opt)
				found, stats, err := do(src, opt, sink)
				if stats.Workloads == 0 && names == nil {
					found = append(found, untouched()...)
				}
				return found, stats, err
			}
			return t.run(cmd, args[0])
		},
	}
	t.flags(cmd)
	cmd.Flags().BoolVar(&t.check, "check", false,
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
	t := transformation{done: "%s restored, %s removed", do: render.Uninject}
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
			return t.run(cmd, args[0])
		},
	}
	t.flags(cmd)
	return cmd
}

// resourceList parses standard input as the ResourceList of a host, and returns nil for other
// input. A configuration from a flag overrides that of the list, which overrides one that was
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

// transformation reads manifests from PATH, transforms them, and writes all of them or none.
type transformation struct {
	in      cli.Input
	folder  string // to write to; "" is standard output
	inPlace bool
	check   bool
	done    string // a format for the numbers of workloads and generated objects
	do      cli.Transformation

	cmd   *cobra.Command
	path  string
	brief needs.Brief
}

func (t *transformation) flags(cmd *cobra.Command) {
	t.in.Flags(cmd)
	cli.DirFlag(cmd, &t.folder, "folder to write to (default: standard output)")
	cmd.Flags().BoolVarP(&t.inPlace, "in-place", "i", false, "write back to PATH")
}

// renders reports whether it is a render to another place than the package itself.
func (t *transformation) renders() bool { return t.cmd.Name() == "render" && !t.inPlace }

func (t *transformation) run(cmd *cobra.Command, path string) error {
	t.cmd, t.path = cmd, path
	folder, err := t.target()
	if err != nil {
		return err
	}
	src, opt, findings, activity, err := t.in.Load(cmd, path, t.folder, cmd.Name())
	if err != nil {
		return err
	}
	defer activity.End()
	if file, base := source.Outside(src); file != "" && t.renders() && !opt.Excludes(file) {
		return fmt.Errorf("%s has to be built first: it builds on %s, which is not in %s\n"+
			"  hint: kustomize build %s | armature render -, or leave it out with spec.exclude "+
			"in armature.yaml", t.in.File(file), base, path, filepath.Dir(t.in.File(file)))
	}
	if folder == "" {
		return t.toStream(src, opt, findings, activity)
	}
	return t.toFolder(folder, src, opt, findings, activity)
}

// target checks the flags, and returns the folder to write to, "" for standard output.
func (t *transformation) target() (folder string, err error) {
	switch {
	case t.check && t.folder == "" && !t.inPlace:
		err = cli.Usagef("--check compares a folder: name it with -d, or use --in-place")
	case t.inPlace && t.folder != "":
		err = cli.Usagef("--output-dir and --in-place exclude each other")
	case t.inPlace && t.path == "-":
		err = cli.Usagef("standard input cannot be written back: leave out --in-place")
	case t.inPlace:
		return cli.RootOf(t.path)
	}
	return t.folder, err
}

// writer writes rendered files to a folder, or compares the folder with them.
type writer interface {
	Write(file string, data []byte) error
	For(path string) error
	Abort() error
}

// writer returns the writer of a folder.
func (t *transformation) writer(folder string) (writer, error) {
	if t.check {
		return source.NewComparison(folder, t.inPlace)
	}
	return source.NewFolder(folder, t.inPlace)
}

func (t *transformation) toFolder(folder string, src render.Source, opt render.Options,
	findings []finding.Finding, activity *cli.Activity) error {
	to, err := t.writer(folder)
	if err != nil {
		return err
	}
	if err := to.For(t.path); err != nil {
		return multi.Errors(err, to.Abort())
	}
	var manifests atomic.Int64
	sink := render.Sink(to.Write)
	if t.cmd.Name() == "render" {
		sink = t.brief.Sink(sink)
	}
	if t.renders() {
		sink = t.withoutConfig(sink, &manifests)
	}
	opt.Beside = true
	found, stats, err := t.do(src, opt, cli.Interruptible(t.cmd.Context(), sink))
	activity.End()
	findings = append(findings, found...)
	if t.renders() && err == nil && !finding.Failed(findings) && manifests.Load() == 0 {
		err = fmt.Errorf("%s holds no manifests: %s stays as it is\n  hint: name the folder with "+
			"the manifests, or remove %s if the package is gone", t.path, folder, folder)
	}
	compared, compares := to.(*source.Comparison)
	if compares && err == nil && !finding.Failed(findings) {
		found, err = t.outdated(compared)
		findings = append(findings, found...)
	}
	if err == nil {
		err = t.in.Report(t.cmd, findings)
	}
	switch {
	case !compares && err != nil:
		return multi.Errors(err, to.Abort())
	case err != nil:
		return err
	case compares:
		if t.in.Talks() {
			fmt.Fprintf(t.cmd.ErrOrStderr(), "checked: %s is up to date with %s\n", folder, t.path)
		}
		return nil
	}
	rendered := to.(*source.Folder)
	written, removed, err := rendered.Commit()
	if err != nil {
		return fmt.Errorf("writing to %s: %w", folder, err)
	}
	t.say(stats, fmt.Sprintf(" to %s: %s written, %d unchanged, %d removed", folder,
		text.Count(written, "file"), rendered.Files()-written, removed))
	return nil
}

// withoutConfig omits the configuration of a package from the output, because no cluster serves its
// kind, and counts the manifests.
func (t *transformation) withoutConfig(sink render.Sink, manifests *atomic.Int64) render.Sink {
	left := []string{render.ConfigFile}
	if root, err := cli.RootOf(t.path); err == nil && t.in.Config != "" {
		if file, err := filepath.Rel(root, t.in.Config); err == nil {
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

// outdated prints the differences between a folder and a new render, and returns a finding for each
// file that differs.
func (t *transformation) outdated(c *source.Comparison) (findings []finding.Finding, err error) {
	command := "armature render " + t.path + " -d " + t.folder
	if t.inPlace {
		command = "armature render " + t.path + " --in-place"
	}
	differences, err := c.Differences()
	for _, d := range differences {
		if _, err := t.cmd.OutOrStdout().Write(d.Text); err != nil {
			return nil, err
		}
		findings = append(findings, finding.Finding{Rule: "render/outdated",
			Severity: finding.Error, Place: finding.Place{File: d.File, Line: 1},
			Message: "it differs from a new render of " + t.path,
			Hint:    "run " + command + " and commit the result"})
	}
	return findings, err
}

func (t *transformation) toStream(src render.Source, opt render.Options,
	findings []finding.Finding, activity *cli.Activity) error {
	if list, err := resourceList(src, opt, t.in.Config); err != nil {
		return err
	} else if list != nil {
		return t.toList(list, opt, activity)
	}
	opt.Workers, opt.Pieces = 1, true // files in order
	if info, err := os.Stat(t.path); err == nil && info.IsDir() {
		opt.ObjectsOnly = true
		if file := t.in.Kustomization(src); file != "" && t.renders() {
			findings = append(findings, finding.Finding{Rule: "package/kustomization",
				Severity: finding.Warning, Place: finding.Place{File: file},
				Message: "the output has the files of the folder, not the result of this " +
					"kustomization",
				Hint: "run kustomize build, with armature.yaml as a transformer (armature " +
					"init --for kustomize)"})
		}
	}
	var spool source.Spool
	found, stats, err := t.do(src, opt,
		cli.Interruptible(t.cmd.Context(), t.brief.Sink(spool.Write)))
	activity.End()
	if err != nil {
		return err
	}
	if err := t.in.Report(t.cmd, append(findings, found...)); err != nil {
		return err
	}
	if stats.Documents == 0 {
		return cli.ErrNoManifests(t.path)
	}
	if _, err := spool.WriteTo(t.cmd.OutOrStdout()); err != nil {
		return fmt.Errorf("writing: %w", err)
	}
	t.say(stats, "")
	return nil
}

func (t *transformation) toList(list *host.List, opt render.Options, activity *cli.Activity) error {
	out, findings, _, err := list.Run(opt, t.do)
	activity.End()
	if err != nil {
		return err
	}
	if _, err := t.cmd.OutOrStdout().Write(out); err != nil {
		return err
	}
	return t.in.Report(t.cmd, findings)
}

// say prints what was done, and what a cluster needs to run it.
func (t *transformation) say(stats render.Stats, rest string) {
	if !t.in.Talks() {
		return
	}
	fmt.Fprintf(t.cmd.ErrOrStderr(), t.done+" from %s%s\n", text.Count(stats.Workloads, "workload"),
		text.Count(stats.Generated, "object"), text.Count(stats.Documents, "document"), rest)
	if t.cmd.Name() == "render" && stats.Workloads > 0 {
		fmt.Fprint(t.cmd.ErrOrStderr(), t.brief.Line(t.path))
	}
}
