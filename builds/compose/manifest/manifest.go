// Package manifest reads AgentBuilds, templates and steps from files, and validates AgentBuilds
// with the shipped CRD as an API server would: schema, defaults and CEL rules.
package manifest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/builds/failure/findings"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
)

// maxFile is the limit of a file in bytes: a larger one is not a manifest.
const maxFile = 8 << 20

// Build is an AgentBuild and its place.
type Build struct {
	*api.AgentBuild
	// Place is the file and the line of the document.
	Place finding.Place

	doc document
}

// document is one object of a file.
type document struct {
	file string
	kind metav1.TypeMeta
	text []byte
	root *yamlv3.Node
}

// Builds reads the AgentBuilds of a file and ignores other documents. A file without AgentBuilds is
// an error.
func Builds(file string, data []byte, group string) ([]Build, error) {
	schema, err := shippedSchema()
	if err != nil {
		return nil, err
	}
	return each(file, data, api.Kind, func(d document) (Build, error) {
		if want := api.GroupVersion(group).String(); d.kind.APIVersion != want {
			return Build{}, d.bad("apiVersion", "use "+want+", or name the group with --api-group",
				"is %q", d.kind.APIVersion)
		}
		build, err := schema.read(d)
		return Build{AgentBuild: build, Place: d.at(""), doc: d}, err
	})
}

// each reads the objects of a kind with read. A file without any is an error.
func each[T any](file string, data []byte, kind string,
	read func(document) (T, error)) (out []T, err error) {
	docs, err := split(file, data)
	if err != nil {
		return nil, err
	}
	var problems []error
	for _, d := range docs {
		if d.kind.Kind != kind {
			continue
		}
		one, err := read(d)
		problems = append(problems, err)
		if err == nil {
			out = append(out, one)
		}
	}
	if len(problems) == 0 {
		return nil, finding.Place{File: file}.Fault(api.ReasonInvalidBuild, "holds no "+kind,
			"use a file with kind: "+kind)
	}
	return out, findings.Join(problems...)
}

// bad returns a finding about a field.
func (d document) bad(path, hint, format string, args ...any) error {
	reason := api.ReasonInvalidBuild
	if d.kind.Kind == "ConfigMap" {
		reason = api.ReasonInvalidTemplate
	}
	return d.at(path).Fault(reason, fmt.Sprintf(format, args...), hint)
}

func (d document) at(fieldPath string) finding.Place {
	line, node := d.root.Line, d.root
	for _, part := range strings.FieldsFunc(fieldPath,
		func(r rune) bool { return strings.ContainsRune(".[]", r) }) {
		next, at := step(node, part)
		if next == nil {
			break
		}
		node, line = next, at
	}
	return finding.Place{File: d.file, Line: line, Field: fieldPath}
}

func step(node *yamlv3.Node, part string) (*yamlv3.Node, int) {
	switch node.Kind {
	case yamlv3.SequenceNode:
		if i, err := strconv.Atoi(part); err == nil && i >= 0 && i < len(node.Content) {
			return node.Content[i], node.Content[i].Line
		}
		for _, item := range node.Content {
			if name, _ := step(item, "name"); name != nil && name.Value == part {
				return item, item.Line
			}
		}
	case yamlv3.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == part {
				return node.Content[i+1], node.Content[i].Line
			}
		}
	}
	return nil, 0
}

// split returns the objects of a file. The items of a List, as kubectl prints it, are separate
// objects. A document that is not YAML ends the reading.
func split(file string, data []byte) (out []document, err error) {
	bad := func(line int, message, hint string) ([]document, error) {
		return out, finding.Place{File: file, Line: line}.Fault(api.ReasonInvalidBuild, message,
			hint)
	}
	if len(data) > maxFile {
		return bad(0, fmt.Sprintf("has %d MiB, which is too large for a manifest", len(data)>>20),
			"give a smaller file")
	}
	for decoder := yamlv3.NewDecoder(bytes.NewReader(data)); ; {
		var root yamlv3.Node
		if err := decoder.Decode(&root); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			line, message := templates.YAMLProblem(err)
			return bad(max(line, 1), message, templates.YAMLHint)
		}
		objects := root.Content
		if items, _ := step(objects[0], "items"); items != nil &&
			items.Kind == yamlv3.SequenceNode &&
			strings.HasSuffix(textOf(objects[0], "kind"), "List") {
			objects = items.Content
		}
		for _, object := range objects {
			if object.ShortTag() == "!!null" {
				continue // the document has only comments
			}
			if object.Kind != yamlv3.MappingNode {
				return bad(object.Line, "is not an object", "begin it with apiVersion: and kind:")
			}
			d := document{file: file, root: object, kind: metav1.TypeMeta{
				APIVersion: textOf(object, "apiVersion"), Kind: textOf(object, "kind")}}
			if d.text, err = yamlv3.Marshal(object); err != nil {
				return bad(object.Line, "cannot be read: "+err.Error(), "fix the YAML")
			}
			out = append(out, d)
		}
	}
}

// textOf returns the text of a field, or "".
func textOf(object *yamlv3.Node, field string) string {
	if value, _ := step(object, field); value != nil {
		return value.Value
	}
	return ""
}

// unmarshal decodes a document strictly.
func (d document) unmarshal(into any, hint string) error {
	if line, key := krm.DuplicateKey(d.root); key != "" {
		twice := d
		twice.root = &yamlv3.Node{Line: line}
		return twice.bad("", "keep one of the two", "key %q occurs twice", key)
	}
	if err := yaml.UnmarshalStrict(d.text, into); err != nil {
		return d.bad("", hint, "%s", strings.ReplaceAll(
			strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "), "\n", " "))
	}
	return nil
}

// read decodes one AgentBuild with defaults, or returns all errors.
func (s *schema) read(d document) (*api.AgentBuild, error) {
	object := map[string]any{}
	if err := d.unmarshal(&object, "fix the YAML"); err != nil {
		return nil, err
	}
	problems := d.metadata(object)
	for _, unknown := range pruning.PruneWithOptions(runtime.DeepCopyJSON(object), s.Structural,
		true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}) {
		problems = append(problems, d.bad(unknown, text.UnknownField(api.AgentBuild{}, unknown,
			"correct the spelling or remove it"), "is not a known field"))
	}
	problems = append(problems, s.judge(d, object)...)
	if len(problems) > 0 {
		return nil, findings.Join(problems...)
	}
	build := &api.AgentBuild{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, build); err != nil {
		return nil, d.bad("", "use the types in docs/builds.md", "%v", err)
	}
	return build, nil
}

// metadata returns errors about metadata that an API server would refuse or drop silently.
func (d document) metadata(object map[string]any) (out []error) {
	bad := func(path, hint, format string, args ...any) {
		out = append(out, d.bad(path, hint, format, args...))
	}
	data, err := json.Marshal(object["metadata"])
	if err != nil {
		bad("metadata", "fix the metadata", "%v", err)
		return out
	}
	var meta metav1.ObjectMeta
	unknown, err := kjson.UnmarshalStrict(data, &meta)
	if err != nil {
		bad("metadata", "use the types of the Kubernetes API", "%s",
			strings.TrimPrefix(err.Error(), "json: "))
		return out
	}
	for _, u := range unknown {
		if at, ok := u.(interface{ FieldPath() string }); ok {
			bad("metadata."+at.FieldPath(), text.UnknownField(meta, at.FieldPath(),
				"correct the spelling or remove it"), "is not a known field")
		}
	}
	switch {
	case meta.Name == "" && meta.GenerateName != "":
		bad("metadata.generateName", "use name",
			"generates a new name each time, so the build could not be found again")
	case meta.Name == "":
		bad("metadata.name", "name the build", "is missing")
	}
	meta.Name = cmp.Or(meta.Name, "x")
	meta.Namespace = cmp.Or(meta.Namespace, "x") // the command or the context sets it
	for _, e := range apivalidation.ValidateObjectMeta(&meta, true,
		apivalidation.NameIsDNSSubdomain, field.NewPath("metadata")) {
		bad(e.Field, "correct it: the API server would refuse it", "%q: %s", fmt.Sprint(e.BadValue),
			e.Detail)
	}
	return out
}
