package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/host"
	"github.com/armature-dev/armature/render/source"
)

// Place says where the files of a package are, for findings.
type Place struct {
	Folder string        // "" for standard input and a temporary folder
	files  []render.File // of the package, with its configuration and lock
}

// list records the files of a package, and those that findings are about, such as excluded files. A
// configuration or lock from a flag is not one of them.
func (at *Place) list(src render.Source, about []finding.Finding, found *api.RenderConfig,
	config, lock string) {
	at.files = slices.Clip(src.Files)
	for _, f := range about {
		if f.File != "" && f.File != config {
			at.files = append(at.files, render.File{Path: f.File})
		}
	}
	if config == "" && found != nil {
		at.files = append(at.files, render.File{Path: found.Origin.File})
	}
	if lock == "" {
		at.files = append(at.files, render.File{Path: render.LockFile})
	}
}

// from returns the folder relative to the working folder, which in CI is the repository's.
func (at *Place) from() string {
	here, err := os.Getwd()
	if err != nil || !filepath.IsAbs(at.Folder) {
		return at.Folder
	}
	if relative, err := filepath.Rel(here, at.Folder); err == nil && filepath.IsLocal(relative) {
		return relative
	}
	return at.Folder
}

// Locate makes the file names in findings relative to the working folder instead of the package's.
func (at *Place) Locate(findings []finding.Finding) []finding.Finding {
	if at.Folder == "" {
		return findings
	}
	return host.From(at.from(), at.files, findings)
}

// File returns a file name of the package relative to the working folder.
func (at *Place) File(name string) string {
	if at.Folder == "" || name == "-" {
		return name
	}
	return filepath.ToSlash(filepath.Join(at.from(), filepath.FromSlash(name)))
}

// Input is the input of a command: a folder, a file or standard input, with its configuration and
// lock, and how findings about it are reported.
type Input struct {
	Config, Lock string
	Format       string // of findings, "" is text
	Quiet        bool   // only errors are reported

	Place
	file string // that findings are written to
	top  string // where the search for the configuration ends; see source.Nearest
}

// ConfigFlag adds the flag of commands that read no lock.
func (in *Input) ConfigFlag(cmd *cobra.Command, root string) {
	cmd.Flags().StringVarP(&in.Config, "config", "c", "",
		"RenderConfig to use (default: the nearest armature.yaml, from "+root+" upwards)")
}

// PackageFlags adds the flags of commands that report findings as text.
func (in *Input) PackageFlags(cmd *cobra.Command, root string) {
	in.ConfigFlag(cmd, root)
	cmd.Flags().StringVar(&in.Lock, "lock", "",
		"ImageLock to use (default: armature.lock at the root of "+root+")")
}

func (in *Input) Flags(cmd *cobra.Command) {
	in.PackageFlags(cmd, "PATH")
	WordFlag(cmd, &in.Format, "findings", "", "text",
		"write findings as "+strings.Join(host.Formats(), ", "), "format", host.Formats()...)
	cmd.Flags().StringVar(&in.file, "findings-file", "",
		"write findings to a file (default: standard error)")
	cmd.Flags().BoolVarP(&in.Quiet, "quiet", "q", false, "show errors only")
}

// RootOf returns the folder of a PATH: PATH itself, or the folder of a file.
func RootOf(given string) (string, error) {
	if given == "-" {
		return ".", nil
	}
	info, err := os.Stat(given)
	if err == nil && !info.IsDir() {
		return filepath.Dir(given), nil
	}
	return given, err
}

// Open reads the configuration and the lock, and lists the files, except those of the output folder
// skip.
func (in *Input) Open(cmd *cobra.Command,
	given, skip string) (src render.Source, opt render.Options, findings []finding.Finding, err error) {
	root, err := RootOf(given)
	if err != nil {
		return src, opt, nil, err
	}
	if skip != "" && source.Same(skip, root) {
		remedy := "leave it out"
		if cmd.Flag("in-place") != nil {
			remedy = "use --in-place"
		}
		return src, opt, nil, Usagef("-d %s is PATH itself: %s to write back, or name another folder",
			skip, remedy)
	}
	in.Place = Place{}
	if given != "-" {
		in.Folder = root
	}
	if opt.Config, findings, err = source.FindConfig(in.Config, root, in.top); err != nil {
		return src, opt, nil, err
	}
	aboutConfig := slices.Clone(findings)
	if given != "-" || in.Lock != "" {
		lock, found, err := source.FindLock(in.Lock, root)
		if err != nil {
			return src, opt, nil, err
		}
		opt.Lock, findings = lock, append(findings, found...)
	}
	if given != "-" {
		src, found, err := source.Tree(given, skip, opt.Excludes)
		in.list(src, append(aboutConfig, found...), opt.Config, in.Config, in.Lock)
		in.own(src, root)
		return src, opt, append(findings, found...), err
	}
	src, err = Interruptibly(cmd.Context(),
		func() (render.Source, error) { return source.ReadStream(cmd.InOrStdin()) })
	if err == nil && len(src.Files[0].Data) == 0 {
		// most likely the command before the pipe failed
		err = errors.New("nothing on standard input")
	}
	return src, opt, findings, err
}

// ErrNoManifests returns the error about a package without manifests.
func ErrNoManifests(path string) error {
	return fmt.Errorf("%s holds no manifests\n  hint: name the folder with the manifests", path)
}

// own marks a configuration that a flag names, and that is in the folder, as a file that stays as
// it is: it is not a manifest.
func (in *Input) own(src render.Source, root string) {
	for i := range src.Files {
		if in.Config != "" && path.Base(src.Files[i].Path) == filepath.Base(in.Config) &&
			filepath.Join(root, src.Files[i].Path) == filepath.Clean(in.Config) {
			src.Files[i].AsIs = true
		}
	}
}

// Load calls Open for a command that continues only if no finding is an error, and otherwise
// reports the findings. Reading is interruptible. Until activity ends, it shows the progress of
// doing.
func (in *Input) Load(cmd *cobra.Command, given, skip, doing string) (src render.Source,
	opt render.Options, findings []finding.Finding, activity *Activity, err error) {
	activity = Begin(cmd.ErrOrStderr(), in.Quiet, "reading "+given)
	src, opt, findings, err = in.Open(cmd, given, skip)
	if err == nil && !finding.Failed(findings) {
		return activity.Reading(doing, InterruptibleSource(cmd, src)), opt, findings, activity, nil
	}
	activity.End()
	if err == nil {
		err = in.Report(cmd, findings)
	}
	return src, opt, findings, nil, err
}

// LoadObjects calls Load for a command that delivers objects. It refuses a host's ResourceList.
func (in *Input) LoadObjects(cmd *cobra.Command, given string) (src render.Source,
	opt render.Options, findings []finding.Finding, activity *Activity, err error) {
	src, opt, findings, activity, err = in.Load(cmd, given, "", "rendering")
	if err == nil && given == "-" && host.IsResourceList(src.Files[0].Data) {
		activity.End()
		err = errors.New("standard input is a ResourceList, which is for functions\n" +
			"  hint: unwrap it first, with `kpt fn sink` for one")
	}
	return src, opt, findings, activity, err
}

// Kustomization returns the first kustomization of a source, or "".
func (in *Input) Kustomization(src render.Source) string {
	if file := src.Kustomization(); file != "" {
		return in.File(file)
	}
	return ""
}

// Report writes the findings, and returns ErrFindings if one of them is an error.
func (in *Input) Report(cmd *cobra.Command, findings []finding.Finding) error {
	failed := finding.Failed(findings)
	if in.Quiet {
		findings = slices.DeleteFunc(findings,
			func(f finding.Finding) bool { return f.Severity != finding.Error })
	}
	findings, format := in.Locate(findings), cmp.Or(in.Format, "text")
	if in.file != "" {
		f, err := os.Create(in.file)
		if err != nil {
			return err
		}
		if err := multi.Errors(host.WriteFindings(f, format, findings), f.Close()); err != nil {
			return err
		}
	} else if err := host.WriteFindings(cmd.ErrOrStderr(), format, findings); err != nil {
		return err
	}
	if failed {
		return ErrFindings
	}
	return nil
}

// Talks reports whether people read standard error. A program could not parse a sentence after
// JSON.
func (in *Input) Talks() bool {
	return !in.Quiet && (in.file != "" || slices.Contains([]string{"", "text", "github"}, in.Format))
}

// Interruptible stops between two files when the user presses Ctrl-C.
func Interruptible(ctx context.Context, sink render.Sink) render.Sink {
	return func(file string, data []byte) error {
		if ctx.Err() != nil {
			return ErrInterrupted
		}
		return sink(file, data)
	}
}

// InterruptibleSource stops between two files when the user presses Ctrl-C.
func InterruptibleSource(cmd *cobra.Command, src render.Source) render.Source {
	if read := src.Read; read != nil {
		src.Read = func(file string, buf []byte) ([]byte, error) {
			if cmd.Context().Err() != nil {
				return nil, ErrInterrupted
			}
			return read(file, buf)
		}
	}
	return src
}

// Untouched makes a render record the workloads that it leaves unchanged. found returns a finding
// about them, if there are any, for a render that injects none.
func Untouched(opt *render.Options) (found func() []finding.Finding) {
	label := keys.LabelPrefix + "/inject"
	if c := opt.Config; c != nil && c.Spec.LabelPrefix != nil {
		label = *c.Spec.LabelPrefix + "/inject"
	}
	var mu sync.Mutex
	var all []finding.Finding
	opt.Observe = func(u *contract.Unit) {
		o := u.Object
		if _, pod := o.PodTemplate(); !pod || u.Injected() ||
			o.Get("metadata", "labels", label).Is("disabled") {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, o.Finding(finding.Info, "render/nothing-injected", krm.Node{}, "", ""))
	}
	return func() []finding.Finding {
		if len(all) == 0 {
			return nil
		}
		finding.Sort(all)
		const most = 5
		var names []string
		for _, f := range all[:min(most, len(all))] {
			names = append(names, f.Object.String())
		}
		text := strings.Join(names, ", ")
		if more := len(all) - most; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		first := all[0]
		first.Message = "no workload opts in to injection: the package has " + text
		first.Hint = "write the label " + label + ": enabled in the metadata of each agent"
		first.Object = finding.Ref{}
		return []finding.Finding{first}
	}
}
