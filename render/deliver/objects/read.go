// Package objects reads the objects of rendered files as package apply needs them, each with the
// line of the author's text, and the images that they name.
package objects

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/go-multierror"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/apply"
)

// Decoder collects the objects of files and all errors in them.
type Decoder struct {
	// Name returns the name of a file for people.
	Name   func(file string) string
	all    []apply.Object
	failed *multierror.Error
}

// Objects returns the objects and all errors.
func (d *Decoder) Objects() ([]apply.Object, error) { return d.all, d.failed.ErrorOrNil() }

// Read adds the objects of a file.
func (d *Decoder) Read(file string, text []byte) {
	read, err := apply.Read(d.Name(file), text)
	d.all, d.failed = append(d.all, read...), multierror.Append(d.failed, err)
}

// Rendered adds the objects of a rendered file. They have the lines of the author's text: of the
// object, or of the resource from which it was generated.
func (d *Decoder) Rendered(src render.Source, file string, text []byte) error {
	written, err := Original(src, file)
	if err != nil {
		return err
	}
	from := len(d.all)
	d.Read(file, text)
	if !bytes.Equal(text, written) {
		authorLines(file, written, d.all[from:])
	}
	return nil
}

// authorLines sets the lines of a rendered file's objects to those of their author's text.
func authorLines(file string, written []byte, objects []apply.Object) {
	authored, _ := apply.Read(file, written) // the render reports errors in it
	lines := make(map[string]int)
	key := func(o apply.Object, name string) string { return o.GetNamespace() + " " + name }
	for _, o := range authored {
		lines[key(o, o.GetKind()+"/"+o.GetName())] = o.Line
	}
	for i := range objects {
		o := &objects[i]
		self := key(*o, o.GetKind()+"/"+o.GetName())
		if lines[self] == 0 { // generated; other objects may be generated from it
			lines[self] = lines[key(*o, o.GetAnnotations()[keys.RenderedFor])]
		}
		o.Line = lines[self]
	}
}

// Original returns a file as it was before the render.
func Original(src render.Source, file string) ([]byte, error) {
	for _, f := range src.Files {
		if f.Path == file && f.Data != nil {
			return f.Data, nil
		}
	}
	return src.Read(file, nil)
}

// Every decodes each document that kubectl would accept as an object, with or without a name. A
// document that cannot be read is an error, because another program may be able to read it.
func Every(file string, text []byte) (objects []apply.Object, err error) {
	line, counted := 1, 0
	for d := range krm.Documents(text) {
		line += bytes.Count(text[counted:d.Start], []byte{'\n'})
		counted = d.Start
		parts, err := values(text[d.Start:d.End])
		if err != nil {
			return objects, fmt.Errorf("line %d: %w", line, err)
		}
		for _, part := range parts {
			data, err := yaml.YAMLToJSONStrict(part)
			if err != nil {
				return objects, fmt.Errorf("line %d: %w", line, err)
			}
			u := &unstructured.Unstructured{}
			if err := json.Unmarshal(data, &u.Object); err != nil || u.GetKind() == "" ||
				u.GetAPIVersion() == "" {
				continue // for example a list of values
			}
			objects = append(objects, apply.Object{Unstructured: u, File: file, Line: line})
		}
	}
	return objects, nil
}

// values splits a document that another parser may read as several, because JSON needs no
// separator.
func values(document []byte) (parts [][]byte, err error) {
	if render.BeginsJSON(document) {
		for d := json.NewDecoder(bytes.NewReader(document)); err == nil; {
			var part json.RawMessage
			if err = d.Decode(&part); err == nil {
				parts = append(parts, part)
			}
		}
		if err == io.EOF {
			return parts, nil
		} // else it is YAML in flow style
	}
	d := kyaml.NewDecoder(bytes.NewReader(document))
	if d.Decode(new(kyaml.Node)) == nil && d.Decode(new(kyaml.Node)) != io.EOF {
		return nil, errors.New("something follows the document")
	}
	return [][]byte{document}, nil
}
