// Package contract is what a function of the render is: what it says of itself,
// when it is called, and what it may touch. A function lives in a folder of its
// own below functions, and has a row in functions/table.go.
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
	// Summary says in a line what it does.
	Summary string
	// Page is its manual page, in Markdown.
	Page string
	// Kinds are the custom resources that it reads.
	Kinds []Kind
	// Reasons says what decides the values that the function writes.
	Reasons Reasons
	// Migration says how `armature migrate` makes manifests of its own from the
	// objects of those that expand.
	Migration Migration
	// Record is the annotation of an object in which the function keeps what it put in, and
	// Undo takes that out; "" and nil for a function that only sets fields.
	Record string
	Undo   Undo
	// New begins the work on a package.
	New func(*Package) Steps
}

// Undo takes out of an object what an earlier render put in, by edits that wait to be
// applied. It reports whether there was any, the author's text if that was kept, and
// whether that ended without a line feed.
type Undo func(*krm.Object) (was bool, original []byte, unended bool, err error)

// Migration converts a custom resource to the manifests that it generates. Its functions
// may be nil.
type Migration struct {
	// Fields are the rules of what becomes of the fields of a resource; see foreign.Fields.
	Fields string
	// Finish makes last changes to a manifest.
	Finish func(manifest *yaml.RNode, prefix string) error
	// Beside returns one more manifest for a resource.
	Beside func(o *krm.Object, prefix string) []byte
	// Notes says what happens to a resource beside moving fields. config may be nil.
	Notes func(o *krm.Object, config *api.RenderConfigSpec, prefix string) []foreign.Field
	// Replaces says that the manifests take the place of what the controller made
	// of the resource. By default that stays, as it runs.
	Replaces bool
}

// Reasons says what decides the values that a function writes, for those who
// explain a rendered file.
type Reasons int

// Reasons of values.
const (
	// Resources are custom resources of the package.
	Resources Reasons = iota
	// Settings are the identity settings of the workload.
	Settings
	// Lock is the lock beside the package, and ImageLocks in it.
	Lock
)

// Steps are what a function does with one package, in the order in which they
// are called. The fields that a function does not need are nil.
//
// In the first pass, which is sequential, come Collect and Rendered. Between the
// passes come File, Expand, Resolve, and Look. In the second pass Run is called
// for many objects at once, and Finish after the last of them.
type Steps struct {
	// Collect takes a custom resource of the function's kinds, which it may keep.
	Collect func(*krm.Object)
	// Rendered takes an object that an earlier render generated. The function may
	// keep copies only.
	Rendered func(*krm.Object)
	// File is a file of the package that the function reads, nil for none.
	File *File
	// Expand generates the objects of a custom resource; see package expand.
	Expand func(*expand.Resource)
	// Resolve settles references, defaults and conflicts.
	Resolve func()
	// Unsure returns objects of other kinds that the function has to see whole, because
	// the index has only their names. Look receives them.
	Unsure func() []index.ID
	Look   func(index.ID, *krm.Object)
	// Run takes an object of the package.
	Run func(*Unit)
	// Finish returns the findings that only the whole package shows.
	Finish func() []finding.Finding
	// Lock is what the locks of the package say. One function at most knows them.
	Lock expand.Lock
}

// File is a file of the package that is not a manifest.
type File struct {
	// Name is its path, relative to the root of the package.
	Name string
	// Take takes its content; nil where the package does not have the file.
	Take func([]byte)
}

// Package is what every function may know of a package.
type Package struct {
	// Version is recorded in what is rendered.
	Version string
	// Config is the read-only configuration, nil for the defaults. Place is its
	// file and line.
	Config *api.RenderConfigSpec
	Place  *api.Origin
	// Lock is the lock beside the package, nil for none.
	Lock *api.ImageLock
	// Pinned returns an image with the digest that the lock has of it, or unchanged. Functions
	// may call it in the second pass.
	Pinned func(image string) string
	// Images are the fields with images that the configuration names.
	Images []images.Row
	// Closed says that the workloads of all resources are in the package.
	Closed bool
	// Kinds are the custom resources that the functions read.
	Kinds *Kinds
	// Index is what the package contains.
	Index *index.Index
	// Identity computes the settings of workloads.
	Identity *identity.Workloads
	// Report takes findings, until the second pass begins.
	Report *krm.Report
}

// Misconfigured reports what is wrong with a field of the configuration, such as
// spec.asya.generation, which fails the render.
func (p *Package) Misconfigured(rule, field, message, hint string) {
	f := finding.Finding{Rule: rule, Severity: finding.Error, Message: message, Hint: hint,
		Place: finding.Place{Field: field}}
	if p.Place != nil {
		f.File, f.Line = p.Place.File, p.Place.LineOf(field)
	}
	p.Report.Add(f)
}

// Prefix is the prefix of labels and annotations: "kagenti.io".
func (p *Package) Prefix() string { return p.Identity.Prefix() }

// KeepCustomResources reports whether custom resources that were input stay in
// the output.
func (p *Package) KeepCustomResources() bool {
	return node.Or(p.Config.CustomResources, "") == "keep"
}

// OriginOf is the place of an object in the form that the API types keep.
func OriginOf(o *krm.Object) api.Origin {
	return api.Origin{File: o.Origin.File, Line: o.Origin.Line, Text: o}
}

// RollsByHash reports whether pods roll when their configuration changes.
func (p *Package) RollsByHash() bool { return node.Or(p.Config.Rollout, "") == "hash" }
