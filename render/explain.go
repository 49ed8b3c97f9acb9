package render

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
)

// Explanation tells of a rendered file who set each of its lines.
type Explanation struct {
	File  string          `json:"file" yaml:"file"`
	Lines []ExplainedLine `json:"lines" yaml:"lines"`
}

// ExplainedLine is one line of the rendered file.
type ExplainedLine struct {
	// Line counts from 1 in the rendered file. Values that share a line, in flow
	// style, have an entry each, with their field in front of the text.
	Line int    `json:"line" yaml:"line"`
	Text string `json:"text" yaml:"text"`
	// Object and Field are what the line sets; empty for comments and separators.
	Object krm.Ref `json:"object,omitzero" yaml:"object,omitempty"`
	Field  string  `json:"field,omitempty" yaml:"field,omitempty"`
	// Function wrote the line; "author" where the author did.
	Function string `json:"function" yaml:"function"`
	// Source is the line of the author's file, 0 where a function wrote it.
	Source int `json:"source,omitempty" yaml:"source,omitempty"`
	// Because are the settings that the line would differ without; none where
	// the function writes it in any case.
	Because []identity.Provenance `json:"because,omitempty" yaml:"because,omitempty"`
	// Presence says that Because decide only whether the line is there.
	Presence bool `json:"presence,omitempty" yaml:"presence,omitempty"`
}

// Author stands for the function where no function wrote a line.
const Author = "author"

// ErrNotInPackage is a file that the package does not have, or that no render
// touches.
var ErrNotInPackage = errors.New("no manifest of the package")

// Selection picks what is explained.
type Selection struct {
	// Object is Kind/name; "" is every object of the file.
	Object string
	// Field is a path such as spec.template.spec.containers[web].ports; "" is all.
	Field string
}

// Explain renders one file of a source and tells who set each of its lines. It
// knows by trying: what a function did is the difference to a render without
// it, and what a setting decides is what differs where it is another. Nothing
// is explained where a finding is an error.
func Explain(src Source, opt Options, file string, pick Selection) (Explanation, []krm.Finding, error) {
	i := slices.IndexFunc(src.Files, func(f File) bool { return f.Path == file })
	if i < 0 || !manifest(file) {
		return Explanation{}, nil, fmt.Errorf("%s: %w", file, ErrNotInPackage)
	}
	s, err := newStages(src, opt)
	if err != nil {
		return Explanation{}, nil, err
	}
	if s.engine.asIs(&src.Files[i]) {
		return Explanation{}, nil, fmt.Errorf("%s: %w: it holds text for another tool, or spec.exclude leaves it alone", file, ErrNotInPackage)
	}
	e := explainer{stages: s, index: i, pick: pick, all: src, opt: opt}
	return e.explain()
}

// explainer works on one file.
type explainer struct {
	*stages
	index int
	pick  Selection
	all   Source // with no document blanked
	opt   Options

	source   []byte
	rendered []byte
	// lines are those of the file. Behind them stand the values that share a line,
	// in flow style, one each.
	lines  []ExplainedLine
	height int                         // of the file
	shared map[int]bool                // lines whose values stand behind
	inputs map[krm.Ref]identity.Inputs // of injected workloads
}

func (e *explainer) explain() (Explanation, []krm.Finding, error) {
	file := e.engine.src.Files[e.index].Path
	var err error
	if e.source, err = e.engine.read(e.index, nil); err != nil {
		return Explanation{}, nil, err
	}
	e.source = bytes.Clone(e.source)
	if e.pick.Object != "" {
		e.only(file)
	}
	e.watch()
	stages, err := e.file(e.index)
	if err != nil {
		return Explanation{}, nil, err
	}
	findings := append(slices.Clone(e.engine.findings), e.worker.findings...)
	if krm.Failed(findings) {
		krm.SortFindings(findings)
		return Explanation{}, findings, nil
	}
	e.rendered = stages.texts[len(stages.texts)-1]
	objects := e.attribute(stages)
	if err := e.causes(objects); err != nil {
		return Explanation{}, nil, err
	}
	if err := e.resources(objects); err != nil {
		return Explanation{}, nil, err
	}
	kept, err := e.selected(objects)
	return Explanation{File: file, Lines: kept}, findings, err
}

// watch looks at what the workloads get.
func (e *explainer) watch() {
	e.inputs = make(map[krm.Ref]identity.Inputs)
	e.engine.opt.Observe = func(u *contract.Unit) {
		if u.Injected() {
			e.inputs[u.Object.Ref] = u.Inputs()
		}
	}
}

// only blanks all documents but one, so that a stream of thousands costs no
// more than one of them. Lines stay where they are.
func (e *explainer) only(file string) {
	kind, name, _ := strings.Cut(e.pick.Object, "/")
	text := bytes.Clone(e.source)
	found := false
	walk(e.source, func(d krm.Document, item bool, line int) {
		var o krm.Object
		if isObject, err := o.Read(e.source, d, item, krm.Origin{File: file, Line: line}); err == nil && isObject && strings.EqualFold(o.Kind, kind) && o.Name == name {
			found = true
			return
		}
		if item {
			return // a list has to stay one
		}
		for i := d.Start; i < d.End; i++ {
			if text[i] != '\n' {
				text[i] = ' '
			}
		}
	})
	if !found {
		return // it may be one that a function makes
	}
	e.engine.src.Files = slices.Clone(e.engine.src.Files)
	e.engine.src.Files[e.index].Data = text
	e.engine.sums[e.index] = 0
}

// explained is an object of the rendered file.
type explained struct {
	*krm.Object
	from, to int // its lines in the file, from 0
	// spans are its values in the order of their lines.
	spans []span
}

// span is a value of a rendered object with the lines that it begins and ends on.
type span struct {
	field    string
	line     int // in the file, from 0
	to       int // behind its last line
	function int // of the rows, -1 for the author
	entry    int // among explainer.lines
	leaf     bool
	value    string
}

// attribute finds the function that set each value, and fills in the lines.
func (e *explainer) attribute(f filed) (objects []*explained) {
	for _, line := range bytes.Split(bytes.TrimSuffix(e.rendered, []byte{'\n'}), []byte{'\n'}) {
		e.lines = append(e.lines, ExplainedLine{Line: len(e.lines) + 1, Text: strings.TrimRight(string(line), "\r"), Function: Author})
	}
	e.height, e.shared = len(e.lines), make(map[int]bool)
	versions := f.versions()
	walk(e.rendered, func(d krm.Document, item bool, line int) {
		o := new(krm.Object)
		if isObject, err := o.Read(e.rendered, d, item, krm.Origin{File: f.path, Line: line}); err != nil || !isObject {
			return
		}
		x := &explained{Object: o, from: line - 1, to: line - 1 + lineCount(e.rendered[d.Start:d.End])}
		setter := setters(versions[o.Ref])
		visit(o.Root(), func(at krm.Node, field string) {
			if field != "" {
				_, known := setter[field]
				function := setter[field]
				if !known {
					function = -1
				}
				x.spans = append(x.spans, span{
					field: field, line: at.Line() - 1, entry: at.Line() - 1, function: function, leaf: !at.IsMap() && !at.IsList(), value: at.Text(),
				})
			}
		})
		x.close()
		e.fill(x)
		objects = append(objects, x)
	})
	e.sources()
	return objects
}

func lineCount(text []byte) int {
	n := bytes.Count(text, []byte{'\n'})
	if len(text) > 0 && text[len(text)-1] != '\n' {
		n++
	}
	return n
}

// setters gives, for each field of an object, the function that set the value
// which it has in the end; -1 for the author.
func setters(v *versions) map[string]int {
	setter := make(map[string]int)
	if v == nil {
		return setter
	}
	before := make(map[string]string)
	for i, text := range v.texts {
		var o krm.Object
		if isObject, err := o.Read(text, krm.Document{End: len(text)}, v.items[i], krm.Origin{}); err != nil || !isObject {
			continue
		}
		visit(o.Root(), func(at krm.Node, field string) {
			value := at.Text()
			if was, there := before[field]; !there || was != value {
				setter[field] = v.functions[i]
			}
			before[field] = value
		})
	}
	return setter
}

// visit goes through all values, scalars and collections, with their field paths.
func visit(n krm.Node, do func(at krm.Node, field string)) {
	var descend func(n krm.Node, path []byte)
	descend = func(n krm.Node, path []byte) {
		do(n, string(path))
		for key, value := range n.Fields() {
			descend(value, appendKey(path, key))
		}
		i := 0
		for item := range n.Items() {
			descend(item, appendItem(path, item, i))
			i++
		}
	}
	descend(n, nil)
}

// close gives each value its end: where the next value that is not inside of it
// begins.
func (x *explained) close() {
	for i := range x.spans {
		s := &x.spans[i]
		s.to = x.to
		for _, later := range x.spans[i+1:] {
			if !inside(later.field, s.field) {
				s.to = max(later.line, s.line+1)
				break
			}
		}
	}
}

// inside reports whether a field is another one, or below it.
func inside(field, of string) bool {
	if of == "" {
		return true
	}
	rest, ok := strings.CutPrefix(field, of)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// lineOwner gives each line the value that it is known by. A line that begins
// with several values, such as the dash of an item with its first field, goes by
// the last of them.
func (x *explained) lineOwner() map[int]span {
	owner := make(map[int]span)
	for _, s := range x.spans {
		owner[s.line] = s
		for line := s.line + 1; s.leaf && line < s.to; line++ {
			owner[line] = s
		}
	}
	return owner
}

// share gives values that stand on one line, in flow style, a line each.
func (e *explainer) share(x *explained) {
	leaves := make(map[int]int)
	for _, s := range x.spans {
		if s.leaf {
			leaves[s.line]++
		}
	}
	for i := range x.spans {
		if s := &x.spans[i]; s.leaf && leaves[s.line] > 1 {
			s.entry = len(e.lines)
			e.shared[s.line] = true
			e.lines = append(e.lines, ExplainedLine{
				Line: s.line + 1, Text: s.field + ": " + strconv.Quote(s.value), Object: x.Ref, Field: s.field, Function: e.function(*s),
			})
		}
	}
}

func (e *explainer) function(s span) string {
	if s.function < 0 {
		return Author
	}
	return e.rows[s.function].Name
}

// fill writes what is known of the object's values into their lines.
func (e *explainer) fill(x *explained) {
	for line, s := range x.lineOwner() {
		if line < e.height {
			l := &e.lines[line]
			l.Object, l.Field, l.Function = x.Ref, s.field, e.function(s)
		}
	}
	e.share(x)
	// Comments and apiVersion lines of a generated object are its function's.
	for line := x.from; line < x.to && line < e.height; line++ {
		if e.lines[line].Field == "" && len(x.spans) > 0 && x.spans[0].function >= 0 {
			e.lines[line].Function = e.rows[x.spans[0].function].Name
		}
	}
	if x.from > 0 && len(x.spans) > 0 && x.spans[0].function >= 0 && strings.HasPrefix(e.lines[x.from-1].Text, "---") {
		e.lines[x.from-1].Function = e.rows[x.spans[0].function].Name
	}
}

// sources gives the author's lines their numbers in the author's file: in the
// same order, the next line with the same text. A file that was rendered before
// has them where they are.
func (e *explainer) sources() {
	defer func() {
		for i := e.height; i < len(e.lines); i++ {
			if l := &e.lines[i]; l.Function == Author {
				l.Source = e.lines[l.Line-1].Source
			}
		}
	}()
	same := bytes.Equal(e.rendered, e.source)
	source := bytes.Split(bytes.TrimSuffix(e.source, []byte{'\n'}), []byte{'\n'})
	at := 0
	for i := range e.height {
		l := &e.lines[i]
		if l.Function != Author && !e.shared[i] {
			continue
		}
		if same {
			l.Source = i + 1
			continue
		}
		if e.shared[i] {
			at = e.sharedSource(l, source, at)
			continue
		}
		for j := at; j < len(source); j++ {
			text := strings.TrimRight(string(source[j]), "\r")
			if text == l.Text || strings.TrimPrefix(l.Text, consumedLine) == text {
				l.Source, at = j+1, j+1
				break
			}
		}
	}
}

// sharedSource finds the author's line of one in flow style, which functions
// have added to: the next one that begins alike. It gives where to go on.
func (e *explainer) sharedSource(l *ExplainedLine, source [][]byte, at int) int {
	for j := at; j < len(source); j++ {
		key, _, _ := strings.Cut(string(source[j]), ":")
		if strings.TrimSpace(key) != "" && strings.HasPrefix(l.Text, key+":") {
			l.Source = j + 1
			return j + 1
		}
	}
	return at
}

// selected gives the lines that were asked for, in the order of the file.
func (e *explainer) selected(objects []*explained) ([]ExplainedLine, error) {
	keep := make([]bool, len(e.lines))
	var fields []string
	found := e.pick.Object == "" && e.pick.Field == ""
	for i := range keep {
		keep[i] = found
	}
	mark := func(from, to int) {
		for line := from; line < min(to, e.height); line++ {
			keep[line], found = true, true
		}
	}
	kind, name, _ := strings.Cut(e.pick.Object, "/")
	for _, x := range objects {
		made := x.Get("metadata", "annotations", identity.RenderedFor).Text()
		if e.pick.Object != "" && !(strings.EqualFold(x.Kind, kind) && x.Name == name) && (made != e.pick.Object || e.pick.Field != "") {
			continue
		}
		if e.pick.Field == "" {
			mark(x.from, x.to)
		}
		for _, s := range x.spans {
			if inside(s.field, e.pick.Field) {
				mark(s.line, s.to)
				keep[s.entry] = true
			}
			fields = append(fields, s.field)
		}
	}
	if !found && e.pick.Field == "" {
		return nil, fmt.Errorf("the rendered file has no object %s: write it as Kind/name", e.pick.Object)
	}
	if !found {
		return nil, fmt.Errorf("no object of the rendered file has %s%s", e.pick.Field, suggestion(neighbours(fields, e.pick.Field)))
	}
	var lines []ExplainedLine
	for i, l := range e.lines {
		if keep[i] && !(i < e.height && e.shared[i]) {
			lines = append(lines, l)
		}
	}
	slices.SortStableFunc(lines, func(a, b ExplainedLine) int { return a.Line - b.Line })
	return lines, nil
}

// neighbours gives the fields beside one that is not there, or else beside the
// nearest field around it.
func neighbours(fields []string, field string) (near []string) {
	for at := field; at != "" && len(near) == 0; at = parent(at) {
		for _, f := range fields {
			if parent(f) == parent(at) {
				near = append(near, f)
			}
		}
	}
	return near
}

// parent is the field that another one is in. A key that holds dots stands in
// brackets.
func parent(field string) string {
	if strings.HasSuffix(field, "]") {
		return field[:max(0, strings.LastIndexByte(field, '['))]
	}
	return field[:max(0, strings.LastIndexByte(field, '.'))]
}

func suggestion(near []string) string {
	slices.Sort(near)
	near = slices.Compact(near)
	if len(near) == 0 {
		return ": leave the field out to see them all"
	}
	return ": there is " + strings.Join(near[:min(len(near), 8)], ", ")
}

// causes tries every setting of the workloads and notes where the render differs.
func (e *explainer) causes(objects []*explained) error {
	if len(e.inputs) == 0 {
		return nil
	}
	baseline, err := e.tried(func(s identity.Settings) identity.Settings { return s })
	if err != nil {
		return err
	}
	provenance := make(map[krm.Ref]map[string]identity.Provenance)
	settings := make(map[string]identity.Setting)
	var order []string
	for ref, in := range e.inputs {
		provenance[ref] = make(map[string]identity.Provenance)
		for _, p := range in.Explain() {
			provenance[ref][p.Setting] = p
		}
		for _, x := range in.Settings.All() {
			if _, known := settings[x.Name]; !known {
				settings[x.Name] = x
				order = append(order, x.Name)
			}
		}
	}
	slices.Sort(order)
	for _, name := range order {
		other, err := e.tried(settings[name].Alter)
		if err != nil {
			return err
		}
		for _, x := range objects {
			if p, ok := provenance[e.workload(x)][name]; ok && !p.Derived {
				e.compare(x, baseline[x.Ref], other[x.Ref], p)
			}
		}
	}
	e.settle()
	return nil
}

// maxResources bounds how many custom resources are tried.
const maxResources = 64

// resources explains what no setting decides: it leaves out one custom resource
// after the other, those of the file itself and those that others share, and
// notes where the render differs.
func (e *explainer) resources(objects []*explained) error {
	if !slices.ContainsFunc(e.lines, e.unexplained) {
		return nil
	}
	e.lock()
	baseline, err := e.tried(nil)
	if err != nil {
		return err
	}
	candidates, err := e.candidates(baseline)
	if err != nil {
		return err
	}
	open := make([]bool, len(e.lines))
	for i, l := range e.lines {
		open[i] = e.unexplained(l)
	}
	for _, c := range candidates {
		without, err := e.without(c)
		if err != nil {
			return err
		}
		p := identity.Provenance{Setting: c.ref.Kind + " " + c.ref.Name, By: identity.Said(c.ref.Kind), File: e.all.Files[c.file].Path, Line: c.line}
		for _, x := range objects {
			e.compareUnexplained(x, baseline[x.Ref], without[x.Ref], p, open)
		}
	}
	return nil
}

// unexplained reports whether a function wrote a line for a reason that is not
// known yet. What the identity functions write without a reason has none.
func (e *explainer) unexplained(l ExplainedLine) bool {
	return len(l.Because) == 0 && l.Function != Author && e.reasons(l) != contract.Settings
}

// reasons says what decides the values of the function that wrote a line.
func (e *explainer) reasons(l ExplainedLine) contract.Reasons {
	i := slices.IndexFunc(e.rows, func(r functions.Row) bool { return r.Name == l.Function })
	return e.rows[i].Reasons
}

// lock explains digests by the lock beside the package.
func (e *explainer) lock() {
	if e.opt.Lock == nil {
		return
	}
	for i := range e.lines {
		if l := &e.lines[i]; e.unexplained(*l) && e.reasons(*l) == contract.Lock {
			l.Because = []identity.Provenance{{Setting: "images", By: "ImageLock", File: e.opt.Lock.Origin.File, Line: e.opt.Lock.Origin.Line}}
		}
	}
}

// candidate is a custom resource of the package.
type candidate struct {
	file, line int
	ref        krm.Ref
	start, end int
}

func (e *explainer) candidates(rendered map[krm.Ref]map[string]string) (found []candidate, err error) {
	for i, f := range e.all.Files {
		if e.engine.asIs(&f) {
			continue
		}
		data, err := content(e.all, f.Path)
		if err != nil {
			return nil, err
		}
		own := i == e.index
		if !own && !slices.ContainsFunc(e.engine.pkg.SharedKinds(), func(kind string) bool { return bytes.Contains(data, []byte("kind: "+kind)) }) {
			continue
		}
		walk(data, func(d krm.Document, item bool, line int) {
			ref, ok := refOf(data, d, item)
			_, stays := rendered[ref]
			if ok && !item && len(found) < maxResources && (own && !stays || slices.Contains(e.engine.pkg.SharedKinds(), ref.Kind)) {
				found = append(found, candidate{i, line, ref, d.Start, d.End})
			}
		})
	}
	return found, nil
}

// without renders the file in a package that lacks a resource.
func (e *explainer) without(c candidate) (map[krm.Ref]map[string]string, error) {
	src := e.all
	src.Files = slices.Clone(src.Files)
	data, err := content(e.all, src.Files[c.file].Path)
	if err != nil {
		return nil, err
	}
	data = bytes.Clone(data)
	for i := c.start; i < c.end; i++ {
		if data[i] != '\n' {
			data[i] = ' '
		}
	}
	src.Files[c.file].Data = data
	other, err := newStages(src, e.opt)
	if err != nil {
		return nil, err
	}
	text, err := other.render(e.index, other.rows, nil)
	return valuesOf(text), err
}

// compareUnexplained notes a resource as the cause of lines that no setting
// decides.
func (e *explainer) compareUnexplained(x *explained, was, other map[string]string, p identity.Provenance, open []bool) {
	for _, s := range x.spans {
		if s.function < 0 || s.entry >= len(e.lines) {
			continue
		}
		value, there := other[s.field]
		if there && value == was[s.field] {
			continue
		}
		for line := s.entry; line < max(s.entry+1, min(s.to, e.height)); line++ {
			if open[line] {
				e.because(line, p, !there)
			}
			if !s.leaf {
				break
			}
		}
	}
}

// workload is the one that an object is, or was made for.
func (e *explainer) workload(x *explained) krm.Ref {
	if _, ok := e.inputs[x.Ref]; ok {
		return x.Ref
	}
	made := x.Get("metadata", "annotations", identity.RenderedFor).Text()
	for ref := range e.inputs {
		if ref.Kind+"/"+ref.Name == made && ref.Namespace == x.Namespace {
			return ref
		}
	}
	return krm.Ref{}
}

// tried renders the file with other settings and gives the scalars of its objects.
func (e *explainer) tried(alter func(identity.Settings) identity.Settings) (map[krm.Ref]map[string]string, error) {
	text, err := e.render(e.index, e.rows, alter)
	if err != nil {
		return nil, err
	}
	return valuesOf(text), nil
}

func valuesOf(text []byte) map[krm.Ref]map[string]string {
	all := make(map[krm.Ref]map[string]string)
	walk(text, func(d krm.Document, item bool, line int) {
		var o krm.Object
		if isObject, err := o.Read(text, d, item, krm.Origin{}); err == nil && isObject {
			values := make(map[string]string)
			visit(o.Root(), func(at krm.Node, field string) { values[field] = at.Text() })
			all[o.Ref] = values
		}
	})
	return all
}

// compare notes a setting as the cause of the lines that differ with another
// value of it.
func (e *explainer) compare(x *explained, was, other map[string]string, p identity.Provenance) {
	for _, s := range x.spans {
		if s.function < 0 {
			continue
		}
		value, there := other[s.field]
		switch {
		case other == nil || !there:
			e.because(s.entry, p, true)
		case value == was[s.field]:
		case s.to-s.line > 1: // a text of many lines
			for _, c := range changedLines(was[s.field], value) {
				e.because(s.line+1+c.line, p, c.gone)
			}
		default:
			e.because(s.entry, p, false)
		}
	}
}

// because adds a cause to a line. Settings that decide its value count for more
// than those that decide whether it is there.
func (e *explainer) because(entry int, p identity.Provenance, presence bool) {
	if entry >= len(e.lines) || e.lines[entry].Function == Author {
		return
	}
	l := &e.lines[entry]
	switch {
	case len(l.Because) == 0:
		l.Presence = presence
	case presence && !l.Presence:
		return
	case !presence && l.Presence:
		l.Because, l.Presence = nil, false
	}
	if !slices.ContainsFunc(l.Because, func(b identity.Provenance) bool { return b.Setting == p.Setting }) {
		l.Because = append(l.Because, p)
	}
}

// settle leaves out what explains nothing: a line that is there because of many
// settings, all of them defaults, is there because its container is.
func (e *explainer) settle() {
	for i := range e.lines {
		l := &e.lines[i]
		slices.SortStableFunc(l.Because, func(a, b identity.Provenance) int {
			return strings.Compare(rank(a), rank(b))
		})
		if !l.Presence {
			continue
		}
		said := slices.DeleteFunc(slices.Clone(l.Because), func(p identity.Provenance) bool { return p.By == identity.ByDefault })
		if len(said) > 0 {
			l.Because = said
			continue
		}
		own := slices.DeleteFunc(slices.Clone(l.Because), func(p identity.Provenance) bool { return !strings.HasPrefix(p.Setting, "components.") })
		if len(own) > 0 {
			l.Because = own
		}
	}
}

// rank puts what somebody said before defaults.
func rank(p identity.Provenance) string {
	if p.By == identity.ByDefault {
		return "1 " + p.Setting
	}
	return "0 " + p.Setting
}

// changedLine is a line of a text, from 0, that another text does not have at
// its place.
type changedLine struct {
	line int
	gone bool // nothing stands in its place
}

// changedLines compares by a longest common subsequence. As many lines for as
// many are other values of the same; otherwise lines have gone.
func changedLines(was, is string) (changed []changedLine) {
	a, b := strings.Split(strings.TrimSuffix(was, "\n"), "\n"), strings.Split(strings.TrimSuffix(is, "\n"), "\n")
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	for i, j := 0, 0; i < len(a) || j < len(b); {
		fromA, fromB := i, j
		for i < len(a) || j < len(b) {
			if i < len(a) && j < len(b) && a[i] == b[j] {
				break
			}
			if j < len(b) && (i == len(a) || common[i][j+1] >= common[i+1][j]) {
				j++
			} else {
				i++
			}
		}
		for line := fromA; line < i; line++ {
			changed = append(changed, changedLine{line, i-fromA != j-fromB})
		}
		i, j = i+1, j+1
	}
	return changed
}

// cause gives a cause for people: outbound.port = 8080 (armature.yaml:7).
func cause(p identity.Provenance) string {
	place := "default"
	if p.File != "" {
		place = p.File
		if p.Line > 0 {
			place += ":" + strconv.Itoa(p.Line)
		}
	}
	return p.Setting + " (" + place + ")"
}

// Reason gives the causes of a line for people: "inject: inbound.port
// (armature.yaml:7)".
func (l *ExplainedLine) Reason() string {
	if l.Function == Author {
		if l.Source == 0 {
			return Author
		}
		return Author + ":" + strconv.Itoa(l.Source)
	}
	var words []string
	for _, p := range l.Because {
		words = append(words, cause(p))
	}
	if len(words) == 0 {
		return l.Function
	}
	if l.Presence {
		return l.Function + ": there by " + strings.Join(words, ", ")
	}
	return l.Function + ": " + strings.Join(words, ", ")
}
