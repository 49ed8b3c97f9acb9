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
	// Data is the content; nil if the Source reads it on demand.
	Data []byte
	// AsIs leaves the file unchanged, because it is text for another tool.
	AsIs bool
}

// Source is the input of a render.
type Source struct {
	Files []File
	// Folder is the folder of the files, absolute and without symbolic links; "" without one, as
	// for a stream.
	Folder string
	// Read returns the content of a file without Data. It may use buf.
	Read func(file string, buf []byte) ([]byte, error)
}

// Content returns the content of a file of the source, or of another file that Read can read.
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

// Options control a render.
type Options struct {
	// Config is the RenderConfig; nil for the defaults.
	Config *api.RenderConfig
	// Lock is the ImageLock of the package; nil for none.
	Lock *api.ImageLock
	// Closed reports an error if the workload of a resource is not in the package.
	Closed bool
	// Functions are the names of the functions to run; nil is all of them.
	Functions []string
	// Version is recorded in rendered objects; "" is this build's.
	Version string
	// ObjectsOnly omits files and documents that are not Kubernetes objects for a cluster, so that
	// the output can be applied.
	ObjectsOnly bool
	// Beside writes objects generated from a JSON file, which can contain only one object, into a
	// file next to it. In a stream they follow the object.
	Beside bool
	// Pieces passes a large file to the sink in several consecutive calls, so that only a piece of
	// it is in memory.
	Pieces bool
	// Observe is called for every object after all functions; it may be nil. Several workers call
	// it in parallel.
	Observe func(*contract.Unit)
	// Workers is the number of files that are processed in parallel; 0 is one per processor. Only
	// one worker passes files to the sink in order.
	Workers int

	// Hosted means that the source is a ResourceList from a host.
	Hosted bool

	table []contract.Function // nil for functions.Table
}

// Excludes reports whether spec.exclude of the configuration matches a file.
func (opt *Options) Excludes(file string) bool {
	return opt.Config != nil && slices.ContainsFunc(opt.Config.Spec.Exclude,
		func(glob string) bool { return matchGlob(glob, file) })
}

// matchGlob matches a path with path.Match; "**" matches any number of folders.
func matchGlob(glob, file string) bool { return matchRest(glob, file, make(map[[2]int]bool)) }

// matchRest matches the rest of a path with the rest of a pattern. failed contains the lengths of
// the rests that do not match, so that a pattern with many "**" takes no exponential time.
func matchRest(glob, file string, failed map[[2]int]bool) bool {
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
		file := strings.Join(rest[i:], "/")
		lengths := [2]int{len(after), len(file)}
		if !failed[lengths] && matchRest(after, file, failed) {
			return true
		}
		failed[lengths] = true
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

// IsKustomization reports whether a file has the name of a kustomization.
func IsKustomization(file string) bool {
	switch path.Base(file) {
	case "kustomization.yaml", "kustomization.yml", "Kustomization":
		return true
	}
	return false
}

// Kustomization returns the path of the first kustomization of a source, or "".
func (s Source) Kustomization() string {
	for _, f := range s.Files {
		if IsKustomization(f.Path) {
			return f.Path
		}
	}
	return ""
}

// Result is the result of a render in memory.
type Result struct {
	// Files are the rendered files; empty if a finding is an error.
	Files    []File
	Findings []finding.Finding
	Stats    Stats
}

// Sink receives a rendered file. Data is valid only during the call; nil means that the file became
// empty because it contained only generated objects. The caller of Stream must discard the output
// of the sink if Stream returns an error or a finding that is an error.
type Sink func(file string, data []byte) error
