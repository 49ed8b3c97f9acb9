// Package krm is the contract between the render engine and its functions: objects that remember
// where their author wrote them, the pod template of any workload kind, and edits that touch only
// the bytes they change.
package krm

import (
	"bytes"
	"fmt"
	"iter"
	"strings"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/workload"
)

// Origin says where the author wrote an object.
type Origin struct {
	// File is relative to the package's root, with slashes; "-" is standard input.
	File string
	// Line is where the object's text starts, counting from 1.
	Line int
	// Kept says that the text is kept inside a value of the file, so that only its first line is
	// known.
	Kept bool
}

// Annotations in which the hosts of KRM functions record the file of an item, and its index in that
// file, from 0.
const (
	PathAnnotation  = "config.kubernetes.io/path"
	IndexAnnotation = "config.kubernetes.io/index"
	// OriginAnnotation is kustomize's with buildMetadata: [originAnnotations]: YAML with the path
	// of a resource, or configuredIn of its generator.
	OriginAnnotation = "config.kubernetes.io/origin"
)

// Object is one Kubernetes object as text, with read access to its structure. Edits are collected
// and applied by Append; until then the object reads as before.
type Object struct {
	finding.Ref
	Origin Origin

	tree       tree
	start, end int  // the object's lines in tree.src
	item       bool // an item of a list: the author's first line starts with its dash

	// rewritten says that kyaml wrote the text, since the scanner was not certain of the author's;
	// why is the scanner's reason.
	rewritten bool
	unlined   bool // its lines are not the lines of its file
	moved     bool // only its first line is known
	why       string
	author    []byte // the author's text, if rewritten
	frozen    string // why it can be read, but not edited; "" if it can be edited

	edits   []edit
	text    []byte  // of the edits
	inFlow  bool    // some of them are between brackets
	removed []int32 // entries of flow collections
	inline  bool
	eol     string
	cuts    []lineCut
}

// lineCut says how many lines of the author's file, from a line on, were removed from the text.
// The number is negative if lines were added before it.
type lineCut struct{ line, removed int }

// Read reads the object in src[d.Start:d.End] into o, reusing its memory. The caller sets dash if
// the text is an item of a list. For a document that holds no mapping, or no kind, Read returns
// isObject false and no error.
//
// The error names the fault in the YAML, with its line in the file.
func (o *Object) Read(src []byte, d Document, dash bool, origin Origin) (isObject bool, err error) {
	*o = Object{
		Origin: origin, start: d.Start, end: d.End, item: dash, moved: origin.Kept,
		tree: tree{src: src, nodes: o.tree.nodes}, edits: o.edits[:0], text: o.text[:0], eol: "\n",
		cuts: o.cuts[:0],
	}
	at, reason := valid(src[d.Start:d.End])
	switch reason {
	case invalidUTF8, controlCharacter:
		return false, o.unreadable(src[d.Start:d.End], at, reason)
	case "":
		reason, at = o.tree.scan(src, d.Start, d.End, dash)
	}
	if o.why = reason; reason == tooDeep {
		return false, o.syntaxError(at, tooDeep)
	}
	if o.why != "" {
		if err := o.rewrite(src[d.Start:d.End]); err != nil {
			return false, err
		}
	}
	o.eol = LineEnding(o.tree.src[o.start:o.end])
	root := o.Root()
	if !root.IsMap() {
		for item := range root.Items() {
			if item.Get("apiVersion").IsScalar() && item.Get("kind").IsScalar() &&
				item.Get("metadata").IsMap() {
				e := o.syntaxError(o.start,
					"a list of objects without a kind of its own, which kubectl refuses")
				e.Hint = "send them as the items of a List, or each as a document of its own"
				return false, e
			}
		}
		return false, nil
	}
	o.APIVersion, o.Kind = root.Get("apiVersion").Text(), root.Get("kind").Text()
	metadata := root.Get("metadata")
	o.Name, o.Namespace = metadata.Get("name").Text(), metadata.Get("namespace").Text()
	o.takeHostFile()
	return o.Kind != "" && o.APIVersion != "", nil
}

// takeHostFile sets the file of an item to the one that its host names. The line stays unknown: the
// lines of the host's list are not the lines of the file.
func (o *Object) takeHostFile() {
	if !o.item {
		return
	}
	if file := o.hostFile(); file != "" {
		o.Origin.File, o.unlined = file, true
	}
}

// hostFile returns the file of an item according to its host, or "".
func (o *Object) hostFile() string {
	if file, ok := o.Annotation(PathAnnotation); ok {
		return file
	}
	origin, _ := o.Annotation(OriginAnnotation)
	made := ""
	for line := range strings.Lines(origin) {
		key, file, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "path":
			return strings.Trim(file, `"'`)
		case "configuredIn":
			made = strings.Trim(file, `"'`)
		}
	}
	return made
}

// ReadMade reads an object that was generated from another one. Its findings have the first line of
// that one.
func (o *Object) ReadMade(text []byte, from *Object) (isObject bool, err error) {
	isObject, err = o.Read(text, Document{End: len(text)}, false, from.Origin)
	o.moved, o.unlined = true, from.unlined
	return isObject, err
}

// Clone returns a copy, without edits, that outlives the text that o was read from.
func (o *Object) Clone() *Object {
	c := new(Object)
	text := bytes.Clone(o.Bytes())
	if isObject, err := c.Read(text, Document{End: len(text)}, o.item, o.Origin); err != nil ||
		!isObject {
		panic(fmt.Sprintf("krm: an object that was read once cannot be read again: %v", err))
	}
	return c
}

// SyntaxError reports text that is not YAML, or not YAML that Kubernetes accepts.
type SyntaxError struct {
	File    string
	Line    int
	Message string
	Hint    string // "" where only the text itself may say more
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Message)
}

func (o *Object) syntaxError(at int, message string) *SyntaxError {
	line := o.Origin.Line + bytes.Count(o.tree.src[o.start:at], []byte{'\n'})
	return &SyntaxError{File: o.Origin.File, Line: line, Message: message}
}

// Root returns the object itself as a Node.
func (o *Object) Root() Node { return Node{o, 0, true} }

// Get follows keys from the root.
func (o *Object) Get(keys ...string) Node {
	t := &o.tree
	if len(keys) < 2 || keys[0] != "metadata" {
		return o.Root().Get(keys...)
	}
	metadata := o.remembered(&t.metadata, o.Root(), "metadata")
	if keys[1] != "annotations" {
		return metadata.Get(keys[1:]...)
	}
	return o.remembered(&t.annotations, metadata, "annotations").Get(keys[2:]...)
}

// remembered returns a value and caches its index.
func (o *Object) remembered(place *int32, in Node, key string) Node {
	if *place == 0 {
		*place = -1
		if n := in.Get(key); n.in {
			*place = n.i
		}
	}
	if *place < 0 {
		return Node{}
	}
	return Node{o, *place, true}
}

// Group returns the API group of the object, "" for the core group.
func (o *Object) Group() string {
	group, _, found := strings.Cut(o.APIVersion, "/")
	if !found {
		return ""
	}
	return group
}

// Bytes returns the author's text of the object: whole lines of its file.
func (o *Object) Bytes() []byte {
	if o.rewritten {
		return o.author
	}
	return o.tree.src[o.start:o.end]
}

// Unended reports whether the author's text ends without a line feed.
func (o *Object) Unended() bool {
	text := o.Bytes()
	return len(text) > 0 && text[len(text)-1] != '\n'
}

// Rewritten reports whether the text went through kyaml, and why.
func (o *Object) Rewritten() (why string, rewritten bool) { return o.why, o.rewritten }

// Annotation returns an annotation of the object.
func (o *Object) Annotation(key string) (string, bool) {
	return entry(o.Get("metadata", "annotations"), key)
}

func entry(m Node, key string) (string, bool) {
	n := m.Get(key)
	return n.Text(), n.Exists()
}

// Finding returns a finding about a value of the object.
func (o *Object) Finding(severity finding.Severity, rule string, at Node,
	message, hint string) finding.Finding {
	line := o.Origin.Line
	if at.Exists() {
		line = at.Line()
	}
	if o.unlined {
		line = 0
	}
	return finding.Finding{
		Rule: rule, Severity: severity, Message: message, Hint: hint,
		Place: finding.Place{File: o.Origin.File, Line: line, Field: at.Path(), Object: o.Ref},
	}
}

// PodTemplate reads the pod template of every kind that runs pods.
type PodTemplate struct {
	// Template holds metadata and spec; for a Pod it is the Pod itself.
	Template Node
	// Path leads to Template: "spec.template".
	Path string

	spec Node
}

// Spec returns the pod's spec.
func (p PodTemplate) Spec() Node { return p.spec }

// Containers yields the init containers and then the others, each with the name of its list.
func (p PodTemplate) Containers() iter.Seq2[string, Node] {
	return func(yield func(string, Node) bool) {
		for _, list := range [...]string{"initContainers", "containers"} {
			for c := range p.Spec().Get(list).Items() {
				if !yield(list, c) {
					return
				}
			}
		}
	}
}

// Metadata returns a field of the metadata of an object and of its pod template, which are the same
// in a Pod.
func (p PodTemplate) Metadata(o *Object, field string) []Node {
	own := o.Get("metadata", field)
	if p.Path == "" {
		return []Node{own}
	}
	return []Node{own, p.Template.Get("metadata", field)}
}

// Label returns a label of the pod template.
func (p PodTemplate) Label(key string) (string, bool) {
	return entry(p.Template.Get("metadata", "labels"), key)
}

// Annotation returns an annotation of the pod template.
func (p PodTemplate) Annotation(key string) (string, bool) {
	return entry(p.Template.Get("metadata", "annotations"), key)
}

// PodTemplate returns the pod template of a workload, whose kind is in functions/workload or has
// containers at one of the same places.
func (o *Object) PodTemplate() (PodTemplate, bool) {
	if o.Kind == "Pod" && o.APIVersion == "v1" {
		spec := o.Get("spec")
		return PodTemplate{Template: o.Root(), spec: spec}, spec.Get("containers").IsList()
	}
	t, templates := &o.tree, workload.Templates()
	for i := 0; i < len(templates) && t.pod == 0; i++ {
		if n := o.Get(templates[i].Keys...); n.Get("spec", "containers").IsList() {
			t.pod, t.podAt = n.i, int8(i)
		}
	}
	if t.pod == 0 {
		t.pod = -1
	}
	if t.pod < 0 {
		return PodTemplate{}, false
	}
	template := Node{o, t.pod, true}
	return PodTemplate{template, templates[t.podAt].Path, template.Get("spec")}, true
}

// Contains reports whether the object contains a text.
func (o *Object) Contains(text string) bool {
	return bytes.Contains(o.tree.src[o.start:o.end], []byte(text))
}

// Edited reports whether edits wait to be applied.
func (o *Object) Edited() bool { return len(o.edits) > 0 }

// Item reports whether the object is an item of a list.
func (o *Object) Item() bool { return o.item }

// MapLines makes o, which was read from the text of another object with its edits applied, name the
// lines of that object's file.
func (o *Object) MapLines(from *Object) {
	o.cuts, o.moved = o.cuts[:0], o.moved || from.moved
	if from.rewritten {
		return
	}
	line := from.Origin.Line
	at := from.start
	src := from.tree.src
	for _, e := range from.edits {
		if e.at < at {
			continue // inside the text that an earlier edit replaces
		}
		line += bytes.Count(src[at:e.at], []byte{'\n'})
		removed := bytes.Count(src[e.at:e.end], []byte{'\n'})
		first := line
		if e.at > 0 && src[e.at-1] != '\n' {
			first++
		}
		if added := bytes.Count(from.text[e.from:e.to], []byte{'\n'}); added != removed {
			o.cuts = append(o.cuts, lineCut{first, removed - added})
		}
		line += removed
		at = e.end
	}
	o.cuts = append(o.cuts, from.cuts...)
}
