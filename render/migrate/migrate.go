// Package migrate converts a package of other agent platforms to plain manifests. The rules are in
// functions/foreign, and in each function those for its kinds.
package migrate

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/foreign"
	"github.com/armature-dev/armature/functions/kagentagent"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/pinimages"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render"
)

// Run migrates a source of other agent platforms to plain manifests and the pillars' custom
// resources. Agents, kagent's resources and AsyncActors become the objects that they generate. It
// removes what admission webhooks and clusters add to objects. The reports name every field of
// every changed object. Files without such objects stay unchanged.
func Run(src render.Source, opt render.Options,
	sink render.Sink) ([]Report, []finding.Finding, error) {
	pkg := functions.NewPackage(functions.Settings{Version: opt.Version, Config: opt.Config,
		Lock: opt.Lock, Files: len(src.Files)})
	rows, err := pkg.Rows(opt.Functions)
	if err != nil {
		return nil, nil, err
	}
	m := &migration{src: src, pkg: pkg, live: make(map[finding.Ref]*krm.Object),
		ports: make(map[finding.Ref][]int), removed: make(map[finding.Ref][]foreign.Container)}
	if opt.Config != nil {
		m.config = &opt.Config.Spec
	}
	if err := m.each(m.collect); err != nil {
		return nil, nil, err
	}
	m.findings = append(m.findings, m.pkg.Resolve(rows)...)
	if finding.Failed(m.findings) {
		return m.finish(sink)
	}
	m.known = slices.Clip(m.findings)
	if err := m.files(); err != nil {
		return nil, nil, err
	}
	if !finding.Failed(m.findings) {
		if err := m.try(opt); err != nil {
			return nil, nil, err
		}
	}
	return m.finish(sink)
}

// finish writes all files unless a finding is an error.
func (m *migration) finish(sink render.Sink) (_ []Report, _ []finding.Finding, err error) {
	finding.Sort(m.findings)
	if finding.Failed(m.findings) {
		return nil, m.findings, nil
	}
	for i, f := range m.src.Files {
		data, changed := m.out[i]
		if !changed {
			if data, err = m.read(f); err != nil {
				return nil, nil, err
			}
		}
		if err := sink(f.Path, data); err != nil {
			return nil, nil, err
		}
	}
	slices.SortStableFunc(m.reports, func(a, b Report) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	return m.reports, m.findings, nil
}

// files migrates all files in memory.
func (m *migration) files() error {
	m.out, m.reports, m.findings = make(map[int][]byte), nil, m.known
	for i := range m.src.Files {
		if err := m.file(i); err != nil {
			return err
		}
	}
	return nil
}

type migration struct {
	src      render.Source
	config   *api.RenderConfigSpec // nil for the defaults
	pkg      *functions.Package
	live     map[finding.Ref]*krm.Object // objects that a controller created from custom resources
	owners   []finding.Ref               // the custom resources
	reports  []Report
	findings []finding.Finding
	known    []finding.Finding // of the whole package, before the first file
	// Content of the files that change, by index; nil for a file that becomes empty.
	out     map[int][]byte
	ports   map[finding.Ref][]int                // declared by the containers of workloads
	keep    map[finding.Ref][]foreign.Annotation // with which workloads keep these ports
	removed map[finding.Ref][]foreign.Container  // that the webhook had injected
	stay    map[finding.Ref]finding.Finding      // workloads that would not render, and why

	succession *kagentagent.Succession // to kagent 1.0; nil for plain manifests
}

// each visits all objects, including the items of lists.
func (m *migration) each(visit func(o *krm.Object)) error {
	for _, f := range m.src.Files {
		if err := m.documents(f, func(text []byte, o *krm.Object, _ bool, unread error) error {
			if unread != nil {
				m.findings = append(m.findings, render.SyntaxFinding(unread, text))
			} else if o != nil {
				visit(o)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// documents visits the documents of a manifest and the items of its lists. o is nil for a document
// without an object, and for one that cannot be read.
func (m *migration) documents(f render.File,
	visit func(text []byte, o *krm.Object, item bool, unread error) error) error {
	if f.AsIs || !render.IsManifest(f.Path) {
		return nil
	}
	data, err := m.read(f)
	if err != nil {
		return err
	}
	render.EachDocument(data, func(d krm.Document, item bool, line int) {
		text, o := data[d.Start:d.End], new(krm.Object)
		isObject, unread := o.Read(bytes.Clone(text), krm.Document{End: len(text)}, item,
			krm.Origin{File: f.Path, Line: line})
		if unread != nil || !isObject {
			o = nil
		}
		if err == nil {
			err = visit(text, o, item, unread)
		}
	})
	return err
}

func (m *migration) read(f render.File) ([]byte, error) {
	if f.Data != nil || m.src.Read == nil {
		return f.Data, nil
	}
	data, err := m.src.Read(f.Path, nil)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", f.Path, err)
	}
	return data, nil
}

// collect collects an object in the first pass.
func (m *migration) collect(o *krm.Object) {
	if owner, owned := foreign.Owner(o); owned && m.expands(owner) {
		m.live[o.Ref] = o
		return
	}
	if m.expands(o.Ref) {
		m.owners = append(m.owners, o.Ref)
	}
	m.pkg.CollectObject(o)
}

// file migrates one file.
func (m *migration) file(i int) error {
	f := m.src.Files[i]
	var out []byte
	changed := false
	err := m.documents(f, func(text []byte, o *krm.Object, item bool, _ error) error {
		if o == nil {
			out = appendDocument(out, text)
			return nil
		}
		texts, different, err := m.object(o, item)
		if err != nil {
			return fmt.Errorf("%s:%d: migrating %s: %w", f.Path, o.Origin.Line, o.Ref, err)
		}
		changed = changed || different
		for _, t := range texts {
			out = appendDocument(out, t)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case !changed:
	case path.Ext(f.Path) == ".json":
		m.findings = append(m.findings, finding.Finding{Rule: "migrate/json",
			Severity: finding.Error, Place: finding.Place{File: f.Path},
			Message: "the result does not fit a JSON file", Hint: "convert it to YAML first"})
	case len(bytes.TrimSpace(out)) == 0:
		m.out[i] = nil
	default:
		m.out[i] = out
	}
	return nil
}

func appendDocument(dst, text []byte) []byte {
	if len(bytes.TrimSpace(text)) == 0 {
		return dst
	}
	if len(dst) > 0 {
		dst = append(krm.EndLine(dst, "\n"), "---\n"...)
	}
	return append(dst, text...)
}

// object returns the objects into which an object is migrated.
func (m *migration) object(o *krm.Object, item bool) (texts [][]byte, different bool, err error) {
	report := Report{File: o.Origin.File, Line: o.Origin.Line, Object: o.Ref, Becomes: []finding.Ref{}}
	if m.succession != nil {
		return m.succeed(o, report)
	}
	function, expands := m.pkg.Expands(o.Ref)
	owner, owned := foreign.Owner(o)
	maker, made := m.pkg.Expands(owner)
	switch {
	case expands:
		return m.custom(o, function, report)
	case owned && !made &&
		(owner.Kind == "ReplicaSet" || owner.Kind == "Deployment" ||
			owner.Kind == "Job" && o.Kind == "Pod"):
		return nil, true, m.dropped(o, report, "made by "+owner.String()+", which creates it again")
	case owned && made && (maker.Migration.Replaces || o.Kind == "Secret"):
		if !slices.Contains(m.owners, owner) {
			return nil, true, fmt.Errorf(
				"it belongs to %s, which the input does not have: export that as well", owner)
		}
		return nil, true, m.dropped(o, report,
			"made by the controller of "+owner.String()+"; its migrated objects replace it")
	}
	return m.cleaned(o, item, report)
}

// dropped reports an object that is removed without a replacement.
func (m *migration) dropped(o *krm.Object, report Report, reason string) (err error) {
	done := []foreign.Field{}
	for key := range o.Root().Fields() {
		done = append(done, foreign.Field{Path: key, Fate: foreign.Dropped, Reason: reason})
	}
	report.Fields, err = foreign.Fields(o, false, "", done)
	m.reports = append(m.reports, report)
	return err
}

// custom returns the objects that a custom resource generates. Objects that its controller created
// and that are in the input stay unchanged.
func (m *migration) custom(o *krm.Object, function contract.Function,
	report Report) (texts [][]byte, different bool, err error) {
	running := false
	for ref, l := range m.live {
		if owner, _ := foreign.Owner(l); owner.Kind == o.Kind && owner.Name == o.Name &&
			l.Namespace == o.Namespace &&
			!function.Migration.Replaces && ref.Kind != "Secret" {
			report.Becomes = append(report.Becomes, ref)
			_, workload := l.PodTemplate()
			running = running || workload
		}
	}
	slices.SortFunc(report.Becomes, func(a, b finding.Ref) int {
		return strings.Compare(a.String(), b.String())
	})
	with := &function.Migration
	var notes []foreign.Field
	if !running {
		prefix := m.pkg.Prefix()
		if texts, err = m.pkg.Expansions.Plain(o, func(tree *yaml.RNode) error {
			if with.Finish == nil {
				return nil
			}
			return with.Finish(tree, prefix)
		}); err != nil {
			return nil, false, err
		}
		if with.Beside != nil && len(texts) > 0 {
			texts = append(texts, with.Beside(o, prefix))
		}
		if with.Notes != nil {
			notes = with.Notes(o, m.config, prefix)
		}
	}
	if report.Fields, err = foreign.Fields(o, true, with.Fields, notes); err != nil {
		return nil, false, err
	}
	return texts, true, m.replaced(o, report, texts)
}

var errNoObject = errors.New("apiVersion or kind is missing")

// replaced reports the objects that replace an object.
func (m *migration) replaced(o *krm.Object, report Report, texts [][]byte) error {
	for _, text := range texts {
		var made krm.Object
		if isObject, err := made.ReadMade(text, o); err != nil || !isObject {
			return fmt.Errorf("the result is not an object: %w", cmp.Or(err, errNoObject))
		}
		report.Becomes = append(report.Becomes, made.Ref)
		if roll, ok := m.roll(&made); ok {
			report.Rolls = append(report.Rolls, roll)
		}
	}
	m.reports = append(m.reports, report)
	return nil
}

// expands reports whether a function expands objects of a kind.
func (m *migration) expands(ref finding.Ref) bool {
	_, expands := m.pkg.Expands(ref)
	return expands
}

// roll compares a generated workload with the running one of the same name.
func (m *migration) roll(made *krm.Object) (Roll, bool) {
	l := m.live[made.Ref]
	if l == nil {
		return Roll{}, false
	}
	template, running := made.Get("spec", "template"), l.Get("spec", "template")
	if template.IsNull() || running.IsNull() {
		return Roll{}, false
	}
	roll := Roll{Workload: made.Ref, Why: "its pod template does not change"}
	if at := differs(template, running); at != "" {
		roll.Rolls, roll.Why = true, at+" differs"
	}
	if was, is := selectorOf(l), selectorOf(made); was != is && was != "" {
		roll.Rolls = true
		roll.Why = "its selector is immutable: it runs with " + was + ", and is to have " + is +
			"; delete it with --cascade=orphan before you apply, and then the pods that it " +
			"leaves behind"
	}
	return roll, true
}

// differs returns the first field in which applying a pod template changes a running one, or "".
// Fields that the new template omits stay unchanged, since applying removes only fields that the
// same manager set.
func differs(template, running krm.Node) (first string) {
	values := make(map[string]krm.Node)
	render.EachField(running, func(n krm.Node, field string) { values[field] = n })
	render.EachField(template, func(n krm.Node, field string) {
		is := values[field]
		if (n.IsMap() != is.IsMap() || n.IsList() != is.IsList() || n.Text() != is.Text()) &&
			(first == "" || n.Path() < first) {
			first = n.Path()
		}
	})
	return first
}

// selectorOf returns the labels by which a workload selects its pods as JSON, or "".
func selectorOf(o *krm.Object) string {
	value, err := o.Value()
	object, _ := value.(map[string]any)
	spec, _ := object["spec"].(map[string]any)
	selector, _ := spec["selector"].(map[string]any)
	content, failed := json.Marshal(selector)
	if err != nil || failed != nil || len(selector) == 0 {
		return ""
	}
	return text.Shown(string(content))
}

// cleaned returns an object without the additions of webhooks and clusters.
func (m *migration) cleaned(o *krm.Object, item bool,
	report Report) (texts [][]byte, different bool, err error) {
	if item || m.live[o.Ref] != nil { // of a list: a document of its own
		tree, err := o.Parse()
		if err != nil {
			return nil, false, err
		}
		text, err := krm.BlockStyle(tree)
		if err != nil {
			return nil, false, err
		}
		if isObject, err := o.ReadMade(text, o); err != nil || !isObject {
			return nil, false, fmt.Errorf("an item that is not an object: %w",
				cmp.Or(err, errNoObject))
		}
	}
	if why, stays := m.stay[o.Ref]; stays {
		m.findings = append(m.findings,
			o.Finding(finding.Warning, "migrate/not-rendered", krm.Node{},
				"stays as it runs, with its sidecars, since it would not render: "+why.Message, why.Hint))
		return [][]byte{o.Append(nil)}, item || m.live[o.Ref] != nil, nil
	}
	c, err := foreign.Clean(o, m.pkg.Prefix(), m.keep[o.Ref])
	if err != nil {
		return nil, false, err
	}
	if len(c.Ports) > 0 {
		m.ports[o.Ref] = c.Ports
	}
	if c.Injected {
		m.removed[o.Ref] = c.Removed
	}
	m.findings = append(m.findings, c.Findings...)
	if !c.Changed() {
		return [][]byte{o.Append(nil)}, false, nil
	}
	report.Becomes = append(report.Becomes, o.Ref)
	if report.Fields, err = foreign.Fields(o, false, "", c.Fields); err != nil {
		return nil, false, err
	}
	if _, workload := o.PodTemplate(); workload {
		roll := Roll{Workload: o.Ref, Why: "its pod template stays as it is"}
		switch {
		case c.Injected:
			roll.Rolls, roll.Why =
				true,
				"the injected containers are removed, and the next render adds them again; use "+
					"kubectl replace, since an apply keeps the webhook's"
		case slices.ContainsFunc(c.Fields, inTemplate):
			roll.Rolls, roll.Why = true, "computed fields are removed from its pod template"
		}
		report.Rolls = append(report.Rolls, roll)
	}
	m.reports = append(m.reports, report)
	return [][]byte{o.Append(nil)}, true, nil
}

// inTemplate reports whether a field belongs to the pod template of a workload.
func inTemplate(f foreign.Field) bool {
	return strings.HasPrefix(f.Path, "spec.template.") ||
		strings.HasPrefix(f.Path, "spec.jobTemplate.spec.template.")
}

// ToSuccessor migrates resources of kagent 0.x to those of 1.0. harness is the text of a Harness of
// 1.0, which specifies where and with which image agents run. All other objects stay unchanged.
func ToSuccessor(src render.Source, opt render.Options, harness []byte,
	sink render.Sink) ([]Report, []finding.Finding, error) {
	h := new(krm.Object)
	if is, err := h.Read(bytes.Clone(harness), krm.Document{End: len(harness)}, false,
		krm.Origin{}); err != nil || !is {
		return nil, nil, fmt.Errorf(
			"reading the Harness: it is not one YAML document with an object: %w",
			cmp.Or(err, errNoObject))
	}
	var lock pinimages.Lock
	m := &migration{src: src, succession: &kagentagent.Succession{Harness: h, Pin: lock.Image}}
	if opt.Lock != nil {
		m.findings = lock.Add(opt.Lock)
	}
	if err := m.succession.Begin(); err != nil {
		return nil, nil, fmt.Errorf("the Harness: %w", err)
	}
	if err := m.each(m.succession.Collect); err != nil {
		return nil, nil, err
	}
	m.known = m.findings
	if err := m.files(); err != nil {
		return nil, nil, err
	}
	return m.finish(sink)
}

// succeed returns the objects that replace an object in kagent 1.0.
func (m *migration) succeed(o *krm.Object,
	report Report) (texts [][]byte, different bool, err error) {
	done, ok, err := m.succession.Convert(o)
	if err != nil || !ok {
		return [][]byte{o.Append(nil)}, false, err
	}
	m.findings = append(m.findings, done.Findings...)
	report.Fields = done.Fields
	return done.Texts, true, m.replaced(o, report, done.Texts)
}
