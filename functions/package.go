// Package functions has the table of functions, and the state that they share about a package of
// manifests while it is rendered.
package functions

import (
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/images"
	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/lintrules"
	"github.com/armature-dev/armature/functions/sidecars"
)

// Package is a package of manifests during a render. The first pass over all objects fills it, and
// the second only reads it.
type Package struct {
	shared  contract.Package
	builder *index.Builder
	report  krm.Report
	rows    []Row
	// Expansions are the custom resources that generate other objects.
	Expansions *expand.Set
}

// Row is a function with its state for a package.
type Row struct {
	contract.Function
	steps contract.Steps
	set   *expand.Set
	keep  bool // custom resources stay in the output
	place int  // in the table
}

// Settings configure the render of a package.
type Settings struct {
	// Version is recorded in rendered objects; "" means Generation.
	Version string
	// Config is the configuration, nil for the defaults.
	Config *api.RenderConfig
	// Lock is the lock next to the package, or nil.
	Lock *api.ImageLock
	// Closed says that the workloads of all resources are in the package.
	Closed bool
	// Files is the approximate number of files of the package.
	Files int
	// Functions is the table; nil means Table.
	Functions []contract.Function
}

// NewPackage prepares a package. Errors of the configuration are among the findings of Resolve.
func NewPackage(s Settings) *Package {
	table := s.Functions
	if table == nil {
		table = Table()
	}
	if s.Version == "" {
		s.Version = Generation
	}
	p := &Package{builder: index.NewBuilder(s.Files)}
	p.Expansions = expand.NewSet(p.builder, &p.report)
	p.shared = contract.Package{Version: s.Version, Config: &api.RenderConfigSpec{}, Lock: s.Lock,
		Closed: s.Closed, Index: p.builder.Index(), Report: &p.report}
	if s.Config != nil {
		p.shared.Config, p.shared.Place = &s.Config.Spec, &s.Config.Origin
	}
	var findings []finding.Finding
	p.shared.Identity, findings = identity.NewWorkloads(sidecars.All(), s.Config, p.shared.Index)
	p.report.Add(findings...)
	p.report.Add(lintrules.CheckConfig(s.Config)...)
	p.shared.Images, findings = images.Rows(s.Config)
	p.report.Add(findings...)
	p.shared.Kinds = contract.NewKinds(table, p.shared.Prefix())
	for i, f := range table {
		p.rows = append(p.rows, Row{Function: f, steps: f.New(&p.shared), set: p.Expansions,
			keep: p.shared.KeepCustomResources(), place: i})
	}
	return p
}

// Rows returns the functions of the names, in the order of the render, or all functions if there
// are no names. An unknown name is an error.
func (p *Package) Rows(names []string) (rows []Row, err error) {
	for _, name := range names {
		if !slices.ContainsFunc(p.rows, func(r Row) bool { return r.Name == name }) {
			return nil, fmt.Errorf("function %q does not exist: choose from %s", name,
				strings.Join(Names(), ", "))
		}
	}
	for _, r := range p.rows {
		if len(names) == 0 || slices.Contains(names, r.Name) {
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// Prefix returns the prefix of labels and annotations.
func (p *Package) Prefix() string { return p.shared.Prefix() }

// KeepCustomResources reports whether custom resources that were input stay in
// the output.
func (p *Package) KeepCustomResources() bool { return p.shared.KeepCustomResources() }

// reads reports whether the first pass has to read objects of a kind as a whole.
func (p *Package) reads(apiVersion, kind string) bool {
	return kind == "Namespace" && apiVersion == "v1" || p.shared.Kinds.Read(apiVersion, kind)
}

// CollectHead records a document of the first pass, or an item of a list, by the head that
// krm.HeadOf returns, if the index needs no more of it. scratch is memory for the head.
func (p *Package) CollectHead(scratch *krm.Object, src []byte, d krm.Document, item bool,
	origin krm.Origin) (recorded bool) {
	head, ok := krm.HeadOf(src, d, item)
	if !ok {
		return false
	}
	isObject, err := scratch.Read(src, head, item, origin)
	if err != nil || !isObject || scratch.Name == "" {
		return false
	}
	if _, rewritten := scratch.Rewritten(); rewritten ||
		p.reads(scratch.APIVersion, scratch.Kind) ||
		scratch.Contains(keys.RenderedFor) || scratch.Contains(keys.Consumed) {
		return false
	}
	p.CollectObject(scratch)
	return true
}

// Collect records one document of the first pass. The second pass reports text that cannot be read.
func (p *Package) Collect(src []byte, d krm.Document, item bool, origin krm.Origin) {
	var o krm.Object
	if isObject, err := o.Read(src, d, item, origin); err == nil && isObject {
		p.CollectObject(&o)
	}
}

// CollectObject records an object of the first pass. It copies everything that it keeps.
func (p *Package) CollectObject(o *krm.Object) {
	if o.Name == "" {
		if p.reads(o.APIVersion, o.Kind) {
			f := o.Finding(finding.Error, "package/no-name", o.Get("metadata"),
				fmt.Sprintf("the %s has no metadata.name", o.Kind), "name it")
			f.Field = "metadata.name"
			p.report.Add(f)
		}
		return
	}
	e := index.Entry{
		Key: index.KeyOf(o.Ref), APIVersion: o.APIVersion, File: o.Origin.File,
		Line:      int32(o.Origin.Line),
		Generated: o.Get("metadata", "annotations", keys.RenderedFor).Exists(),
	}
	id := p.builder.Enter(e)
	if o.Item() {
		for _, name := range index.PreviousNames(o) {
			p.builder.Rename(index.Key{Kind: o.Kind, Namespace: o.Namespace, Name: name}, id, o)
		}
	}
	if p.reads(o.APIVersion, o.Kind) {
		p.collectKind(o.Clone())
	}
	if e.Generated {
		p.Expansions.CollectSources(o, func(apiVersion, name string) (read, expands, cluster bool) {
			kind, read := p.shared.Kinds.Find(apiVersion, name)
			return read, read && kind.Use.Resource(), read && kind.Cluster
		})
		for i := range p.rows {
			if rendered := p.rows[i].steps.Rendered; rendered != nil {
				rendered(o)
			}
		}
	}
}

// collectKind passes an object to the function that reads its kind.
func (p *Package) collectKind(o *krm.Object) {
	kind, read := p.shared.Kinds.Find(o.APIVersion, o.Kind)
	if !read {
		p.builder.EnterNamespace(o)
		return
	}
	row := &p.rows[kind.Row]
	if f, known := kind.CheckVersion(o); !known {
		p.report.Add(f)
		return
	}
	switch kind.Use {
	case contract.Expands:
		p.Expansions.Collect(o, row.Name, row.steps.Expand)
	case contract.Refers:
		p.Expansions.Collect(o, row.Name, nil)
	default:
		row.steps.Collect(o)
	}
}
