package expand

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/multi"
)

// Set holds the custom resources of a package that generate other objects. The first pass reads
// them whole. Resolve expands them, so that functions treat their objects like authored ones. The
// second pass consumes the resource and passes its objects through the functions, after it.
type Set struct {
	builder *index.Builder
	index   *index.Index
	report  *krm.Report

	resources []*resource
	named     map[index.Key][]*resource // also under names that kustomize has changed since
	at        map[Place]*resource       // the expanded resources
	expanded  map[index.Key]bool        // their names
	madeBy    map[index.Key]*resource   // the resource that generates an object
	claimed   map[string]*resource      // the resource that claims a name outside of the cluster
	sources   []source                  // of generated objects

	// Read reads an object of the package again. It returns nil if a host cannot.
	Read func(index.ID) *krm.Object
}

// NewSet prepares a set that enters objects into an index.
func NewSet(builder *index.Builder, report *krm.Report) *Set {
	return &Set{
		builder: builder, index: builder.Index(), report: report,
		named: make(map[index.Key][]*resource),
		at:    make(map[Place]*resource), expanded: make(map[index.Key]bool),
		madeBy: make(map[index.Key]*resource), claimed: make(map[string]*resource),
	}
}

// resource is a custom resource of the package that generates other objects, or that another one
// refers to.
type resource struct {
	*krm.Object
	function string
	expand   func(*Resource) // nil for one that is only referenced
	// at is the place in the second pass: the resource itself or, if a host dropped it, the object
	// that records it.
	at         Place
	remembered bool
	was        string   // the name of a recorded resource when its objects were generated
	texts      [][]byte // of its objects
}

// Place identifies an object of the package.
type Place struct {
	krm.Origin
	finding.Ref
}

func placeOf(o *krm.Object) Place { return Place{o.Origin, o.Ref} }

// Collect adds a resource that a function expands; expand is nil for one that is only referenced.
func (s *Set) Collect(o *krm.Object, function string, expand func(*Resource)) {
	r := &resource{Object: o, function: function, expand: expand, at: placeOf(o)}
	s.resources = append(s.resources, r)
	for _, name := range append(index.PreviousNames(o), o.Name) {
		k := index.Key{Kind: o.Kind, Namespace: o.Namespace, Name: name}
		s.named[k] = append(s.named[k], r)
	}
}

// Resolve generates the objects of all resources whose functions run, and enters them into the
// index. base holds the fields that all resources share.
func (s *Set) Resolve(base Resource, runs func(function string) bool) {
	for _, r := range slices.SortedStableFunc(slices.Values(s.resources), byName) {
		if r.expand == nil || !runs(r.function) {
			continue
		}
		s.expanded[index.KeyOf(r.Ref)] = true
		if r.remembered {
			s.expanded[index.Key{Kind: r.Kind, Namespace: r.Namespace, Name: r.was}] = true
		}
		s.at[r.at] = r
		own := base
		in := &own
		in.Object, in.Function = r.Object, r.function
		in.Lookup, in.Read = s.lookup(r), s.read(r)
		if r.Name == "" {
			in.Report(finding.Error, "package/no-name", "metadata",
				"name it", "the %s has no metadata.name, after which its objects are named", r.Kind)
		} else if r.expand(in); !in.Failed() {
			in.checkNames()
		}
		s.claim(r, in)
		if !in.Failed() {
			s.enter(r, in)
		}
		if in.Failed() {
			s.builder.Break(r.Namespace, r.Name)
		}
		s.report.Add(in.Findings...)
		if len(in.Misread) > 0 {
			s.report.Misread(r.Object, in.Misread)
		}
	}
}

// byName orders resources, so that no object depends on the order of files.
func byName(a, b *resource) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Name, b.Name))
}

// claim reserves the names that a resource claims, unless another one has them.
func (s *Set) claim(r *resource, in *Resource) {
	for _, what := range in.Claims {
		other := s.claimed[what]
		switch {
		case other == nil:
			s.claimed[what] = r
		case other.Ref != r.Ref:
			in.Report(finding.Error, "package/claimed",
				"metadata.name", "rename one of the two", "the %s is also generated for %s (%s:%d)",
				what, other.Ref, other.Origin.File, other.Origin.Line)
		}
	}
}

// lookup returns a function that finds the resources that another one refers to, also under a name
// that kustomize has changed since.
func (s *Set) lookup(from *resource) func(group, kind, namespace, name string) *krm.Object {
	return func(group, kind, namespace, name string) (found *krm.Object) {
		best := -1
		for _, r := range s.named[index.Key{Kind: kind, Namespace: namespace, Name: name}] {
			if r.Group() != group ||
				r.Name != name && index.Affixes(r.Object) != index.Affixes(from.Object) {
				continue
			}
			if depth := index.SharedFolders(r.Origin.File, from.Origin.File); depth > best {
				best, found = depth, r.Object
			}
		}
		return found
	}
}

// read returns a function that reads the objects of the core group that a resource refers to, also
// under a name that kustomize has changed since.
func (s *Set) read(from *resource) func(kind, namespace, name string) *krm.Object {
	return func(kind, namespace, name string) *krm.Object {
		k := index.Key{Kind: kind, Namespace: namespace, Name: name}
		ids := s.index.Nearest(k, from.Origin.File,
			func(e *index.Entry) bool { return e.APIVersion == "v1" && !e.Made })
		for id := range s.index.Renamed(k, from.Object) {
			ids = append(ids, id)
		}
		if len(ids) == 0 || s.Read == nil {
			return nil
		}
		return s.Read(ids[0])
	}
}

// enter enters the objects that a resource generates into the index, unless another object has the
// name.
func (s *Set) enter(r *resource, in *Resource) {
	texts, err := in.Text()
	if err != nil {
		in.Report(finding.Error, "package/source", "", "", "%v", err)
		return
	}
	for i, o := range in.Objects {
		k := index.Key{Kind: o.Kind, Namespace: r.Namespace, Name: o.Name}
		owner, taken := s.index.Authored(k, r.Origin.File)
		if other := s.madeBy[k]; o.Shared && other != nil &&
			other.Kind == r.Kind && other.Ref != r.Ref {
			continue // that resource owns it
		}
		r.texts = append(r.texts, texts[i])
		if other := s.madeBy[k]; other != nil &&
			(other.APIVersion != r.APIVersion || other.Kind != r.Kind || other.Name != r.Name) {
			owner, taken = fmt.Sprintf("%s (%s:%d)", other.Ref, other.Origin.File,
				other.Origin.Line), true
		}
		if taken {
			in.Report(finding.Error, "package/name-taken",
				"metadata.name", "rename or remove one of the two", "the %s %s that the "+
					"%s generates already exists in %s", o.Kind, o.Name, r.Ref, owner)
			continue
		}
		s.madeBy[k] = r
		if o.Shared {
			s.expanded[k] = true
		}
		id := s.builder.Enter(index.Entry{Key: k, APIVersion: o.APIVersion, File: r.Origin.File,
			Line: int32(r.Origin.Line), Generated: true, Made: true})
		rest, named := strings.CutPrefix(o.Name, r.Name)
		if named && r.remembered {
			s.expanded[index.Key{Kind: o.Kind, Namespace: r.Namespace, Name: r.was + rest}] = true
		}
		for _, was := range index.PreviousNames(r.Object) {
			if named {
				s.builder.Rename(index.Key{Kind: o.Kind, Namespace: r.Namespace, Name: was + rest},
					id, r.Object)
			}
		}
	}
}

// Made reads an object that this render generates from a custom resource. It returns nil if there
// is none of that name.
func (s *Set) Made(k index.Key) *krm.Object {
	r := s.madeBy[k]
	if r == nil {
		return nil
	}
	for _, text := range r.texts {
		o := new(krm.Object)
		if isObject, err := o.ReadMade(text, r.Object); err == nil &&
			isObject && o.Kind == k.Kind && o.Name == k.Name {
			return o
		}
	}
	return nil
}

// Texts returns the objects that a custom resource, or one that an object records, generates.
// expanded is false if its function does not run.
func (s *Set) Texts(o *krm.Object) (texts [][]byte, expanded bool) {
	if r := s.at[placeOf(o)]; r != nil {
		return r.texts, true
	}
	return nil, false
}

// Regenerates reports whether to drop a generated object, because this render generates it again,
// or its custom resource generates it no longer. known is false if the package does not have the
// resource.
func (s *Set) Regenerates(o *krm.Object) (drop, known bool) {
	kind, name, _ := strings.Cut(o.Get("metadata", "annotations", keys.RenderedFor).Text(), "/")
	k := index.Key{Kind: kind, Namespace: o.Namespace, Name: name}
	shared := index.KeyOf(o.Ref) // generated by several resources, whichever it was rendered for
	if again := s.expanded[k] || s.expanded[shared]; kind == "" || again {
		return again, again
	}
	if slices.ContainsFunc(s.named[k], func(r *resource) bool { return r.Name == name }) {
		return false, true // its function does not run
	}
	known = s.index.Has(k)
	for range s.index.Renamed(k, o) {
		known = true
	}
	return known, known
}

// Plain returns the objects that a custom resource generates as standalone manifests, without a
// record of their source. finish makes the last changes to each; nil makes none.
func (s *Set) Plain(o *krm.Object, finish func(*yaml.RNode) error) (texts [][]byte, err error) {
	made, _ := s.Texts(o)
	for _, text := range made {
		tree, err := yaml.Parse(string(text))
		if err != nil {
			return nil, err
		}
		err = multi.Errors(tree.PipeE(yaml.ClearAnnotation(keys.RenderedFor)),
			tree.PipeE(yaml.ClearAnnotation(keys.Source)), yaml.ClearEmptyAnnotations(tree))
		if err == nil && tree.GetLabels()[identity.ManagedBy] == "armature" {
			err = tree.PipeE(yaml.Lookup("metadata", "labels"), yaml.Clear(identity.ManagedBy))
		}
		if err == nil && finish != nil {
			err = finish(tree)
		}
		if err != nil {
			return nil, err
		}
		plain, err := krm.BlockStyle(tree)
		if err != nil {
			return nil, err
		}
		texts = append(texts, bytes.TrimLeft(plain, "\n"))
	}
	return texts, nil
}

// source is a custom resource that a generated object records.
type source struct {
	*krm.Object
	at Place // of the object
	// helps is 0 if the object was made from it, and 1 if it was only read for it.
	helps int
	// was is the name of the resource for which the object was rendered.
	was string
	// expands says that the resource expands, or is referenced by one that does.
	expands bool
}

// CollectSources reads the custom resources that a generated object was made from. They count only
// if the package does not have them itself. reads reports whether a function reads a kind, whether
// it expands or is referenced by one that does, and whether it is cluster-scoped.
func (s *Set) CollectSources(generated *krm.Object,
	reads func(apiVersion, kind string) (read, expands, cluster bool)) {
	text, remembers := generated.Annotation(keys.Source)
	if !remembers {
		return
	}
	data := []byte(text)
	var list []json.RawMessage
	if json.Unmarshal(data, &list) != nil {
		list = []json.RawMessage{data}
	}
	_, was, _ := strings.Cut(generated.Get("metadata", "annotations", keys.RenderedFor).Text(), "/")
	for i, data := range list {
		o := new(krm.Object)
		isObject, err := o.ReadMade(data, generated)
		read, expands, cluster := reads(o.APIVersion, o.Kind)
		if err == nil && isObject && expands && !cluster {
			isObject, err = o.ReadMade(moved(data, generated, i == 0), generated)
		}
		if err == nil && isObject && read {
			s.sources = append(s.sources, source{o, placeOf(generated), min(i, 1), was, expands})
		}
	}
}

// moved sets the namespace of a resource, and the name if it is the object's own, to those that a
// host has set on the object that records it.
func moved(data []byte, to *krm.Object, own bool) []byte {
	object, err := exact(data)
	metadata, ok := object["metadata"].(map[string]any)
	if err != nil || !ok {
		return data
	}
	if own {
		metadata["name"] = to.Name
	}
	if metadata["namespace"] = to.Namespace; to.Namespace == "" {
		delete(metadata, "namespace")
	}
	return appendJSON(nil, object)
}

// ResolveSources adds the custom resources that only generated objects record to the package.
// collect receives each of them like an authored one.
func (s *Set) ResolveSources(collect func(*krm.Object)) {
	slices.SortStableFunc(s.sources, func(a, b source) int { return cmp.Compare(a.helps, b.helps) })
	for _, from := range s.sources {
		k := index.KeyOf(from.Ref)
		if s.index.Has(k) {
			continue
		}
		if !from.expands {
			collect(from.Object)
			continue
		}
		s.builder.Enter(index.Entry{Key: k, APIVersion: from.APIVersion, File: from.Origin.File,
			Line: int32(from.Origin.Line)})
		known := len(s.resources)
		if collect(from.Object); len(s.resources) > known && from.helps == 0 {
			r := s.resources[known]
			r.at, r.was, r.remembered = from.at, from.was, true
		}
	}
}

// StandsIn returns the objects that replace a generated one, because a host dropped the custom
// resource that it records.
func (s *Set) StandsIn(o *krm.Object) (texts [][]byte, found bool) {
	r := s.at[placeOf(o)]
	if r == nil || !r.remembered {
		return nil, false
	}
	return r.texts, true
}

// Remembered returns, as YAML, the custom resources that only a generated object records, for
// restoring the author's package. If several objects record one, it is restored from the first.
func (s *Set) Remembered(o *krm.Object) (texts [][]byte, err error) {
	at := placeOf(o)
	for i, from := range s.sources {
		k := index.KeyOf(from.Ref)
		same := func(t source) bool { return index.KeyOf(t.Ref) == k }
		if from.at != at || !from.expands || s.index.Has(k) ||
			slices.ContainsFunc(s.sources[:i], same) {
			continue
		}
		tree, err := from.Parse()
		if err != nil {
			return nil, err
		}
		text, err := krm.BlockStyle(tree)
		if err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	return texts, nil
}
