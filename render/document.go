package render

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/multi"
)

// appendDocument renders one document of a file and appends it with its generated objects.
func (w *worker) appendDocument(dst, src []byte, d krm.Document, item bool, origin krm.Origin) []byte {
	w.file.inline = path.Ext(origin.File) == ".json" &&
		bytes.HasPrefix(bytes.TrimLeft(src[d.Start:d.End], "\ufeff \t\r\n"), []byte{'{'})
	o, becomes := w.process(src, d, item, origin)
	switch {
	case becomes == dropped:
		return dst
	case o == nil:
		if w.opt.ObjectsOnly {
			return dst
		}
		return append(dst, src[d.Start:d.End]...)
	case w.opt.ObjectsOnly && LocalKind(o):
		return dst
	}
	u := &w.unit
	switch {
	case u.Consumed && w.file.json: // JSON has no comments
		dst = appendKept(dst, o.Bytes())
	case u.Consumed:
		dst = appendConsumed(dst, o.Bytes(), o.Ref)
	case becomes == replaced:
	default:
		dst = w.appendObject(dst, o)
	}
	eol := krm.LineEnding(src)
	first := becomes == replaced
	for _, text := range u.Generated {
		w.stats.Generated++
		if w.file.json {
			w.file.aside = krm.AppendIndented(append(w.file.aside, "---\n"...), text, 0, "\n")
			continue
		}
		if !first {
			dst = append(append(krm.EndLine(dst, eol), "---"...), eol...)
		}
		first = false
		dst = krm.AppendIndented(dst, text, 0, eol)
	}
	return dst
}

// LocalKind reports whether an object is for the tools that build a package, not for a cluster.
func LocalKind(o *krm.Object) bool {
	switch o.Group() {
	case "kustomize.config.k8s.io", "kpt.dev", "config.kubernetes.io":
		return true
	}
	return (o.Kind == "RenderConfig" || o.Kind == "ImageLock") && o.Group() == keys.Group
}

// fate is the result of rendering a document.
type fate int

const (
	stays    fate = iota // possibly changed
	replaced             // by the generated objects
	dropped              // because its workload generates it again
)

// process runs the functions on an object. It returns nil for text that is not an object, and for
// an object that is dropped.
func (w *worker) process(src []byte, d krm.Document, item bool,
	origin krm.Origin) (o *krm.Object, becomes fate) {
	o = &w.object
	var isObject bool
	var err error
	if w.shared != nil {
		isObject, err = o.ReadShared(w.shared, src[d.Start:d.End], origin)
	} else {
		isObject, err = w.readObject(o, src, d, item, origin)
	}
	if err == nil && isObject {
		if text, ok := restoreLocal(o); ok {
			src, d = text, krm.Document{End: len(text)}
			isObject, err = w.readObject(o, src, d, item, origin)
		}
	}
	if err != nil {
		w.findings.Add(SyntaxFinding(err, src[d.Start:d.End]))
		return nil, stays
	}
	if note := o.Get("metadata", "annotations", keys.Consumed); note.Exists() {
		w.findings.Add(o.Finding(finding.Error, "package/list-layout", note,
			"the consumed custom resources that it keeps cannot be restored, because it was changed",
			"restore the file from Git, or write the resources again and remove the annotation"))
		return nil, stays
	}
	if !isObject {
		w.incomplete(o)
		return nil, stays
	}
	if rendered := o.Get("metadata", "annotations", keys.RenderedFor); rendered.Exists() {
		if w.replace(o) {
			return o, replaced
		}
		drop, known := w.pkg.Expansions.Regenerates(o)
		if w.undo {
			w.stats.Generated++
			return nil, dropped
		}
		if drop {
			return nil, dropped
		}
		if !known && !w.pkg.FromInput(rendered.Text()) {
			w.findings.Add(o.Finding(finding.Warning, "package/orphan", rendered,
				"rendered for a workload that the package does not have",
				"delete it, or render it together with its workload"))
		}
	}
	u := &w.unit
	if record, undo := w.pkg.Undo(o); krm.Changed(o) || record.Exists() {
		if o, err = w.undoRender(o, undo); err != nil {
			if strings.Contains(err.Error(), keys.Changed) {
				record = w.object.Get("metadata", "annotations", keys.Changed)
			}
			w.findings.Add(w.object.Finding(finding.Error, "package/record", record, err.Error(), ""))
			return nil, stays
		}
	}
	if w.opt.Hosted && w.opt.Config == nil && !w.undo && o.Kind == "RenderConfig" &&
		o.Group() == keys.Group {
		w.findings.Add(o.Finding(finding.Error, "config/not-passed", krm.Node{},
			"this configuration is an item and not the functionConfig, so that nothing reads it",
			"pass it: configPath in the Kptfile, or kpt fn eval --fn-config FILE"))
	}
	u.NoOriginal = w.opt.Hosted
	w.pkg.Start(u, o, &w.object)
	if w.undo {
		return o, stays
	}
	w.run(u)
	w.expand(o, u.Expansion)
	return u.Object, stays
}

// incomplete reports a document with a name and only one of apiVersion and kind. Its author meant
// an object, which would otherwise pass unrendered.
func (w *worker) incomplete(o *krm.Object) {
	if strings.HasSuffix(o.Kind, "List") && o.Get("items").IsList() && !w.undo && w.pkg.MentionsOptIn(o) {
		w.findings.Add(o.Finding(finding.Error, "package/list-layout", o.Get("items"),
			"the items of this List, which has no apiVersion, cannot be rendered one by one",
			"write its items as documents of their own"))
		return
	}
	if w.undo || o.Name == "" || (o.Kind == "") == (o.APIVersion == "") {
		return
	}
	what, missing := o.Kind, "apiVersion"
	if o.Kind == "" {
		what, missing = "the document", "kind"
	}
	w.findings.Add(o.Finding(finding.Error, "package/incomplete", o.Get("metadata", "name"),
		fmt.Sprintf("%s %s has no %s, so it is not a Kubernetes object", what, o.Name, missing),
		"write its "+missing+", or leave the file out with spec.exclude in armature.yaml"))
}

func (w *worker) run(u *contract.Unit) {
	o := u.Object
	for i := range w.rows {
		w.rows[i].Run(u)
	}
	if w.opt.Observe != nil {
		w.opt.Observe(u)
	}
	u.Finish()
	w.findings.Add(u.Findings...)
	if u.Injected() {
		w.stats.Workloads++
		if _, rewritten := o.Rewritten(); rewritten {
			w.stats.Rewritten++
		}
	}
}

// expand runs the functions on the objects that a custom resource generates, and replaces the
// resource by them.
func (w *worker) expand(from *krm.Object, texts [][]byte) {
	for _, text := range texts {
		o, u := &w.expanded.object, &w.expanded.unit
		if isObject, err := o.ReadMade(text, from); err != nil || !isObject {
			w.findings.Add(from.Finding(finding.Error, "package/layout", krm.Node{},
				fmt.Sprintf("the object generated from it is not valid: %v", err), ""))
			return
		}
		u.NoOriginal = true // the text has no author
		w.pkg.Start(u, o, o)
		w.run(u)
		w.unit.Generated = append(w.unit.Generated, u.Object.Append(nil))
		for _, text := range u.Generated {
			w.unit.Generated = append(w.unit.Generated, bytes.Clone(text))
		}
	}
}

// replace handles a generated object that stores a custom resource which a host dropped. It
// replaces the object by the objects that the resource generates or, if the author's text is
// requested, by the resource.
func (w *worker) replace(o *krm.Object) (done bool) {
	var texts [][]byte
	if w.undo {
		var err error
		if texts, err = w.pkg.Expansions.Remembered(o); err != nil || len(texts) == 0 {
			return false
		}
	} else if texts, done = w.pkg.Expansions.StandsIn(o); !done {
		return false
	}
	w.pkg.Start(&w.unit, o, o)
	if w.undo {
		w.unit.Generated = append(w.unit.Generated, texts...)
		return true
	}
	w.expand(o, texts)
	return true
}

// undoRender returns the object as it was before an earlier render. It first reverts the fields
// that were set last, then, with undo, what a function injected.
func (w *worker) undoRender(o *krm.Object, undo contract.Undo) (*krm.Object, error) {
	if why := o.Frozen(); why != "" {
		return nil, errors.New(why)
	}
	for i, undo := range [...]contract.Undo{krm.Revert, undo} {
		if undo == nil {
			continue
		}
		text, was, err := undone(w.buffers.text[i][:0], o, undo)
		if err != nil {
			return nil, err
		}
		if !was {
			continue
		}
		if w.undo && i == 1 {
			w.stats.Workloads++
		}
		w.buffers.text[i] = text
		again := &w.buffers.again[i]
		isObject, err := w.readObject(again, text, krm.Document{End: len(text)}, o.Item(), o.Origin)
		if err == nil && !isObject {
			err = errors.New("it has no apiVersion or no kind")
		}
		if err != nil {
			return nil, fmt.Errorf("the manifest without its rendered parts is not an object: %w", err)
		}
		again.MapLines(o)
		o = again
	}
	return o, nil
}

// undone appends an object's text without the changes of an earlier render.
func undone(dst []byte, o *krm.Object, undo contract.Undo) (text []byte, rendered bool, err error) {
	rendered, original, unended, err := undo(o)
	if err != nil || !rendered {
		return dst, rendered, err
	}
	from := len(dst)
	dst = o.Append(dst)
	if original == nil {
		if unended {
			dst = trimEnd(dst)
		}
		return dst, true, nil
	}
	// The original is used only if its rendered form was not edited.
	var author krm.Object
	if isObject, err := author.Read(original, krm.Document{End: len(original)}, o.Item(),
		o.Origin); err != nil || !isObject {
		return nil, true, multi.Errors(
			errors.New("the original kept in the record is not an object"), err)
	}
	if o.IsInline() {
		author.Inline()
	}
	same, err := author.SameAs(dst[from:])
	if err != nil {
		return nil, true, err
	}
	if same {
		dst = append(dst[:from], original...)
	}
	return dst, true, nil
}
