// Package manifest reads AgentBuilds, templates and steps from files, and judges
// AgentBuilds with the shipped CRD as an API server would: schema, defaults and
// CEL rules.
package manifest

import (
	"bytes"
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
	"github.com/armature-dev/armature/builds/failure/findings"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
)

// maxFile is the largest file that is read: a larger one is not a manifest.
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

// Builds reads the AgentBuilds of a file; other documents are passed over. A
// file without any is an error.
func Builds(file string, data []byte, group string) ([]Build, error) {
	docs, err := split(file, data)
	if err != nil {
		return nil, err
	}
	schema, err := shippedSchema()
	if err != nil {
		return nil, err
	}
	var out []Build
	var problems []error
	for _, d := range docs {
		if d.kind.Kind != api.Kind {
			continue
		}
		if d.kind.APIVersion != api.GroupVersion(group).String() {
			problems = append(problems, d.at("").At("apiVersion").Fault(api.ReasonInvalidBuild,
				fmt.Sprintf("is %q", d.kind.APIVersion),
				"use "+api.GroupVersion(group).String()+", or name the group with --api-group"))
			continue
		}
		build, err := schema.read(d)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		out = append(out, Build{AgentBuild: build, Place: d.at(""), doc: d})
	}
	if len(out) == 0 && len(problems) == 0 {
		return nil, finding.Place{File: file}.Fault(api.ReasonInvalidBuild, "holds no AgentBuild",
			"use a file with kind: AgentBuild")
	}
	return out, findings.Join(problems...)
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

// split a file into its objects. The items of a List, as kubectl prints it, are objects
// of their own. What is behind text that is not YAML is not read.
func split(file string, data []byte) (out []document, err error) {
	bad := func(line int, message, hint string) ([]document, error) {
		return out, finding.Place{File: file, Line: line}.Fault(api.ReasonInvalidBuild, message, hint)
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
			line, message := 1, strings.TrimPrefix(err.Error(), "yaml: ")
			if m := yamlLine().FindStringSubmatch(message); m != nil {
				line, _ = strconv.Atoi(m[1])
				message = strings.TrimPrefix(message, m[0])
			}
			return bad(line, "cannot be read: "+message,
				"fix the YAML; tabs and unclosed quotes are common causes")
		}
		objects := root.Content
		if items, _ := step(objects[0],
			"items"); strings.HasSuffix(textOf(objects[0], "kind"), "List") && items != nil &&
			items.Kind == yamlv3.SequenceNode {
			objects = items.Content
		}
		for _, object := range objects {
			if object.ShortTag() == "!!null" {
				continue // comments alone
			}
			if object.Kind != yamlv3.MappingNode {
				return bad(object.Line, "is not an object", "begin it with apiVersion: and kind:")
			}
			d := document{file: file,
				kind: metav1.TypeMeta{APIVersion: textOf(object, "apiVersion"),
					Kind: textOf(object, "kind")}, root: object}
			if d.text, err = yamlv3.Marshal(object); err != nil {
				return bad(object.Line, "cannot be read: "+err.Error(), "fix the YAML")
			}
			out = append(out, d)
		}
	}
}

// text of a field, "" for none.
func textOf(object *yamlv3.Node, field string) string {
	if value, _ := step(object, field); value != nil {
		return value.Value
	}
	return ""
}

var yamlLine = text.Pattern(`^line (\d+): `)

// read decodes one AgentBuild with defaults, or returns all errors.
func (s *schema) read(d document) (*api.AgentBuild, error) {
	var problems []error
	bad := func(path, message, hint string) {
		problems = append(problems, d.at(path).Fault(api.ReasonInvalidBuild, message, hint))
	}
	if err := d.doubled(); err != nil {
		return nil, err
	}
	object := map[string]any{}
	if err := yaml.UnmarshalStrict(d.text, &object); err != nil {
		bad("",
			strings.ReplaceAll(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "),
				"\n", " "), "fix the YAML")
		return nil, findings.Join(problems...)
	}
	problems = append(problems, d.metadata(object)...)
	pruned := pruning.PruneWithOptions(runtime.DeepCopyJSON(object), s.Structural, true,
		structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	for _, unknown := range pruned {
		bad(unknown, "is not a known field",
			text.UnknownField(api.AgentBuild{}, unknown, "correct the spelling or remove it"))
	}
	for _, f := range s.judge(object) {
		bad(f.path, f.message, f.hint)
	}
	if len(problems) > 0 {
		return nil, findings.Join(problems...)
	}
	build := &api.AgentBuild{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, build); err != nil {
		bad("", err.Error(), "use the types in docs/builds.md")
		return nil, findings.Join(problems...)
	}
	return build, findings.Join(problems...)
}

// metadata that an API server would refuse, or drop without a word.
func (d document) metadata(object map[string]any) []error {
	var out []error
	bad := func(path, message, hint string) {
		out = append(out, d.at(path).Fault(api.ReasonInvalidBuild, message, hint))
	}
	data, err := json.Marshal(object["metadata"])
	if err != nil {
		bad("metadata", err.Error(), "fix the metadata")
		return out
	}
	var meta metav1.ObjectMeta
	unknown, err := kjson.UnmarshalStrict(data, &meta)
	if err != nil {
		bad("metadata", strings.TrimPrefix(err.Error(), "json: "),
			"use the types of the Kubernetes API")
		return out
	}
	for _, u := range unknown {
		if at, ok := u.(interface{ FieldPath() string }); ok {
			bad("metadata."+at.FieldPath(), "is not a known field",
				text.UnknownField(meta, at.FieldPath(), "correct the spelling or remove it"))
		}
	}
	switch {
	case meta.Name == "" && meta.GenerateName != "":
		bad("metadata.generateName",
			"generates a new name each time, so the build could not be found again", "use name")
	case meta.Name == "":
		bad("metadata.name", "is missing", "name the build")
	}
	if meta.Name == "" {
		meta.Name = "x"
	}
	if meta.Namespace == "" {
		meta.Namespace = "x" // the command's or the context's
	}
	for _, e := range apivalidation.ValidateObjectMeta(&meta, true,
		apivalidation.NameIsDNSSubdomain, field.NewPath("metadata")) {
		bad(e.Field, fmt.Sprintf("%q: %s", fmt.Sprint(e.BadValue), e.Detail),
			"correct it: the API server would refuse it")
	}
	return out
}

// doubled is the first key that occurs twice in one mapping.
func (d document) doubled() error {
	line, key := krm.DuplicateKey(d.root)
	if key == "" {
		return nil
	}
	return finding.Place{File: d.file, Line: line}.Fault(api.ReasonInvalidBuild,
		fmt.Sprintf("key %q occurs twice", key), "keep one of the two")
}
