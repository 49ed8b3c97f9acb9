package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/host"
	"github.com/armature-dev/armature/render/source"
	"github.com/armature-dev/armature/render/version"
)

func renderCommand() *cobra.Command {
	var in input
	var out output
	var names []string
	var gate imageGate
	cmd := &cobra.Command{
		Use:   "render PATH|-",
		Short: "Render manifests: a folder, a file or standard input",
		Long: `Render reads Kubernetes manifests and writes them again with the identity
infrastructure and configuration around every workload that opted in. All other
bytes stay unchanged. Any error keeps the whole output back.

Rendering needs no cluster and no network. Rendering what was rendered before
changes nothing; "armature uninject" undoes it.

With --verify-images the registries are asked as well: every image of what is rendered
has to have a digest and to satisfy the policy, or nothing is written.`,
		Example: `  armature render apps/ | kubectl apply -f -
  armature render apps/ -o rendered/
  armature render apps/ --in-place
  helm template my-release chart/ | armature render - > all.yaml
  armature render apps/ -o rendered/ --verify-images policy.yaml
  armature render apps/ -o rendered/ --findings sarif --findings-file out.sarif`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range names {
				if _, ok := functions.Lookup(name); !ok {
					return usageError{fmt.Errorf("function %q does not exist: see armature functions", name)}
				}
			}
			if err := gate.open(); err != nil {
				return err
			}
			do := gate.before(cmd.Context(), &in.place, render.Stream)
			return transform(cmd, args[0], &in, &out, "%s injected, %s generated", len(names) == 0, func(src render.Source, opt render.Options, sink render.Sink) ([]krm.Finding, render.Stats, error) {
				opt.Functions = names
				return do(src, opt, sink)
			})
		},
	}
	in.flags(cmd)
	out.flags(cmd)
	gate.flag(cmd)
	cmd.Flags().StringSliceVar(&names, "functions", nil, "run only these functions (see armature functions)")
	var all []string
	for _, f := range functions.Table() {
		all = append(all, f.Name)
	}
	complete(cmd, "functions", all)
	return cmd
}

func uninjectCommand() *cobra.Command {
	var in input
	var out output
	cmd := &cobra.Command{
		Use:   "uninject PATH|-",
		Short: "Restore rendered manifests to what their author wrote",
		Long: `Uninject removes exactly what a render of any version added, and restores the custom
resources that the render consumed.`,
		Example: `  armature uninject rendered/ -o apps/
  armature uninject apps/ --in-place
  armature render web.yaml | armature uninject - | diff web.yaml -`,
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		RunE: func(cmd *cobra.Command, args []string) error {
			return transform(cmd, args[0], &in, &out, "%s restored, %s removed", false, render.Uninject)
		},
	}
	in.flags(cmd)
	out.flags(cmd)
	return cmd
}

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

// input is what all commands that read manifests share.
type input struct {
	config, lock, format, file string
	quiet                      bool

	place
}

func (in *input) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&in.config, "config", "c", "", "RenderConfig to use (default: armature.yaml at the root of PATH)")
	cmd.Flags().StringVar(&in.lock, "lock", "", "ImageLock to use (default: armature.lock at the root of PATH)")
	cmd.Flags().StringVar(&in.format, "findings", "text", "write findings as "+strings.Join(host.Formats(), ", "))
	cmd.Flags().StringVar(&in.file, "findings-file", "", "write findings to a file (default: standard error)")
	cmd.Flags().BoolVarP(&in.quiet, "quiet", "q", false, "show errors only")
	for name, values := range map[string][]string{"findings": host.Formats()} {
		if err := cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
			panic(err) // the flag was defined three lines above
		}
	}
}

// open reads the configuration and the lock, and lists the source.
func (in *input) open(cmd *cobra.Command, path, skip string) (render.Source, render.Options, []krm.Finding, error) {
	if !slices.Contains(host.Formats(), in.format) {
		return render.Source{}, render.Options{}, nil, usageError{
			fmt.Errorf("unknown format %q for --findings: choose from %s", in.format, strings.Join(host.Formats(), ", "))}
	}
	root := "."
	in.place = place{}
	if path != "-" {
		root = path
		if info, err := os.Stat(path); err != nil {
			return render.Source{}, render.Options{}, nil, err
		} else if !info.IsDir() {
			root = filepath.Dir(path)
		}
		in.folder = root
	}
	var config *api.RenderConfig
	var findings []krm.Finding
	var err error
	if path != "-" || in.config != "" {
		if config, findings, err = source.FindConfig(in.config, root); err != nil {
			return render.Source{}, render.Options{}, nil, err
		}
	}
	opt := render.Options{Config: config}
	if path != "-" || in.lock != "" {
		lock, found, err := source.FindLock(in.lock, root)
		if err != nil {
			return render.Source{}, render.Options{}, nil, err
		}
		opt.Lock, findings = lock, append(findings, found...)
	}
	if path == "-" {
		src, err := readInput(cmd)
		if err == nil && len(src.Files[0].Data) == 0 {
			// Most likely the command before the pipe failed.
			err = errors.New("nothing on standard input")
		}
		return src, opt, findings, err
	}
	src, found, err := source.Tree(path, skip)
	in.list(src, found, in.config, in.lock)
	return src, opt, append(findings, found...), err
}

// readInput reads standard input until its end, or until the user loses patience.
func readInput(cmd *cobra.Command) (render.Source, error) {
	type result struct {
		src render.Source
		err error
	}
	done := make(chan result, 1)
	go func() {
		src, err := source.ReadStream(cmd.InOrStdin())
		done <- result{src, err}
	}()
	select {
	case r := <-done:
		return r.src, r.err
	case <-cmd.Context().Done():
		return render.Source{}, errInterrupted
	}
}

// report writes the findings and fails where one of them is an error.
func (in *input) report(cmd *cobra.Command, findings []krm.Finding) error {
	failed := krm.Failed(findings)
	if in.quiet {
		findings = slices.DeleteFunc(findings, func(f krm.Finding) bool { return f.Severity != krm.Error })
	}
	findings = in.locate(findings)
	w := cmd.ErrOrStderr()
	if in.file != "" {
		f, err := os.Create(in.file)
		if err != nil {
			return err
		}
		if err := errors.Join(host.WriteFindings(f, in.format, findings), f.Close()); err != nil {
			return err
		}
	} else if err := host.WriteFindings(w, in.format, findings); err != nil {
		return err
	}
	if failed {
		return errFindings
	}
	return nil
}

// talks reports whether people read standard error, and not a program that would
// stumble over a sentence behind its JSON.
func (in *input) talks() bool {
	return !in.quiet && (in.file != "" || in.format == "text" || in.format == "github")
}

// output is where rendered manifests go.
type output struct {
	folder  string
	inPlace bool
}

func (out *output) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&out.folder, "output", "o", "", "folder to write to (default: standard output)")
	cmd.Flags().BoolVarP(&out.inPlace, "in-place", "i", false, "write back to PATH")
}

// transformation is render.Stream or render.Uninject.
type transformation func(render.Source, render.Options, render.Sink) ([]krm.Finding, render.Stats, error)

// transform takes manifests from PATH to where they go, all or nothing. Where it
// may remember, a folder that it wrote before is brought up to date.
func transform(cmd *cobra.Command, path string, in *input, out *output, done string, remember bool, do transformation) error {
	folder := out.folder
	if out.inPlace && folder != "" {
		return usageError{errors.New("--output and --in-place exclude each other")}
	}
	if out.inPlace {
		if path == "-" {
			return usageError{errors.New("standard input cannot be written back: leave out --in-place")}
		}
		folder = path
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			folder = filepath.Dir(path)
		}
	}
	skip := folder
	if out.inPlace {
		skip = ""
	}
	listed := collectAt(whileListing)
	defer listed()
	var memory *source.Memory
	var build func() (string, error)
	if file := memoryFile(folder); remember && folder != "" && !out.inPlace && file != "" {
		memory, build = source.OpenMemory(file, folder), version.Fingerprint()
	}
	shown := begin(cmd.ErrOrStderr(), in.quiet, "reading "+path)
	defer shown.end()
	src, opt, findings, err := in.open(cmd, path, skip)
	if err != nil {
		return err
	}
	if krm.Failed(findings) {
		shown.end()
		return in.report(cmd, findings)
	}
	src = shown.reading(cmd.Name(), src)
	if folder == "" {
		listed()
		return toStream(cmd, path, in, done, src, opt, findings, shown, do)
	}
	to, err := source.NewFolder(folder, out.inPlace)
	if err != nil {
		return err
	}
	opt.Beside = true
	changed := len(src.Files)
	if memory != nil {
		if this, err := build(); err == nil {
			opt.Memory, changed = memory.Match(this, path, src, opt.Config, opt.Lock)
			opt.Keep = to.Keep
		} else {
			memory = nil // which may be another build's
		}
	}
	if changed > 1000 {
		listed()
	}
	found, stats, err := do(src, opt, interruptible(cmd.Context(), to.Write))
	shown.end()
	if err == nil {
		err = in.report(cmd, append(findings, found...))
	}
	if err != nil {
		return errors.Join(err, to.Abort())
	}
	written, removed, err := to.Commit()
	if err != nil {
		return fmt.Errorf("writing to %s: %w", folder, err)
	}
	if memory != nil && memory.Save(src, to) != nil {
		os.Remove(memoryFile(folder)) // a full disk, say: the next render does all of it
	}
	summary(cmd, in, done, stats, fmt.Sprintf(" to %s: %d files written, %d unchanged, %d removed", folder, written, to.Files()-written, removed))
	return nil
}

// memoryFile is where renders into a folder are remembered: in the user's cache.
// It is "" where the user has none.
func memoryFile(folder string) string {
	cache, err1 := os.UserCacheDir()
	folder, err2 := filepath.Abs(folder)
	if errors.Join(err1, err2) != nil {
		return ""
	}
	sum := sha256.Sum256([]byte(folder))
	return filepath.Join(cache, "armature", hex.EncodeToString(sum[:16]))
}

func toStream(cmd *cobra.Command, path string, in *input, done string, src render.Source, opt render.Options, findings []krm.Finding, shown *activity, do transformation) error {
	if list, err := resourceList(src, opt); err != nil {
		return err
	} else if list != nil {
		return toList(cmd, in, list, opt, shown, do)
	}
	opt.Workers, opt.Pieces = 1, true // files in order
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		opt.ObjectsOnly = true
	}
	var spool source.Spool
	found, stats, err := do(src, opt, interruptible(cmd.Context(), spool.Write))
	shown.end()
	if err != nil {
		return err
	}
	if err := in.report(cmd, append(findings, found...)); err != nil {
		return err
	}
	if _, err := spool.WriteTo(cmd.OutOrStdout()); err != nil {
		return fmt.Errorf("writing: %w", err)
	}
	summary(cmd, in, done, stats, "")
	return nil
}

func toList(cmd *cobra.Command, in *input, list *host.List, opt render.Options, shown *activity, do transformation) error {
	out, findings, _, err := list.Run(opt, do)
	shown.end()
	if err != nil {
		return err
	}
	if _, err := cmd.OutOrStdout().Write(out); err != nil {
		return err
	}
	return in.report(cmd, findings)
}

var errInterrupted = errors.New("interrupted: nothing was written")

// interruptible stops between two files when the user presses Ctrl-C.
func interruptible(ctx context.Context, sink render.Sink) render.Sink {
	return func(file string, data []byte) error {
		if err := ctx.Err(); err != nil {
			return errInterrupted
		}
		return sink(file, data)
	}
}

// summary reports what was done, in the words of done: a format of the numbers of
// workloads and generated objects.
func summary(cmd *cobra.Command, in *input, done string, stats render.Stats, rest string) {
	if !in.talks() {
		return
	}
	var w io.Writer = cmd.ErrOrStderr()
	fmt.Fprintf(w, done+", %s%s\n", count(stats.Workloads, "workload"), count(stats.Generated, "object"), count(stats.Documents, "document"), rest)
}

// count says how many there are of a thing.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
