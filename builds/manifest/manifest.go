// Package manifest reads AgentBuilds, templates and steps from files, and judges
// AgentBuilds with the shipped CRD as an API server would: schema, defaults and
// CEL rules.
package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
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
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/krm"
)

// maxFile is the largest file that is read: a larger one is not a manifest.
const maxFile = 8 << 20

// Build is an AgentBuild and its place.
type Build struct {
	*api.AgentBuild
	// Place is the file and the line of the document.
	Place krm.Place

	doc document
}

// document is one object of a file.
type document struct {
	file string
	line int // on which it begins
	kind metav1.TypeMeta
	text []byte
	// root of the object; a line of it is above counted from 1.
	root  *yamlv3.Node
	above int
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
				fmt.Sprintf("is %q", d.kind.APIVersion), "use "+api.GroupVersion(group).String()+", or name the group with --api-group"))
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
		return nil, krm.Place{File: file}.Fault(api.ReasonInvalidBuild, "holds no AgentBuild", "give a file with kind: AgentBuild")
	}
	return out, compose.Join(problems...)
}

// at is the place of a field path.
func (d document) at(fieldPath string) krm.Place {
	line, node := d.line, d.root
	if node != nil && fieldPath != "" {
		for _, part := range strings.FieldsFunc(fieldPath, func(r rune) bool { return strings.ContainsRune(".[]", r) }) {
			next, at := step(node, part)
			if next == nil {
				break
			}
			node, line = next, d.above+at
		}
	}
	return krm.Place{File: d.file, Line: line, Field: fieldPath}
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

// separator of documents. Text behind --- on its line belongs to the next one.
var separator = krm.Pattern(`(?m)^(?:---|\.\.\.)(?:[ \t].*)?$`)

// split a file into its objects, with the line on which each begins. The items
// of a List, as kubectl prints it, are objects of their own.
func split(file string, data []byte) ([]document, error) {
	var out []document
	var problems []error
	if len(data) > maxFile {
		return nil, krm.Place{File: file}.Fault(api.ReasonInvalidBuild, fmt.Sprintf("has %d MiB, which is too large for a manifest", len(data)>>20), "give a smaller file")
	}
	data = bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n"))
	start := 0
	ends := append(separator().FindAllIndex(data, -1), []int{len(data), len(data)})
	for _, end := range ends {
		text := data[start:end[0]]
		above := bytes.Count(data[:start], []byte("\n"))
		start = end[1]
		if rest := bytes.TrimSpace(data[min(end[0]+3, end[1]):end[1]]); len(rest) > 0 && rest[0] != '#' {
			start = end[0] + 3
		}
		if len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		docs, err := read(file, text, above)
		if err != nil {
			problems = append(problems, err)
		}
		out = append(out, docs...)
	}
	return out, compose.Join(problems...)
}

// read one document, which begins below so many lines of the file.
func read(file string, text []byte, above int) ([]document, error) {
	bad := func(line int, message, hint string) ([]document, error) {
		return nil, krm.Place{File: file, Line: above + line}.Fault(api.ReasonInvalidBuild, message, hint)
	}
	var root yamlv3.Node
	err := yamlv3.Unmarshal(text, &root)
	d := document{file: file, line: above + 1, text: text, above: above}
	if err == nil && len(root.Content) > 0 && root.Content[0].Kind != yamlv3.MappingNode && root.Content[0].ShortTag() != "!!null" {
		return bad(root.Content[0].Line, "is not an object", "begin it with apiVersion: and kind:")
	}
	if err == nil {
		err = yaml.Unmarshal(text, &d.kind)
	}
	if err != nil {
		message := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "), "yaml: ")
		line := 1
		if m := yamlLine().FindStringSubmatch(message); m != nil {
			line, _ = strconv.Atoi(m[1])
			message = strings.TrimPrefix(message, m[0])
		}
		return bad(line, "cannot be read: "+message, "fix the YAML; tabs and unclosed quotes are common causes")
	}
	if len(root.Content) == 0 {
		return nil, nil // comments alone
	}
	d.root = root.Content[0]
	d.line = above + d.root.Line
	if !strings.HasSuffix(d.kind.Kind, "List") {
		return []document{d}, nil
	}
	items, _ := step(d.root, "items")
	if items == nil || items.Kind != yamlv3.SequenceNode {
		return []document{d}, nil
	}
	var out []document
	for _, item := range items.Content {
		one := document{file: file, line: above + item.Line, root: item, above: above}
		one.text, err = yamlv3.Marshal(item)
		if err == nil {
			err = yaml.Unmarshal(one.text, &one.kind)
		}
		if err != nil {
			return bad(item.Line, "cannot be read: "+err.Error(), "make each item of the List an object")
		}
		out = append(out, one)
	}
	return out, nil
}

var yamlLine = krm.Pattern(`^line (\d+): `)

// read decodes one AgentBuild with defaults, or returns all errors.
func (s *schema) read(d document) (*api.AgentBuild, error) {
	var problems []error
	bad := func(path, message, hint string) {
		problems = append(problems, d.at(path).Fault(api.ReasonInvalidBuild, message, hint))
	}
	d.doubled(&problems)
	if len(problems) > 0 {
		return nil, compose.Join(problems...)
	}
	object := map[string]any{}
	if err := yaml.UnmarshalStrict(d.text, &object); err != nil {
		bad("", strings.ReplaceAll(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "), "\n", " "), "fix the YAML")
		return nil, compose.Join(problems...)
	}
	problems = append(problems, d.metadata(object)...)
	pruned := pruning.PruneWithOptions(runtime.DeepCopyJSON(object), s.Structural, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	for _, unknown := range pruned {
		bad(unknown, "is not a known field", "correct the spelling or remove it")
	}
	s.settle(object)
	s.judge("", object, func(f fault) { bad(f.path, f.message, f.hint) })
	if len(problems) > 0 {
		return nil, compose.Join(problems...)
	}
	build := &api.AgentBuild{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, build); err != nil {
		bad("", err.Error(), "give each field the type that docs/builds.md says")
		return nil, compose.Join(problems...)
	}
	return build, compose.Join(problems...)
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
		bad("metadata", strings.TrimPrefix(err.Error(), "json: "), "give each field the type that Kubernetes says")
		return out
	}
	for _, u := range unknown {
		if at, ok := u.(interface{ FieldPath() string }); ok {
			bad("metadata."+at.FieldPath(), "is not a known field", "correct the spelling or remove it")
		}
	}
	switch {
	case meta.Name == "" && meta.GenerateName != "":
		bad("metadata.generateName", "gives a new name each time, so that the build could not be found again", "use name")
	case meta.Name == "":
		bad("metadata.name", "is missing", "name the build")
	}
	if meta.Name == "" {
		meta.Name = "x"
	}
	if meta.Namespace == "" {
		meta.Namespace = "x" // the command's or the context's
	}
	for _, e := range apivalidation.ValidateObjectMeta(&meta, true, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata")) {
		bad(e.Field, fmt.Sprintf("%q: %s", fmt.Sprint(e.BadValue), e.Detail), "correct it: the API server would refuse it")
	}
	return out
}

// doubled reports each key that occurs twice in one mapping.
func (d document) doubled(problems *[]error) {
	var walk func(node *yamlv3.Node)
	walk = func(node *yamlv3.Node) {
		seen := map[string]bool{}
		for i, child := range node.Content {
			if node.Kind != yamlv3.MappingNode || i%2 == 1 {
				walk(child)
				continue
			}
			if seen[child.Value] {
				*problems = append(*problems, krm.Place{File: d.file, Line: d.above + child.Line}.Fault(api.ReasonInvalidBuild,
					fmt.Sprintf("key %q occurs twice", child.Value), "keep one of the two"))
			}
			seen[child.Value] = true
		}
	}
	walk(d.root)
}
