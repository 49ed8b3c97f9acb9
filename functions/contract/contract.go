// Package contract defines a function of the render: its description, when it is called, and what
// it may change. A function lives in a folder of its own below functions, and has a row in
// functions/table.go.
package contract

import (
	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/foreign"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/images"
	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/internal/node"
	"github.com/armature-dev/armature/functions/krm"
)

// Function is one step of rendering.
type Function struct {
	// Name is its name on the command line and in findings.
	Name string
	// Summary describes the function in one line.
	Summary string
	// Page is its manual page, in Markdown.
	Page string
	// Kinds are the custom resources that it reads.
	Kinds []Kind
	// Reasons names the source of the values that the function writes.
	Reasons Reasons
	// Migration says how `armature migrate` converts the objects of functions that expand them into
	// manifests.
	Migration Migration
	// Record is the annotation in which the function records its changes to an object, and Undo
	// reverts them. They are "" and nil for a function that only sets fields.
	Record string
	Undo   Undo
	// New starts the work on a package.
	New func(*Package) Steps
}

// Undo reverts the changes of an earlier render to an object, by edits that wait to be applied. It
// reports whether there were any, the author's text if it was kept, and whether that text ended
// without a line feed.
type Undo func(*krm.Object) (was bool, original []byte, unended bool, err error)

// Migration converts a custom resource to the manifests that it generates. Its functions
// may be nil.
type Migration struct {
	// Fields are the rules for converting the fields of a resource; see foreign.Fields.
	Fields string
	// Finish makes the last changes to a manifest.
	Finish func(manifest *yaml.RNode, prefix string) error
	// Beside returns an additional manifest for a resource.
	Beside func(o *krm.Object, prefix string) []byte
	// Notes lists consequences of the migration other than moved fields. config may be nil.
	Notes func(o *krm.Object, config *api.RenderConfigSpec, prefix string) []foreign.Field
	// Replaces says that the manifests replace the objects that the controller created for the
	// resource. By default those stay, as they run.
	Replaces bool
}

// Reasons names the source of the values that a function writes, to explain a rendered file.
type Reasons int

// Reasons of values.
const (
	// Resources are custom resources of the package.
	Resources Reasons = iota
	// Settings are the identity settings of the workload.
	Settings
	// Lock is the lock next to the package, and ImageLocks in it.
	Lock
)

// Steps are the parts of a function's work on one package, in the order of the calls. Fields that a
// function does not need are nil.
//
// In the first pass, which is sequential, the engine calls Collect and Rendered. Between the passes
// it calls File, Expand, Resolve, and Look. In the second pass it calls Run for many objects
// concurrently, and Finish after the last of them.
type Steps struct {
	// Collect receives a custom resource of the function's kinds, which it may keep.
	Collect func(*krm.Object)
	// Rendered receives an object that an earlier render generated. The function may keep copies
	// only.
	Rendered func(*krm.Object)
	// File is a file of the package that the function reads, nil for none.
	File *File
	// Expand generates the objects of a custom resource; see package expand.
	Expand func(*expand.Resource)
	// Resolve settles references, defaults and conflicts.
	Resolve func()
	// Unsure returns objects of other kinds that the function has to read whole, because the index
	// has only their names. Look receives them.
	Unsure func() []index.ID
	Look   func(index.ID, *krm.Object)
	// Run processes an object of the package.
	Run func(*Unit)
	// Finish returns the findings that need the whole package.
	Finish func() []finding.Finding
	// Lock reads the locks of the package. At most one function has it.
	Lock expand.Lock
}

// File is a file of the package that is not a manifest.
type File struct {
	// Name is its path, relative to the root of the package.
	Name string
	// Take receives its content, or nil if the package does not have the file.
	Take func([]byte)
}

// Package is the data of a package that every function may read.
type Package struct {
	// Version is recorded in rendered objects.
	Version string
	// Config is the read-only configuration. Place is its file and line, nil without a file.
	Config *api.RenderConfigSpec
	Place  *api.Origin
	// Lock is the lock next to the package, or nil.
	Lock *api.ImageLock
	// Pinned returns an image with its digest in the lock, or unchanged. Functions may call it in
	// the second pass.
	Pinned func(image string) string
	// Images are the fields with images that the configuration names.
	Images []images.Row
	// Closed says that the workloads of all resources are in the package.
	Closed bool
	// Kinds are the custom resources that the functions read.
	Kinds *Kinds
	// Index lists the objects of the package.
	Index *index.Index
	// Identity computes the settings of workloads.
	Identity *identity.Workloads
	// Report receives findings until the second pass begins.
	Report *krm.Report
}

// Misconfigured reports an error in a field of the configuration, such as spec.asya.generation,
// which fails the render.
func (p *Package) Misconfigured(rule, field, message, hint string) {
	f := finding.Finding{Rule: rule, Severity: finding.Error, Message: message, Hint: hint,
		Place: finding.Place{Field: field}}
	if p.Place != nil {
		f.File, f.Line = p.Place.File, p.Place.LineOf(field)
	}
	p.Report.Add(f)
}

// Prefix returns the prefix of labels and annotations: "kagenti.io".
func (p *Package) Prefix() string { return p.Identity.Prefix() }

// KeepCustomResources reports whether custom resources that were input stay in
// the output.
func (p *Package) KeepCustomResources() bool {
	return node.Or(p.Config.CustomResources, "") == "keep"
}

// OriginOf returns the place of an object in the form of the API types.
func OriginOf(o *krm.Object) api.Origin {
	return api.Origin{File: o.Origin.File, Line: o.Origin.Line, Text: o}
}

// RollsByHash reports whether pods roll when their configuration changes.
func (p *Package) RollsByHash() bool { return node.Or(p.Config.Rollout, "") == "hash" }
