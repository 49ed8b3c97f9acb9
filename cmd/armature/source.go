package main

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/host"
	"github.com/armature-dev/armature/render/oci"
	"github.com/armature-dev/armature/render/source"
)

// place is where the files of a package are, for those who read about them.
type place struct {
	folder string        // "" for standard input, and for what is nobody's folder
	files  []render.File // of the package, with its configuration and lock
}

// list records the files of a package, and those that findings report as left out
// of it. A configuration or lock from a flag is not one of them.
func (at *place) list(src render.Source, leftOut []krm.Finding, config, lock string) {
	at.files = slices.Clip(src.Files)
	for _, f := range leftOut {
		at.files = append(at.files, render.File{Path: f.File})
	}
	if config == "" {
		at.files = append(at.files, render.File{Path: render.ConfigFile})
	}
	if lock == "" {
		at.files = append(at.files, render.File{Path: render.LockFile})
	}
}

// from leads to the folder from the working folder, which in CI is the
// repository's.
func (at *place) from() string {
	here, err := os.Getwd()
	if err != nil || !filepath.IsAbs(at.folder) {
		return at.folder
	}
	if relative, err := filepath.Rel(here, at.folder); err == nil && filepath.IsLocal(relative) {
		return relative
	}
	return at.folder
}

// locate names files in findings as they are found from the working folder, and
// not from the package's.
func (at *place) locate(findings []krm.Finding) []krm.Finding {
	if at.folder == "" {
		return findings
	}
	return host.From(at.from(), at.files, findings)
}

// file names a file of the package as it is found from the working folder.
func (at *place) file(name string) string {
	if at.folder == "" || name == "-" {
		return name
	}
	return filepath.ToSlash(filepath.Join(at.from(), filepath.FromSlash(name)))
}

// manifests are what a command reads: a folder, a file or standard input, with
// its configuration and lock.
type manifests struct {
	config, lock string

	place
}

func (m *manifests) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&m.config, "config", "c", "", "RenderConfig to use (default: armature.yaml at the root of PATH)")
	cmd.Flags().StringVar(&m.lock, "lock", "", "ImageLock to use (default: armature.lock at the root of PATH)")
}

// root is the folder of a PATH.
func (m *manifests) root(given string) (string, error) {
	if given == "-" {
		return ".", nil
	}
	info, err := os.Stat(given)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return filepath.Dir(given), nil
	}
	return given, nil
}

// open reads the configuration and the lock, and lists the files.
func (m *manifests) open(cmd *cobra.Command, given string) (src render.Source, opt render.Options, findings []krm.Finding, err error) {
	root, err := m.root(given)
	if err != nil {
		return src, opt, nil, err
	}
	m.place = place{}
	if given != "-" {
		m.folder = root
	}
	if given != "-" || m.config != "" {
		if opt.Config, findings, err = source.FindConfig(m.config, root); err != nil {
			return src, opt, nil, err
		}
	}
	if given != "-" || m.lock != "" {
		lock, found, err := source.FindLock(m.lock, root)
		if err != nil {
			return src, opt, nil, err
		}
		opt.Lock, findings = lock, append(findings, found...)
	}
	if given != "-" {
		src, found, err := source.Tree(given, "")
		m.list(src, found, m.config, m.lock)
		return src, opt, append(findings, found...), err
	}
	src, err = readStream(cmd.Context(), cmd.InOrStdin())
	switch {
	case err != nil:
	case len(src.Files[0].Data) == 0:
		err = errors.New("nothing on standard input") // most likely the command before the pipe failed
	case host.IsResourceList(src.Files[0].Data):
		err = errors.New("standard input is a ResourceList, which is for functions\n  hint: unwrap it first, with `kpt fn sink` for one")
	}
	return src, opt, findings, err
}

// report writes findings and fails if one of them is an error.
func (m *manifests) report(cmd *cobra.Command, findings []krm.Finding) error {
	if err := host.WriteFindings(cmd.ErrOrStderr(), "text", m.locate(findings)); err != nil {
		return err
	}
	if krm.Failed(findings) {
		return errFindings
	}
	return nil
}

// kustomization names the first kustomization of a source, "" for none.
func (m *manifests) kustomization(src render.Source) string {
	for _, f := range src.Files {
		switch path.Base(f.Path) {
		case "kustomization.yaml", "kustomization.yml", "Kustomization":
			return m.file(f.Path)
		}
	}
	return ""
}

// registryFlags say how a registry is reached.
type registryFlags struct{ plainHTTP bool }

func (r *registryFlags) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&r.plainHTTP, "insecure-registry", false, "use plain http for the registry")
}

// options show what is transferred, if that is anything.
func (r *registryFlags) options(shown *activity, doing string) oci.Options {
	return oci.Options{PlainHTTP: r.plainHTTP, Progress: shown.transfer(doing)}
}

// artifact checks that an argument is a reference to an artifact.
func artifact(given string) error {
	if _, err := (oci.Options{}).Parse(given); err != nil {
		return usageError{err}
	}
	return nil
}
