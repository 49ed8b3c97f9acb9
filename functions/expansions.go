package functions

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/agent"
	"github.com/armature-dev/armature/functions/asyncactor"
	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/kagentagent"
	"github.com/armature-dev/armature/functions/krm"
)

// expansion is a kind of custom resource that stands for other objects. The
// first pass reads its resources whole. Resolve expands them, so that the other
// functions know their objects as if an author had written them. The second
// pass consumes the resource and takes its objects through the pipeline, behind
// it.
//
// A new kind takes a folder below functions with a func(*expand.Resource) and a
// README.md, a row here, one in Table, whose Run calls Unit.expand with its
// name, and one in render/pipeline.go before inject.
type expansion struct {
	function      string // its row in Table
	group         func(p *Package, apiVersion string) bool
	version, kind string
	// run expands a resource. nil leaves the kind in the output: others read it.
	run func(*expand.Resource)
}

var expansions = [...]expansion{
	{"agent", (*Package).agentOrPillarGroup, "v1alpha1", "Agent", agent.Expand},
	{"kagent-agent", kagentGroup, "v1alpha2", "Agent", kagentagent.Agent},
	{"kagent-agent", kagentGroup, "v1alpha2", "ModelConfig", kagentagent.ModelConfig},
	{"kagent-agent", kagentGroup, "v1alpha1", "MCPServer", kagentagent.MCPServer},
	{"kagent-agent", kagentGroup, "v1alpha2", "RemoteMCPServer", nil},
	{"async-actor", (*Package).asyaGroup, "v1alpha1", "AsyncActor", asyncactor.Expand},
}

func (p *Package) asyaGroup(apiVersion string) bool {
	return strings.HasPrefix(apiVersion, "asya.sh/")
}

func (p *Package) agentOrPillarGroup(apiVersion string) bool {
	return p.agentGroup(apiVersion) || p.pillarGroup(apiVersion)
}

func kagentGroup(_ *Package, apiVersion string) bool {
	return strings.HasPrefix(apiVersion, "kagent.dev/")
}

// expansion gives the row of a kind, nil for kinds that stand for themselves.
func (p *Package) expansion(apiVersion, kind string) *expansion {
	for i := range expansions {
		if x := &expansions[i]; x.kind == kind && x.group(p, apiVersion) {
			return x
		}
	}
	return nil
}

// resource is a custom resource of the package that stands for others.
type resource struct {
	*krm.Object
	*expansion
	// at is where the second pass meets it: itself or, where a host dropped it,
	// the object that remembers it.
	at         place
	remembered bool
	was        string   // the name of a remembered resource as its objects were made
	texts      [][]byte // of its objects
	failed     bool
}

// place tells an object of the package from all others.
type place struct {
	krm.Origin
	krm.Ref
}

func (p *Package) collectResource(x *expansion, o *krm.Object) {
	if _, version, _ := strings.Cut(o.APIVersion, "/"); version != x.version {
		p.findings = append(p.findings, o.Finding(krm.Error, "package/unknown-version", o.Get("apiVersion"),
			fmt.Sprintf("%s has no version %q", o.Kind, version), "write "+x.version))
		return
	}
	p.resources = append(p.resources, &resource{Object: o, expansion: x, at: place{o.Origin, o.Ref}})
}

// expand makes the objects of all resources whose functions run, and enters
// them into the package.
func (p *Package) expand(functions []Function) {
	for _, r := range slices.SortedStableFunc(slices.Values(p.resources), byName) {
		runs := func(f Function) bool { return f.Name == r.function }
		if r.run == nil || !slices.ContainsFunc(functions, runs) {
			continue
		}
		p.expanded[key{r.Kind, r.Namespace, r.Name}] = true
		if r.remembered {
			p.expanded[key{r.Kind, r.Namespace, r.was}] = true
		}
		p.resourceAt[r.at] = r
		in := &expand.Resource{Object: r.Object, Prefix: p.base.Prefix, Config: &p.Config, Lookup: p.lookup(r), BuiltImage: p.BuiltImage}
		if r.Name == "" {
			in.Report(krm.Error, "package/no-name", "metadata", fmt.Sprintf("the %s has no metadata.name, after which its objects are named", r.Kind), "name it")
		} else {
			r.run(in)
		}
		p.claim(r, in)
		if !in.Failed() {
			p.enterObjects(r, in)
		}
		r.failed = in.Failed()
		p.findings = append(p.findings, in.Findings...)
		if len(in.Misread) > 0 {
			p.misread = append(p.misread, misread{r.Object, in.Misread})
		}
	}
}

// byName orders resources, so that no object depends on the order of files.
func byName(a, b *resource) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// claim gives a resource what it claims, unless another has it.
func (p *Package) claim(r *resource, in *expand.Resource) {
	for _, what := range in.Claims {
		other := p.claimed[what]
		switch {
		case other == nil:
			p.claimed[what] = r
		case other.Ref != r.Ref:
			in.Report(krm.Error, "package/claimed", "metadata.name",
				fmt.Sprintf("the %s is that of %s (%s:%d) too", what, other.Ref, other.Origin.File, other.Origin.Line), "rename one of the two")
		}
	}
}

// lookup finds the resources that another one refers to, also under a name that
// kustomize has changed since.
func (p *Package) lookup(from *resource) func(group, kind, namespace, name string) *krm.Object {
	return func(group, kind, namespace, name string) (found *krm.Object) {
		best := -1
		for _, r := range p.resources {
			if r.Kind != kind || r.Group() != group || r.Namespace != namespace {
				continue
			}
			if r.Name != name && !(slices.Contains(previousNames(r.Object), name) && affixes(r.Object) == affixes(from.Object)) {
				continue
			}
			if depth := sharedFolders(r.Origin.File, from.Origin.File); depth > best {
				best, found = depth, r.Object
			}
		}
		return found
	}
}

// enterObjects enters what a resource stands for, unless somebody else has an
// object of that name.
func (p *Package) enterObjects(r *resource, in *expand.Resource) {
	texts, err := in.Text()
	if err != nil {
		in.Report(krm.Error, "package/source", "", err.Error(), "")
		return
	}
	for i, o := range in.Objects {
		owner, taken := p.authored(o.Kind, r.Namespace, o.Name, r.Origin.File)
		k := key{o.Kind, r.Namespace, o.Name}
		if other := p.madeBy[k]; o.Shared && other != nil && other.Kind == r.Kind && other.Ref != r.Ref {
			continue // has it
		}
		r.texts = append(r.texts, texts[i])
		if other := p.madeBy[k]; other != nil && (other.APIVersion != r.APIVersion || other.Kind != r.Kind || other.Name != r.Name) {
			owner, taken = fmt.Sprintf("%s (%s:%d)", other.Ref, other.Origin.File, other.Origin.Line), true
		}
		if taken {
			in.Report(krm.Error, "package/name-taken", "metadata.name",
				fmt.Sprintf("the %s %s that the %s stands for is somebody else's in %s", o.Kind, o.Name, r.Ref, owner), "rename or remove one of the two")
			continue
		}
		p.madeBy[k] = r
		if o.Shared {
			p.expanded[k] = true
		}
		p.enter(k, entry{apiVersion: o.APIVersion, file: r.Origin.File, line: int32(r.Origin.Line), generated: true, made: true})
		rest, named := strings.CutPrefix(o.Name, r.Name)
		if named && r.remembered {
			p.expanded[key{o.Kind, r.Namespace, r.was + rest}] = true
		}
		for _, was := range previousNames(r.Object) {
			if named {
				before := key{o.Kind, r.Namespace, was + rest}
				p.renamed[before] = append(p.renamed[before], renamed{p.first[k], affixes(r.Object)})
			}
		}
	}
}

// source is a custom resource that a generated object remembers.
type source struct {
	*krm.Object
	at place // of the object
	// own says that the object was made from it, and not only with its help.
	own bool
	// was is the name that the object was rendered for.
	was string
}

// collectSource reads the custom resources that a generated object was made
// from. They count only where the package does not have them itself.
func (p *Package) collectSource(generated *krm.Object) {
	text, remembers := generated.Annotation(expand.Source)
	if !remembers {
		return
	}
	data := []byte(text)
	var list []json.RawMessage
	if json.Unmarshal(data, &list) != nil {
		list = []json.RawMessage{data}
	}
	_, was, _ := strings.Cut(generated.Get("metadata", "annotations", krm.RenderedFor).Text(), "/")
	for i, data := range list {
		o := new(krm.Object)
		isObject, err := o.ReadMade(data, generated)
		if x := p.expansion(o.APIVersion, o.Kind); err == nil && isObject && x != nil {
			isObject, err = o.ReadMade(moved(data, generated, i == 0), generated)
		}
		if err == nil && isObject && p.wants(o.APIVersion, o.Kind) {
			p.sources = append(p.sources, source{o, place{generated.Origin, generated.Ref}, i == 0, was})
		}
	}
}

// moved gives a resource the namespace, and its own one the name, that a host
// has given the object that remembers it.
func moved(data []byte, to *krm.Object, own bool) []byte {
	tree, err := yaml.Parse(string(data))
	if err != nil {
		return data
	}
	if own {
		err = tree.PipeE(yaml.SetK8sName(to.Name))
	}
	if to.Namespace != "" {
		err = errors.Join(err, tree.PipeE(yaml.SetK8sNamespace(to.Namespace)))
	} else {
		err = errors.Join(err, tree.PipeE(yaml.Lookup("metadata"), yaml.Clear("namespace")))
	}
	out, err2 := expand.AppendJSON(nil, tree.YNode())
	if errors.Join(err, err2) != nil {
		return data
	}
	return out
}

// resolveSources gives the package the custom resources that only generated
// objects remember.
func (p *Package) resolveSources() {
	slices.SortStableFunc(p.sources, func(a, b source) int { // one that made the object first
		switch {
		case a.own == b.own:
			return 0
		case a.own:
			return -1
		}
		return 1
	})
	for _, s := range p.sources {
		k := key{s.Kind, s.Namespace, s.Name}
		if p.first[k] != 0 {
			continue
		}
		x := p.expansion(s.APIVersion, s.Kind)
		if x == nil {
			p.collectCustom(s.Object)
			continue
		}
		p.enter(k, entry{apiVersion: s.APIVersion, file: s.Origin.File, line: int32(s.Origin.Line)})
		known := len(p.resources)
		if p.collectResource(x, s.Object); len(p.resources) > known && s.own {
			r := p.resources[known]
			r.at, r.was, r.remembered = s.at, s.was, true
		}
	}
}

// expand is the Run of the functions in the table of expansions.
func (u *Unit) expand(function string) {
	if len(u.resourceAt) == 0 {
		return
	}
	if r := u.resourceAt[place{u.Origin, u.Ref}]; r != nil && r.function == function && r.Kind == u.Kind {
		u.Expansion = r.texts
		u.Consumed = !u.KeepCustomResources()
	}
}

// StandsIn gives the texts of the objects that take the place of a generated
// one, because a host dropped the custom resource that it remembers.
func (p *Package) StandsIn(o *krm.Object) (texts [][]byte, found bool) {
	r := p.resourceAt[place{o.Origin, o.Ref}]
	if r == nil || !r.remembered {
		return nil, false
	}
	return r.texts, true
}

// Remembered gives, as YAML, the custom resources that only a generated object
// remembers, for a package that is given back as its author wrote it. Where
// several objects remember one, the first gives it back.
func (p *Package) Remembered(o *krm.Object) (texts [][]byte, err error) {
	at := place{o.Origin, o.Ref}
	for i, s := range p.sources {
		k := key{s.Kind, s.Namespace, s.Name}
		same := func(t source) bool { return key{t.Kind, t.Namespace, t.Name} == k }
		if s.at != at || p.expansion(s.APIVersion, s.Kind) == nil || p.first[k] != 0 || slices.ContainsFunc(p.sources[:i], same) {
			continue
		}
		tree, err := s.Parse()
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
