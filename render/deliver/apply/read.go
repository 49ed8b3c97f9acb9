package apply

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/multi"
)

// Object is one object of a package, as in its rendered text.
type Object struct {
	*unstructured.Unstructured
	// File that contains the object, for messages; "-" is standard input.
	File string
	// Line of the file where the object starts, from 1; 0 if unknown.
	Line int
}

// Place returns the file and line of an object.
func (o Object) Place() string { return place(o.File, o.Line) }

func place(file string, line int) string {
	if line == 0 {
		return file
	}
	return fmt.Sprintf("%s:%d", file, line)
}

// Read decodes the objects of a rendered file. A List yields its items. A document that is not a
// Kubernetes object is an error. Empty documents are skipped.
func Read(file string, text []byte) (all []Object, err error) {
	documents := slices.Collect(krm.Documents(text))
	lines := linesOf(text, documents)
	var failed []error
	for i, d := range documents {
		objects, err := decode(file, text, d, lines[i])
		all = append(all, objects...)
		failed = append(failed, err)
	}
	return all, multi.Errors(failed...)
}

// linesOf returns the lines where parts of a text start. The parts are in order.
func linesOf(text []byte, parts []krm.Document) []int {
	lines, line, at := make([]int, len(parts)), 1, 0
	for i, p := range parts {
		line += bytes.Count(text[at:p.Start], []byte{'\n'})
		lines[i], at = line, p.Start
	}
	return lines
}

func decode(file string, text []byte, d krm.Document, line int) ([]Object, error) {
	data, err := yaml.YAMLToJSONStrict(text[d.Start:d.End])
	if err != nil {
		// Decode again, for an error that counts the lines of the file.
		_, err := yaml.YAMLToJSONStrict(append(bytes.Repeat([]byte{'\n'}, line-1),
			text[d.Start:d.End]...))
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if bytes.Equal(data, []byte("null")) {
		return nil, nil
	}
	at := place(file, line)
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(data); err != nil || u.GetAPIVersion() == "" {
		// The error contains the document, which may be a Secret.
		return nil, fmt.Errorf("%s: a document is not a Kubernetes object: apiVersion or kind is "+
			"missing, or metadata is not a map", at)
	}
	if items, has := u.Object["items"]; has && items == nil &&
		strings.HasSuffix(u.GetKind(), "List") {
		return nil, nil // a render consumed all items
	}
	if !u.IsList() {
		if u.GetName() == "" {
			return nil, fmt.Errorf("%s: %s has no metadata.name, which server-side apply needs", at,
				u.GetKind())
		}
		return []Object{{u, file, line}}, nil
	}
	var items []Object
	var add func(item runtime.Object) error
	add = func(item runtime.Object) error {
		o, ok := item.(*unstructured.Unstructured)
		if ok && o.IsList() {
			return o.EachListItem(add)
		}
		if !ok || o.GetName() == "" {
			return errors.New("an item of a list has no metadata.name")
		}
		items = append(items, Object{o, file, line})
		return nil
	}
	if err := u.EachListItem(add); err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	if parts, ok := krm.ListItems(text, d, false, krm.KindOf(text[d.Start:d.End])); ok &&
		len(parts.Items) == len(items) {
		for i, line := range linesOf(text, parts.Items) {
			items[i].Line = line
		}
	}
	return items, nil
}
