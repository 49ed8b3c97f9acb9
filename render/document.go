package render

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/multi"
)

// appendFile renders the text of one file. lists are those that the first pass took
// apart.
func (w *worker) appendFile(dst, data []byte, file string, form form, lists []parted) []byte {
	line, at := 1, 0
	lineOf := func(p int) int {
		line += bytes.Count(data[at:p], []byte{'\n'})
		at = p
		return line
	}
	from := len(dst)
	for d := range krm.DocumentsOf(data, !form.several) {
		w.stats.Documents++
		dst = w.spill(dst, file)
		origin := krm.Origin{File: file, Line: lineOf(d.Start)}
		text := data[d.Start:d.End]
		start := len(dst)
		if start > from {
			dst = krm.EndLine(dst, lineEnding(data))
		}
		if lead := data[d.Lead:d.Start]; d.Lead > 0 || !bytes.Equal(trimEnd(lead), []byte(jsonLead)) {
			dst = append(dst, lead...)
		}
		body := len(dst)
		if source, ok := restoreConsumed(text, &origin); ok && (w.undo || w.pkg.KeepCustomResources()) {
			dst = append(dst, source...)
			continue
		} else if ok {
			dst = w.appendDocument(dst, source, krm.Document{End: len(source)}, false, origin)
			continue
		}
		if form.lists {
			if list, ok := listIn(data, d, &lists); ok {
				at, line = d.Start, origin.Line
				dst = w.appendItems(dst, list, file, lineOf)
				continue
			}
		}
		dst = w.appendDocument(dst, data, d, false, origin)
		if len(dst) == body && len(text) > 0 { // dropped, its separator with it
			dst = dst[:start]
		}
	}
	if !w.file.spilled && !w.undo {
		dst = leadJSON(dst, data)
	}
	return dst
}

// jsonLead leads a stream that would begin with a JSON object and goes on with
// other documents. kubectl reads all of a stream that begins with a brace as
// JSON, and stops at the first "---".
const jsonLead = "--- # " + keys.Stream + ": YAML, although JSON comes first"

// leadJSON puts jsonLead before a rendered stream that needs it, unless the
// stream is still as its author wrote it.
func leadJSON(out, data []byte) []byte {
	if !BeginsJSON(out) || bytes.Equal(out, data) {
		return out
	}
	several := 0
	for range krm.Documents(out) {
		if several++; several > 1 {
			return slices.Insert(out, 0, []byte(jsonLead+lineEnding(data))...)
		}
	}
	return out
}

// BeginsJSON reports whether kubectl would read a stream as JSON.
func BeginsJSON(stream []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(stream, " \t\r\n"), []byte{'{'})
}

// appendDocument renders one document of a file, and behind it what it generates.
func (w *worker) appendDocument(dst, src []byte, d krm.Document, item bool, origin krm.Origin) []byte {
	w.file.inline = path.Ext(origin.File) == ".json" && bytes.HasPrefix(bytes.TrimLeft(src[d.Start:d.End], "\ufeff \t\r\n"), []byte{'{'})
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
	case u.Consumed && w.file.json: // has no place for comments
		dst = appendKept(dst, o.Bytes())
	case u.Consumed:
		dst = appendConsumed(dst, o.Bytes(), o.Ref)
	case becomes == replaced:
	default:
		dst = w.appendObject(dst, o)
	}
	eol := lineEnding(src)
	first := becomes == replaced
	for i := range u.Generated {
		w.stats.Generated++
		if w.file.json {
			w.file.aside = u.Generated[i].Append(append(w.file.aside, "---\n"...), 0, "\n")
			continue
		}
		if !first {
			dst = append(append(krm.EndLine(dst, eol), "---"...), eol...)
		}
		first = false
		dst = u.Generated[i].Append(dst, 0, eol)
	}
	return dst
}

// appendObject writes an object with its edits, and holds back what no parser
// would read.
func (w *worker) appendObject(dst []byte, o *krm.Object) []byte {
	from := len(dst)
	dst = o.Append(dst)
	if err := o.Check(dst[from:], &w.buffers.check); err != nil {
		w.findings = append(w.findings, o.Finding(krm.Error, "package/layout", krm.Node{}, err.Error(), "write the object in block style"))
	}
	return dst
}

// readObject reads an object's text for an edit.
func (w *worker) readObject(o *krm.Object, src []byte, d krm.Document, item bool, origin krm.Origin) (isObject bool, err error) {
	isObject, err = o.Read(src, d, item, origin)
	if w.file.inline {
		o.Inline()
	}
	return isObject, err
}

// trimEnd takes away the line ending at the end of a text.
func trimEnd(text []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(text, []byte{'\n'}), []byte{'\r'})
}

func lineEnding(src []byte) string {
	if i := bytes.IndexByte(src, '\n'); i > 0 && src[i-1] == '\r' {
		return "\r\n"
	}
	return "\n"
}

// LocalKind reports whether an object is for the tools that build a package,
// not for a cluster.
func LocalKind(o *krm.Object) bool {
	switch o.Group() {
	case "kustomize.config.k8s.io", "kpt.dev", "config.kubernetes.io":
		return true
	}
	return (o.Kind == "RenderConfig" || o.Kind == "ImageLock") && o.Group() == keys.Group
}

// fate is what becomes of a document.
type fate int

const (
	kept     fate = iota // changed or not
	replaced             // by what the unit generates
	dropped              // because its workload makes it again
)

// process takes an object through the functions. It gives no object for text
// that is not one, and for an object that is dropped.
func (w *worker) process(src []byte, d krm.Document, item bool, origin krm.Origin) (o *krm.Object, becomes fate) {
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
		w.findings = append(w.findings, SyntaxFinding(err, src[d.Start:d.End]))
		return nil, kept
	}
	if note := o.Get("metadata", "annotations", keys.Consumed); strings.HasPrefix(note.Text(), "{") {
		w.findings = append(w.findings, o.Finding(krm.Error, "package/list-layout", note,
			"the consumed custom resources that it keeps cannot be put back, because somebody has changed it", "restore the file from Git, or write the resources again and remove the annotation"))
		return nil, kept
	}
	if !isObject {
		w.incomplete(o)
		return nil, kept
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
			w.findings = append(w.findings, o.Finding(krm.Warning, "package/orphan", rendered,
				"rendered for a workload that the package does not have", "delete it, or render it together with its workload"))
		}
	}
	u := &w.unit
	if record, undo := w.pkg.Undo(o); krm.Changed(o) || record.Exists() {
		if o, err = w.undoRender(o, undo); err != nil {
			if strings.Contains(err.Error(), keys.Changed) {
				record = w.object.Get("metadata", "annotations", keys.Changed)
			}
			w.findings = append(w.findings, w.object.Finding(krm.Error, "package/record", record, err.Error(), ""))
			return nil, kept
		}
	}
	u.NoOriginal = w.opt.Hosted
	w.pkg.Start(u, o, &w.object)
	if w.undo {
		return o, kept
	}
	w.run(u)
	w.expand(o, u.Expansion)
	return u.Object, kept
}

// incomplete reports a document that has a name, and one of apiVersion and kind:
// somebody meant it to be an object. Where only objects are kept it would be
// lost.
func (w *worker) incomplete(o *krm.Object) {
	if strings.HasSuffix(o.Kind, "List") && o.Get("items").IsList() && !w.undo && w.pkg.MentionsOptIn(o) {
		w.findings = append(w.findings, o.Finding(krm.Error, "package/list-layout", o.Get("items"),
			"the items of this List, which has no apiVersion, cannot be rendered one by one", "write its items as documents of their own"))
		return
	}
	if w.undo || o.Name == "" || (o.Kind == "") == (o.APIVersion == "") {
		return
	}
	what, missing := o.Kind, "apiVersion"
	if o.Kind == "" {
		what, missing = "the document", "kind"
	}
	severity := krm.Warning
	if w.opt.ObjectsOnly {
		severity = krm.Error
	}
	w.findings = append(w.findings, o.Finding(severity, "package/incomplete", o.Get("metadata", "name"),
		fmt.Sprintf("%s %s has no %s, so it is not a Kubernetes object", what, o.Name, missing), "write its "+missing+", or leave the file out with spec.exclude in armature.yaml"))
}

// run takes an object through the functions.
func (w *worker) run(u *contract.Unit) {
	o := u.Object
	for i := range w.rows {
		w.rows[i].Run(u)
	}
	if w.opt.Observe != nil {
		w.opt.Observe(u)
	}
	u.Finish()
	w.findings = append(w.findings, u.Findings...)
	if u.Injected() {
		w.stats.Workloads++
		if _, rewritten := o.Rewritten(); rewritten {
			w.stats.Rewritten++
		}
	}
}

// expand runs the functions over the objects that a custom resource generates,
// and replaces the resource with them.
func (w *worker) expand(from *krm.Object, texts [][]byte) {
	for _, text := range texts {
		o, u := &w.expanded.object, &w.expanded.unit
		if isObject, err := o.ReadMade(text, from); err != nil || !isObject {
			w.findings = append(w.findings, from.Finding(krm.Error, "package/layout", krm.Node{},
				fmt.Sprintf("the object generated from it is not valid: %v", err), ""))
			return
		}
		u.NoOriginal = true // nobody wrote the text
		w.pkg.Start(u, o, o)
		w.run(u)
		w.unit.Generated = append(w.unit.Generated, contract.Document(u.Object.Append(nil)))
		w.unit.Generated = append(w.unit.Generated, u.Generated...)
	}
}

// replace is for a generated object that remembers a custom resource which a
// host dropped. It puts the objects that the resource generates in its place, or
// the resource itself, where the author's text is asked for.
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
		for _, text := range texts {
			w.unit.Generated = append(w.unit.Generated, contract.Document(text))
		}
		return true
	}
	w.expand(o, texts)
	return true
}

// undoRender gives the object as it was before an earlier render: first without the
// fields that were set last, then, with undo, without what a function put in.
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

// undone appends an object's text without what an earlier render did to it.
func undone(dst []byte, o *krm.Object, undo contract.Undo) (text []byte, was bool, err error) {
	was, original, unended, err := undo(o)
	if err != nil || !was {
		return dst, was, err
	}
	from := len(dst)
	dst = o.Append(dst)
	if original == nil {
		if unended {
			dst = trimEnd(dst)
		}
		return dst, true, nil
	}
	// The original holds only as long as nobody has edited what it became.
	var author krm.Object
	if isObject, err := author.Read(original, krm.Document{End: len(original)}, o.Item(), o.Origin); err != nil || !isObject {
		return nil, true, multi.Errors(errors.New("the original kept in the record is not an object"), err)
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

// SyntaxRule is the rule of SyntaxFinding.
const SyntaxRule = "package/syntax"

// SyntaxFinding is about text that cannot be read, with the error of reading it.
func SyntaxFinding(err error, text []byte) krm.Finding {
	f := krm.Finding{Rule: SyntaxRule, Severity: krm.Error, Message: err.Error(), Hint: syntaxHint(text)}
	var at *krm.SyntaxError
	if errors.As(err, &at) {
		f.File, f.Line, f.Message, f.Hint = at.File, at.Line, at.Message, cmp.Or(at.Hint, f.Hint)
	}
	return f
}

var directive = regexp.MustCompile(`(?m)^%[A-Z]`)

// syntaxHint says how to fix text that is not YAML of the kind that manifests
// are.
func syntaxHint(text []byte) string {
	switch {
	case bytes.Contains(text, []byte("{{")):
		return "if it is a template (Helm, Go), render that first, or leave the file out with spec.exclude in armature.yaml"
	case directive.Match(text):
		return "remove the line that begins with %: manifests need no directives, and none are read"
	}
	return "correct the YAML"
}

const (
	consumedMark = "# " + keys.Consumed + ": "
	// ConsumedLine begins the lines of a consumed custom resource in a rendered file.
	ConsumedLine = "#| "
	unendedMark  = ", without a line feed at its end"
)

// appendConsumed writes a custom resource that was input as comments, so that
// the rendered file still shows it, can be rendered again, and gives it back.
func appendConsumed(dst, text []byte, ref krm.Ref) []byte {
	eol := lineEnding(text)
	dst = append(dst, consumedMark...)
	dst = append(dst, ref.Kind+" "+ref.Name...)
	dst = append(dst, " (armature uninject restores it"...)
	if len(text) > 0 && text[len(text)-1] != '\n' {
		dst = append(dst, unendedMark...)
	}
	dst = append(append(dst, ')'), eol...)
	for line := range bytes.Lines(text) {
		if len(bytes.TrimRight(line, "\r\n")) == 0 {
			dst = append(dst, ConsumedLine[:2]...)
		} else {
			dst = append(dst, ConsumedLine...)
		}
		dst = append(dst, line...)
	}
	return dst
}

// restoreConsumed undoes appendConsumed and appendKept. Lines that somebody added
// below are kept as they are. The origin of the text becomes that of the resource.
func restoreConsumed(text []byte, origin *krm.Origin) ([]byte, bool) {
	if document, ok := restoreKept(text); ok {
		origin.Kept = true
		return document, true
	}
	if !bytes.HasPrefix(text, []byte(consumedMark)) {
		return nil, false
	}
	origin.Line++
	var source []byte
	first, unended := true, false
	for line := range bytes.Lines(text) {
		if first {
			first, unended = false, bytes.Contains(line, []byte(unendedMark))
			continue
		}
		line, _ = uncomment(line)
		source = append(source, line...)
	}
	if unended {
		source = trimEnd(source)
	}
	return source, true
}

// uncomment gives a line of a consumed custom resource as its author wrote it, and other
// lines as they are.
func uncomment(line []byte) (written []byte, consumed bool) {
	if written, consumed = bytes.CutPrefix(line, []byte(ConsumedLine)); consumed {
		return written, true
	}
	return bytes.CutPrefix(line, []byte(ConsumedLine[:2]))
}
