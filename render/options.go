package render

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
)

// File is one file of a package.
type File struct {
	// Path is relative to the package's root, with slashes; "-" is standard input.
	Path string
	// Data is the content; nil where the Source reads it on demand.
	Data []byte
	// AsIs leaves the file as it is: it holds text for another tool.
	AsIs bool
}

// Source is what is rendered.
type Source struct {
	Files []File
	// Folder is the folder that the files are in, absolute and without links; ""
	// where there is none, as for a stream.
	Folder string
	// Read returns the content of a file without Data. It may use buf.
	Read func(file string, buf []byte) ([]byte, error)
}

// Content returns the content of a file of the source, or of another file that Read knows.
func (s Source) Content(file string) ([]byte, error) {
	for _, f := range s.Files {
		if f.Path == file && (f.Data != nil || s.Read == nil) {
			return f.Data, nil
		}
	}
	if s.Read == nil {
		return nil, fmt.Errorf("%s: %w", file, fs.ErrNotExist)
	}
	return s.Read(file, nil)
}

// Options say how.
type Options struct {
	// Config is the RenderConfig, nil for the defaults.
	Config *api.RenderConfig
	// Lock is the ImageLock beside the package, nil for none.
	Lock *api.ImageLock
	// Closed makes it an error that the workload of a resource is not in the package.
	Closed bool
	// Functions are the names of the functions to run; nil is all of them.
	Functions []string
	// Version is recorded in what is rendered; "" is this build's.
	Version string
	// ObjectsOnly leaves out files and documents that are not Kubernetes objects
	// of a cluster, so that the output can be applied.
	ObjectsOnly bool
	// Beside writes what is generated for a JSON file, which can hold one object only, into a file
	// of its own next to it. A stream has it behind the object.
	Beside bool
	// Pieces lets a large file reach the sink in several calls, one after the
	// other, so that no more than a piece of it is in memory.
	Pieces bool
	// Observe looks at every object that the functions have been through, nil
	// not at all. More than one worker calls it at the same time.
	Observe func(*contract.Unit)
	// Workers is how many files are worked on at once; 0 is one for each
	// processor. Files reach the sink in order only with one.
	Workers int

	// Hosted says that the source is a ResourceList that a host passes.
	Hosted bool

	table []contract.Function // nil for functions.Table
}

// Excludes reports whether spec.exclude of the configuration matches a file.
func (opt *Options) Excludes(file string) bool {
	return opt.Config != nil && slices.ContainsFunc(opt.Config.Spec.Exclude,
		func(glob string) bool { return matchGlob(glob, file) })
}

// matchGlob matches a path with path.Match; "**" matches any number of folders.
func matchGlob(glob, file string) bool {
	before, after, deep := strings.Cut(glob, "**")
	if !deep {
		ok, err := path.Match(strings.TrimSuffix(glob, "/"), file)
		return err == nil && ok || strings.HasPrefix(file, strings.TrimSuffix(glob, "/")+"/")
	}
	if !strings.HasPrefix(file, before) {
		return false
	}
	rest := strings.Split(file[len(before):], "/")
	after = strings.TrimPrefix(after, "/")
	if after == "" {
		return true
	}
	for i := range rest {
		if matchGlob(after, strings.Join(rest[i:], "/")) {
			return true
		}
	}
	return false
}

// IsManifest reports whether a file's name is that of a manifest.
func IsManifest(file string) bool {
	switch path.Ext(file) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return file == "-"
}

// IsKustomization reports whether a file's name is one that kustomize builds from.
func IsKustomization(file string) bool {
	switch path.Base(file) {
	case "kustomization.yaml", "kustomization.yml", "Kustomization":
		return true
	}
	return false
}

// Kustomization is the first one of a source, "" for none.
func (s Source) Kustomization() string {
	for _, f := range s.Files {
		if IsKustomization(f.Path) {
			return f.Path
		}
	}
	return ""
}

// Result is a render that is held in memory.
type Result struct {
	// Files are the rendered files; empty where a finding is an error.
	Files    []File
	Findings []finding.Finding
	Stats    Stats
}

// Sink takes a rendered file. Data is valid during the call only; nil says that
// nothing is left of the file, which held generated objects only. Whoever
// passes a sink must not let its output leave when Stream ends with an error or
// with a finding that is one.
type Sink func(file string, data []byte) error
