package inject

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/scalar"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/functions/sidecars"
)

// record is the content of keys.Injected.
type record struct {
	o *krm.Object
	// added are the names of the variables for the current container, and env is their text.
	added []string
	env   []byte

	Version string `json:"version"`
	// InitContainers and Volumes are names.
	InitContainers []string `json:"initContainers,omitempty"`
	Volumes        []string `json:"volumes,omitempty"`
	// Mounts names the application's containers.
	Mounts []string `json:"mounts,omitempty"`
	// Paths and Env are the other mounts and the variables of the application's containers, by
	// container.
	Paths map[string][]string `json:"paths,omitempty"`
	Env   map[string][]string `json:"env,omitempty"`
	// Fields are the fields that were set in mappings of the author.
	Fields []field `json:"fields,omitempty"`
	// PodAnnotations are keys on the pod template.
	PodAnnotations []string `json:"podAnnotations,omitempty"`
	// Created are paths of collections that did not exist before. Those of containers are written
	// "containers/<name>" for mounts and "env/<name>" for variables.
	Created []string `json:"created,omitempty"`
	// Emptied maps the paths of empty collections to their text.
	Emptied map[string]string `json:"emptied,omitempty"`
	krm.Kept
}

// field is a field that was set: serviceAccountName of the pod, or the value of the variable PORT
// of a container.
type field struct {
	// At is "serviceAccountName", or "env/<container>".
	At    string `json:"at"`
	Value string `json:"value"`
	// Was is the author's field, key and value, as it was written; it is empty if there was none.
	Was string `json:"was,omitempty"`
}

// setField sets a field of a mapping and replaces the author's, if it exists.
func (r *record) setField(mapping, authors krm.Node, f field, key string) (err error) {
	value := scalar.PlainText(f.Value)
	if authors.Exists() {
		f.Was, err = r.o.ReplaceField(authors, key, value)
	} else {
		_, err = r.o.Insert(mapping, nil, []byte(key+": "+value+"\n"), false)
	}
	r.Fields = append(r.Fields, f)
	return err
}

// insert adds entries to a collection, which the record calls name.
func (r *record) insert(parent krm.Node, keys []string, name string, text []byte,
	first bool) error {
	if len(text) == 0 {
		return nil
	}
	done, err := r.o.Insert(parent, keys, text, first)
	r.note(done, name)
	return err
}

// note records an insertion.
func (r *record) note(done krm.Insertion, name string) {
	if done.Created {
		r.Created = append(r.Created, name)
	}
	if done.Was != "" {
		if r.Emptied == nil {
			r.Emptied = make(map[string]string)
		}
		r.Emptied[name] = done.Was
	}
}

// containerPath prefixes a container's mounts in Created and Emptied, and envPath its variables.
const (
	containerPath = "containers/"
	envPath       = "env/"
)

// appendQuoted writes the record as the inside of a single-quoted YAML scalar.
func (r *record) appendQuoted(dst []byte) []byte {
	text := bytes.NewBuffer(dst)
	from := len(dst)
	encoder := json.NewEncoder(text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(r); err != nil {
		panic(err) // strings always marshal
	}

	dst = bytes.TrimSuffix(text.Bytes(), []byte("\n"))
	if bytes.IndexByte(dst[from:], '\'') < 0 {
		return dst
	}
	return append(dst[:from], bytes.ReplaceAll(dst[from:], []byte("'"), []byte("''"))...)
}

// Uninject removes the injected fields in the record of o; see krm.Object.Undo.
func Uninject(o *krm.Object) (was bool, original []byte, unended bool, err error) {
	var r record
	return o.Undo(keys.Injected, " and what was injected", &r, &r.Kept,
		func() error { return r.remove(o) })
}

// remove removes the fields in the record. A collection that the record created is removed as a
// whole unless the author has added to it.
func (r *record) remove(o *krm.Object) error {
	pod, ok := o.PodTemplate()
	if !ok {
		return fmt.Errorf("%s has no pod template any more", o.Ref)
	}
	spec := pod.Spec()
	out := removal{record: r}
	r.o = o
	called := func(names []string) func(krm.Node) bool {
		return func(n krm.Node) bool { return slices.Contains(names, n.Get("name").Text()) }
	}
	keyed := func(keys []string) func(krm.Node) bool {
		return func(n krm.Node) bool { return slices.Contains(keys, n.Key()) }
	}
	out.cut(spec.Get("initContainers"), r.created("initContainers"), called(r.InitContainers))
	out.reset(spec.Get(accountField), func(f *field) bool { return f.At == accountField })
	for c := range spec.Get("containers").Items() {
		out.container(c)
	}
	out.cut(spec.Get("volumes"), r.created("volumes"), called(r.Volumes))
	own := []string{keys.Injected}
	if pod.Path == "" { // a Pod's annotations are the workload's own
		own = append(own, r.PodAnnotations...)
	} else {
		note, above := r.created("podAnnotations"), r.created("podMetadata")
		if above != (krm.Note{}) {
			note = krm.Note{Created: above.Created + 1, Emptied: above.Emptied}
		}
		out.cut(pod.Template.Get("metadata", "annotations"), note, keyed(r.PodAnnotations))
	}
	out.cut(o.Get("metadata", "annotations"), r.created("annotations"), keyed(own))
	return multi.Errors(out.errs...)
}

// created returns the record's note of a collection.
func (r *record) created(name string) krm.Note {
	note := krm.Note{Emptied: r.Emptied[name]}
	if slices.Contains(r.Created, name) {
		note.Created = 1
	}
	return note
}

// removal removes the fields in a record from an object.
type removal struct {
	*record
	errs []error
}

func (x *removal) cut(n krm.Node, note krm.Note, injected func(krm.Node) bool) {
	x.errs = append(x.errs, x.o.Take(n, injected, note))
}

// container removes mounts and variables from one of the author's containers.
func (x *removal) container(c krm.Node) {
	name := c.Get("name").Text()
	injected := func(m krm.Node) bool {
		path := m.Get("mountPath")
		return path.Is(sidecars.TraceMountPath) &&
			slices.Contains(x.Volumes, m.Get("name").Text()) ||
			x.has(x.Paths, name, path.Text())
	}
	mounts, env := x.created(containerPath+name), x.created(envPath+name)
	renamed := !slices.Contains(x.Mounts, name) // by the author
	if renamed {
		mounts.Created, env.Created = 1, 1
	}
	x.cut(c.Get("volumeMounts"), mounts, injected)
	x.reset(identity.PortVariable(c).Get("value"),
		func(f *field) bool { return f.At == envPath+name || renamed && f.At != accountField })
	if len(x.Env) > 0 {
		x.cut(c.Get("env"), env, func(v krm.Node) bool { return x.set(name, v) })
	}
}

// reset restores a field in the record. A field that was changed since keeps its new value.
func (x *removal) reset(n krm.Node, at func(*field) bool) {
	i := slices.IndexFunc(x.Fields, func(f field) bool { return at(&f) })
	switch {
	case i < 0 || !n.Is(x.Fields[i].Value):
	case x.Fields[i].Was == "":
		x.errs = append(x.errs, x.o.RemoveField(n))
	default:
		x.errs = append(x.errs, x.o.RestoreField(n, x.Fields[i].Was))
	}
}
