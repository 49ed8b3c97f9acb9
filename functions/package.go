// Package functions holds what the functions know of a package of manifests,
// and the table that names them.
package functions

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/agentcard"
	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/inject"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/lint"
	"github.com/armature-dev/armature/functions/overcommit"
	"github.com/armature-dev/armature/functions/pinimages"
	"github.com/armature-dev/armature/functions/tokenexchange"
)

// Package is what a function may know beyond the object at hand. It is filled
// in a first pass over all objects and only read in the second.
type Package struct {
	// Version is recorded in what is rendered.
	Version string
	Config  api.RenderConfigSpec
	// Pins says that images are pinned to the digests of the package's locks.
	Pins bool
	// Find reads an object of the package again, nil where it is not found.
	Find func(krm.Origin, krm.Ref) *krm.Object

	base       identity.Settings
	configured *api.Origin // of Config, nil for the defaults
	exchanges  *tokenexchange.Renderer

	entries []entry
	first   map[key]int32  // into entries; duplicates follow entry.next
	kinds   map[string]int // of workloads, with how many there are

	tokenExchanges []custom[api.TokenExchange]
	agentTraces    []custom[api.AgentTrace]
	agentCards     []custom[api.AgentCard]
	misread        []misread
	sources        []source // of generated objects
	resources      []*resource
	resourceAt     map[place]*resource                  // those that are expanded
	expanded       map[key]bool                         // their names
	madeBy         map[key]*resource                    // whose objects these are
	claimed        map[string]*resource                 // whose things outside of the cluster
	classes        map[key]*overcommit.Class            // that an earlier render applied to generated workloads
	exchangeOf     map[int32]*custom[api.TokenExchange] // by index into entries
	traceOf        map[int32]*custom[api.AgentTrace]
	cards          cardIndex
	namespaces     map[string][]namespace
	renamed        map[key][]renamed
	configMaps     int // that an author wrote
	overcommit     overcommitPolicy
	scripted       bool // by a file that is no manifest
	lock           pinimages.Lock
	locks          int // that were taken in
	scratch        [2][]byte

	findings []krm.Finding
}

type key struct{ kind, namespace, name string }

// entry is one object of the package.
type entry struct {
	key
	apiVersion, file string
	line             int32
	next             int32 // the next entry of the same key, 0 for none
	generated        bool
	made             bool // from a custom resource, by this render
}

// custom is a pillar's custom resource with the text it came from.
type custom[T any] struct {
	*krm.Object
	value T
}

// misread is a custom resource, and what its decoding found.
type misread struct {
	*krm.Object
	findings []krm.Finding
}

// renamed is a workload under a name that kustomize has changed since.
type renamed struct {
	entry   int32
	affixes string
}

type namespace struct {
	krm.Ref
	origin krm.Origin
	optOut bool
	label  string // "file:line" of the label that says so
	object *krm.Object
}

// NewPackage prepares a package for a configuration; nil stands for the
// defaults. Errors in the configuration are among the findings of Resolve.
func NewPackage(version string, config *api.RenderConfig) *Package {
	p := &Package{
		Version:    version,
		entries:    make([]entry, 1), // 0 is none
		first:      make(map[key]int32),
		kinds:      make(map[string]int),
		exchangeOf: make(map[int32]*custom[api.TokenExchange]),
		traceOf:    make(map[int32]*custom[api.AgentTrace]),
		namespaces: make(map[string][]namespace),
		renamed:    make(map[key][]renamed),
		resourceAt: make(map[place]*resource),
		expanded:   make(map[key]bool),
		madeBy:     make(map[key]*resource),
		claimed:    make(map[string]*resource),
		classes:    make(map[key]*overcommit.Class),
	}
	if config != nil {
		p.Config, p.configured = config.Spec, &config.Origin
	}
	p.base, p.findings = identity.Base(config)
	p.findings = append(p.findings, lint.CheckConfig(config)...)
	p.exchanges = tokenexchange.New()
	return p
}

// Expect makes room for the objects of so many files.
func (p *Package) Expect(files int) {
	p.entries = slices.Grow(p.entries, files)
	p.first = make(map[key]int32, files)
}

// Prefix is the prefix of labels and annotations.
func (p *Package) Prefix() string { return p.base.Prefix }

// Classic reports whether sidecars are ordinary containers.
func (p *Package) Classic() bool { return is(p.Config.Sidecars, "classic") }

// KeepCustomResources reports whether the pillars' CRs stay in the output.
func (p *Package) KeepCustomResources() bool { return is(p.Config.CustomResources, "keep") }

func is(p *string, value string) bool { return p != nil && *p == value }

// Glance notes a document of the first pass by the head that HeadOf gave, if that
// says all that others want to know of it. It reads into look.
func (p *Package) Glance(look *krm.Object, src []byte, d krm.Document, head *krm.Head, item bool, origin krm.Origin) (noted bool) {
	if item {
		return p.glanceAtItem(look, src, d, origin)
	}
	if head == nil || head.Kind == "" || head.Name == "" || p.wants(head.APIVersion, head.Kind) {
		return false
	}
	if head.Rendered || head.Kind == "ConfigMap" && bytes.Contains(src[d.Start:d.End], []byte(krm.RenderedFor)) {
		return false
	}
	p.enter(key{head.Kind, head.Namespace, head.Name}, entry{apiVersion: head.APIVersion, file: origin.File, line: int32(origin.Line)})
	return true
}

// glanceAtItem is for the items of lists, of which hosts say in annotations
// where they are from, and what they were called.
func (p *Package) glanceAtItem(look *krm.Object, src []byte, item krm.Document, origin krm.Origin) (noted bool) {
	head, ok := krm.HeadOfItem(src, item)
	if !ok {
		return false
	}
	if isObject, err := look.Read(src, head, true, origin); err != nil || !isObject || look.Name == "" {
		return false
	}
	if _, rewritten := look.Rewritten(); rewritten || p.wants(look.APIVersion, look.Kind) || look.Contains("armature.dev/") {
		return false
	}
	p.CollectObject(look)
	return true
}

// Collect notes one document of the first pass. Text that cannot be read is
// left for the second pass to report.
func (p *Package) Collect(src []byte, d krm.Document, item bool, origin krm.Origin) {
	var o krm.Object
	if isObject, err := o.Read(src, d, item, origin); err == nil && isObject {
		p.CollectObject(&o)
	}
}

// CollectObject notes an object of the first pass. What it keeps of it, it copies.
func (p *Package) CollectObject(o *krm.Object) {
	if o.Name == "" {
		if p.wants(o.APIVersion, o.Kind) {
			f := o.Finding(krm.Error, "package/no-name", o.Get("metadata"), fmt.Sprintf("the %s has no metadata.name", o.Kind), "name it")
			f.Field = "metadata.name"
			p.findings = append(p.findings, f)
		}
		return
	}
	k := key{o.Kind, o.Namespace, o.Name}
	e := entry{
		apiVersion: o.APIVersion, file: o.Origin.File, line: int32(o.Origin.Line),
		generated: o.Get("metadata", "annotations", krm.RenderedFor).Exists(),
	}
	p.enter(k, e)
	if o.Item() {
		for _, name := range previousNames(o) {
			was := key{o.Kind, o.Namespace, name}
			p.renamed[was] = append(p.renamed[was], renamed{p.first[k], affixes(o)})
		}
	}
	if p.wants(o.APIVersion, o.Kind) {
		p.collectCustom(o.Clone())
	}
	if e.generated {
		p.collectSource(o)
		if class := overcommit.Remembered(o); class != nil {
			p.classes[k] = class
		}
	}
}

func (p *Package) enter(k key, e entry) {
	e.key, e.next = k, p.first[k]
	p.first[k] = int32(len(p.entries))
	p.entries = append(p.entries, e)
	switch {
	case k.kind == "ConfigMap" && !e.generated:
		p.configMaps++
	case workloadKinds[k.kind]:
		p.kinds[k.kind]++
	}
}

// wants says which kinds the first pass has to read as a whole.
func (p *Package) wants(apiVersion, kind string) bool {
	switch kind {
	case "Namespace":
		return apiVersion == "v1"
	case "TokenExchange", "AgentTrace":
		return p.pillarGroup(apiVersion)
	case "AgentCard":
		return p.pillarGroup(apiVersion) || p.agentGroup(apiVersion)
	case "Overcommit", "OvercommitClass":
		group, _, _ := strings.Cut(apiVersion, "/")
		return group == api.OvercommitGroup
	case "ImageLock":
		return strings.HasPrefix(apiVersion, "armature.dev/")
	}
	return p.expansion(apiVersion, kind) != nil
}

// versions are the known ones of the custom resources.
func versions(kind string) []string {
	switch kind {
	case "Overcommit", "OvercommitClass":
		return []string{"v1alpha1", "v1alphav1"}
	}
	return []string{"v1alpha1"}
}

// pillarGroup reports whether an apiVersion is of the group of 001's CRs,
// which is named after the label prefix.
func (p *Package) pillarGroup(apiVersion string) bool {
	group, _, _ := strings.Cut(apiVersion, "/")
	return group == "kagenti.io" || group == p.base.Prefix
}

func (p *Package) agentGroup(apiVersion string) bool {
	group, _, _ := strings.Cut(apiVersion, "/")
	return group == "agent.kagenti.dev" || group == "agent.rossoctl.dev"
}

func (p *Package) collectCustom(o *krm.Object) {
	if x := p.expansion(o.APIVersion, o.Kind); x != nil {
		p.collectResource(x, o)
		return
	}
	origin := api.Origin{File: o.Origin.File, Line: o.Origin.Line, LineOf: o.LineOf, Has: o.Has}
	if _, version, _ := strings.Cut(o.APIVersion, "/"); o.Kind != "Namespace" && !slices.Contains(versions(o.Kind), version) {
		p.findings = append(p.findings, o.Finding(krm.Error, "package/unknown-version", o.Get("apiVersion"),
			fmt.Sprintf("%s has no version %q", o.Kind, version), "write "+strings.Join(versions(o.Kind), " or ")))
		return
	}
	switch o.Kind {
	case "Namespace":
		out, at, findings := inject.NamespaceOptsOut(o, p.base.Prefix)
		p.findings = append(p.findings, findings...)
		p.namespaces[o.Name] = append(p.namespaces[o.Name], namespace{
			Ref: o.Ref, origin: o.Origin, optOut: out, label: fmt.Sprintf("%s:%d", o.Origin.File, at.Line()), object: o,
		})
	case "TokenExchange":
		c := custom[api.TokenExchange]{Object: o}
		p.decode(o, "token-exchange/field", &c.value)
		c.value.Origin = origin
		p.tokenExchanges = append(p.tokenExchanges, c)
	case "AgentTrace":
		c := custom[api.AgentTrace]{Object: o}
		p.decode(o, "agent-trace/field", &c.value)
		c.value.Origin = origin
		p.agentTraces = append(p.agentTraces, c)
	case "AgentCard":
		c := custom[api.AgentCard]{Object: o}
		p.decode(o, "agent-card/field", &c.value)
		c.value.Origin = origin
		p.findings = append(p.findings, agentcard.Check(&c.value)...)
		p.agentCards = append(p.agentCards, c)
	case "Overcommit":
		value := new(api.Overcommit)
		p.decode(o, "overcommit/field", value)
		value.Origin = origin
		p.overcommit.overcommits = append(p.overcommit.overcommits, value)
	case "OvercommitClass":
		value := new(api.OvercommitClass)
		p.decode(o, "overcommit/field", value)
		value.Origin = origin
		p.overcommit.classes = append(p.overcommit.classes, value)
	case "ImageLock":
		lock := api.ImageLock{Origin: origin}
		if findings := o.Decode("pin-images/field", &lock); krm.Failed(findings) {
			p.findings = append(p.findings, findings...)
			return
		}
		p.UseLock(&lock)
	}
}

// decode reads a custom resource; what is wrong with it is among the findings.
func (p *Package) decode(o *krm.Object, rule string, into any) {
	if findings := o.Decode(rule, into); len(findings) > 0 {
		p.findings = append(p.findings, findings...)
		p.misread = append(p.misread, misread{o, findings})
	}
}

// WithoutEchoes drops the findings about custom resources that may only follow
// from what is wrong with the same resource's fields.
func (p *Package) WithoutEchoes(findings []krm.Finding) []krm.Finding {
	return slices.DeleteFunc(findings, func(f krm.Finding) bool {
		return slices.ContainsFunc(p.misread, func(m misread) bool {
			return f.Object == m.Ref && f.File == m.Origin.File && !slices.Contains(m.findings, f) && m.FollowsFrom(m.findings, f.Field)
		})
	})
}

// UseLock takes in a lock that stands beside the package; nil is none. Those in
// it are found by Collect.
func (p *Package) UseLock(lock *api.ImageLock) {
	if lock != nil {
		p.locks++
		p.findings = append(p.findings, p.lock.Add(lock)...)
	}
}

// BuiltImage gives the image of a finished AgentBuild, with its digest, as the
// package's locks have it. It may be asked once the first pass is done.
func (p *Package) BuiltImage(namespace, name string) (image string, found bool) {
	return p.lock.Built(namespace, name)
}

// Resolve ends the first pass: it expands the custom resources of the functions
// that run, and finds the workload of every targetRef. Its findings are those
// of the configuration and of all custom resources.
func (p *Package) Resolve(run []Function) []krm.Finding {
	p.resolveSources()
	p.expand(run)
	for i := range p.tokenExchanges {
		c := &p.tokenExchanges[i]
		if target, ok := p.target("token-exchange", c.Object, c.value.Spec.TargetRef); ok {
			claim(p, "token-exchange", p.exchangeOf, target, c)
		} else {
			p.judge(c.Object, &c.value, nil)
		}
	}
	for i := range p.agentTraces {
		c := &p.agentTraces[i]
		if target, ok := p.target("agent-trace", c.Object, c.value.Spec.TargetRef); ok {
			claim(p, "agent-trace", p.traceOf, target, c)
		} else {
			p.judge(c.Object, nil, &c.value)
		}
	}
	for i := range p.agentCards {
		c := &p.agentCards[i]
		if ref := c.value.Spec.TargetRef; ref != nil {
			p.target("agent-card", c.Object, *ref)
		} else if c.value.Spec.Selector != nil {
			p.cards.add(c)
		}
	}
	p.findings = append(p.findings, p.overcommit.resolve(p.namespaces)...)
	return p.findings
}

// judge finds what is wrong with the values of a custom resource whose workload,
// with which it is judged otherwise, was not found.
func (p *Package) judge(o *krm.Object, te *api.TokenExchange, at *api.AgentTrace) {
	_, findings := identity.Resolve(&p.base, identity.Workload{Namespace: o.Namespace, Name: o.Name, SPIFFE: true}, te, at, nil)
	for _, f := range findings {
		if f.Object == o.Ref {
			p.findings = append(p.findings, f)
		}
	}
}

// claim gives a workload its custom resource. A second one is an error.
func claim[T any](p *Package, function string, owners map[int32]*custom[T], target int32, c *custom[T]) {
	if other := owners[target]; other != nil {
		p.findings = append(p.findings, c.Finding(krm.Error, function+"/two-for-one", c.Get("spec", "targetRef"),
			fmt.Sprintf("the %s %s (%s:%d) targets the same workload", other.Kind, other.Name, other.Origin.File, other.Origin.Line),
			"merge the two into one"))
		return
	}
	owners[target] = c
}

// target finds the workload that a custom resource names: the one in the same
// namespace whose file is nearest.
func (p *Package) target(function string, o *krm.Object, ref api.TargetRef) (int32, bool) {
	report := func(rule, message, hint string) (int32, bool) {
		f := o.Finding(krm.Error, function+"/"+rule, o.At("spec.targetRef"), message, hint)
		f.Field = "spec.targetRef"
		p.findings = append(p.findings, f)
		return 0, false
	}
	if ref.Kind == "" || ref.Name == "" {
		return report("target-ref", "targetRef needs a kind and a name", "name the workload: {apiVersion: apps/v1, kind: Deployment, name: …}")
	}
	group, _, _ := strings.Cut(ref.APIVersion, "/")
	matches := func(e *entry) bool {
		have, _, _ := strings.Cut(e.apiVersion, "/")
		old := e.generated && !e.made && p.madeBy[e.key] != nil // an earlier render's
		return !old && (ref.APIVersion == "" || have == group)
	}
	found := p.nearest(key{ref.Kind, o.Namespace, ref.Name}, o.Origin.File, matches)
	if len(found) == 0 {
		for _, r := range p.renamed[key{ref.Kind, o.Namespace, ref.Name}] {
			if r.affixes == affixes(o) && matches(&p.entries[r.entry]) {
				found = append(found, r.entry)
			}
		}
	}
	switch len(found) {
	case 1:
		return found[0], true
	case 0:
		failed := func(r *resource) bool { return r.failed && r.Namespace == o.Namespace && r.Name == ref.Name }
		if slices.ContainsFunc(p.resources, failed) {
			return 0, false // once that is mended, it stands for the workload
		}
		message := fmt.Sprintf("the package has no %s %s", ref.Kind, ref.Name)
		if o.Namespace != "" {
			message += " in namespace " + o.Namespace
		}
		return report("no-target", message, p.suggest(ref, o.Namespace))
	}
	one, two := p.entries[found[0]], p.entries[found[1]]
	return report("two-targets", fmt.Sprintf("%s %s stands in %s:%d and in %s:%d", ref.Kind, ref.Name, one.file, one.line, two.file, two.line),
		"render the two folders apart, or move the resource next to the workload it means")
}

// previousNames gives the names that an item had before kustomize changed them.
// kustomize changes references only after its transformers, of which we are one.
func previousNames(o *krm.Object) []string {
	names, ok := o.Annotation("internal.config.kubernetes.io/previousNames")
	if !ok || names == "" {
		return nil
	}
	list := strings.Split(names, ",")
	slices.Sort(list)
	return slices.DeleteFunc(slices.Compact(list), func(name string) bool { return name == o.Name })
}

// affixes tells apart what two overlays made of one base, as kustomize does it.
func affixes(o *krm.Object) string {
	prefixes, _ := o.Annotation("internal.config.kubernetes.io/prefixes")
	suffixes, _ := o.Annotation("internal.config.kubernetes.io/suffixes")
	return prefixes + "/" + suffixes
}

// nearest gives the entries of a key that share the longest path with a file.
func (p *Package) nearest(k key, file string, matches func(*entry) bool) (found []int32) {
	best := -1
	for i := p.first[k]; i != 0; i = p.entries[i].next {
		e := &p.entries[i]
		if matches != nil && !matches(e) {
			continue
		}
		depth := sharedFolders(e.file, file)
		if depth > best {
			best, found = depth, found[:0]
		}
		if depth == best {
			found = append(found, i)
		}
	}
	slices.Sort(found)
	return found
}

func sharedFolders(a, b string) (depth int) {
	as, bs := strings.Split(path.Dir(a), "/"), strings.Split(path.Dir(b), "/")
	for depth < len(as) && depth < len(bs) && as[depth] == bs[depth] {
		depth++
	}
	return depth
}

// suggest looks for what the author may have meant by a target that is not there.
func (p *Package) suggest(ref api.TargetRef, namespace string) string {
	var near []string
	for k, i := range p.first {
		e := p.entries[i]
		switch {
		case k.name == ref.Name && k.kind == ref.Kind && k.namespace != namespace:
			where := "namespace " + k.namespace
			if k.namespace == "" {
				where = "no namespace"
			}
			near = append(near, fmt.Sprintf("%s:%d has it in %s: give both the same", e.file, e.line, where))
		case k.name == ref.Name && k.kind == ref.Kind:
			near = append(near, fmt.Sprintf("%s:%d has it with apiVersion %s", e.file, e.line, e.apiVersion))
		case k.name == ref.Name && workloadKinds[k.kind]:
			near = append(near, fmt.Sprintf("%s:%d is a %s of that name", e.file, e.line, k.kind))
		}
	}
	if len(near) == 0 {
		return "correct the name, or add the workload to the package"
	}
	slices.Sort(near)
	return near[0]
}

var workloadKinds = map[string]bool{
	"Deployment": true, "StatefulSet": true, "DaemonSet": true, "Job": true, "CronJob": true, "ReplicaSet": true, "Pod": true,
}

// index gives the entry of an object of the second pass.
func (p *Package) index(o *krm.Object) int32 {
	for i := p.first[key{o.Kind, o.Namespace, o.Name}]; i != 0; i = p.entries[i].next {
		if e := &p.entries[i]; int(e.line) == o.Origin.Line && e.file == o.Origin.File {
			return i
		}
	}
	return 0
}

// Regenerates reports whether a generated object belongs to one of the package,
// which makes it anew, or is gone with it. known is false where the package
// does not have the other.
func (p *Package) Regenerates(o *krm.Object) (drop, known bool) {
	kind, name, _ := strings.Cut(o.Get("metadata", "annotations", krm.RenderedFor).Text(), "/")
	k := key{kind, o.Namespace, name}
	shared := key{o.Kind, o.Namespace, o.Name} // by several, whoever it was rendered for
	if again := p.expanded[k] || p.expanded[shared]; kind == "" || again {
		return again, again
	}
	known = p.first[k] != 0
	for _, r := range p.resources {
		if r.Kind == kind && r.Namespace == o.Namespace && r.Name == name {
			return false, true // its function does not run
		}
	}
	for _, r := range p.renamed[k] {
		known = known || r.affixes == affixes(o)
	}
	return known, known
}

// namespaceOf gives the Namespace of an object, the one in the nearest file.
func (p *Package) namespaceOf(o *krm.Object) (nearest namespace, found bool) {
	best := -1
	for _, ns := range p.namespaces[o.Namespace] {
		if depth := sharedFolders(ns.origin.File, o.Origin.File); depth > best {
			best, nearest = depth, ns
		}
	}
	return nearest, best >= 0
}

// optedOut gives the Namespace that keeps its workloads from being injected.
func (p *Package) optedOut(o *krm.Object) (namespace, bool) {
	ns, found := p.namespaceOf(o)
	return ns, found && ns.optOut
}

// authored gives the place of an object that an author wrote under a name that
// a generated one needs.
func (p *Package) authored(kind, namespace, name, file string) (place string, found bool) {
	for _, i := range p.nearest(key{kind, namespace, name}, file, func(e *entry) bool { return !e.generated }) {
		e := p.entries[i]
		return fmt.Sprintf("%s:%d", e.file, e.line), true
	}
	return "", false
}
