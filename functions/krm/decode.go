package krm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/text"
)

// Decode reads the object into a Go value with JSON tags. Unknown fields and wrong types are
// findings of the rule, each with the line of its field; the rest of the object is still read.
func (o *Object) Decode(rule string, into any) (findings []finding.Finding) {
	tree, err := o.Parse()
	if err != nil {
		return []finding.Finding{o.Finding(finding.Error, rule, Node{}, withoutValues(err.Error()), "")}
	}
	for {
		data, err := tree.MarshalJSON()
		if err != nil {
			if path := notFinite(tree.YNode(), ""); path != "" {
				findings = append(findings, o.Finding(finding.Error, rule, o.At(path),
					"it is infinite or not a number, which JSON cannot write",
					"write a finite number"))
				if drop(tree.YNode(), path) {
					continue
				}
				return findings
			}
			return append(findings,
				o.Finding(finding.Error, rule, Node{}, withoutValues(err.Error()), ""))
		}
		strict, err := kjson.UnmarshalStrict(data, into)
		var wrong *json.UnmarshalTypeError
		switch {
		case errors.As(err, &wrong):
			findings = append(findings, o.Finding(finding.Error, rule, o.At(wrong.Field),
				fmt.Sprintf("%s where %s should be", found(wrong.Value),
					article(wrong.Type.String())),
				"correct the value"))
			if !drop(tree.YNode(), wrong.Field) {
				return findings
			}
			continue // it hides what else is wrong
		case err != nil:
			findings = append(findings,
				o.Finding(finding.Error, rule, Node{}, withoutValues(err.Error()), ""))
		}
		for _, e := range strict {
			path := fieldOf(e)
			findings = append(findings,
				o.Finding(finding.Error, rule, o.At(path),
					fmt.Sprintf("%s has no such field", o.Kind),
					text.UnknownField(into, path, ignoredByMistake)))
		}
		return findings
	}
}

// notFinite returns the path of the first number that is .inf or .nan; "" if there is none.
func notFinite(n *yaml.Node, path string) string {
	var number float64
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!float" && n.Decode(&number) == nil &&
		(math.IsNaN(number) || math.IsInf(number, 0)) {
		return path
	}
	for i, c := range n.Content {
		at := path
		switch {
		case n.Kind == yaml.MappingNode && i%2 == 0:
			continue
		case n.Kind == yaml.MappingNode:
			at = text.JoinField(path, n.Content[i-1].Value)
		case n.Kind == yaml.SequenceNode:
			at = fmt.Sprintf("%s[%d]", path, i)
		}
		if found := notFinite(c, at); found != "" {
			return found
		}
	}
	return ""
}

// drop deletes the deepest value on a field path, which is the one that At finds.
func drop(n *yaml.Node, path string) bool {
	var within *yaml.Node
	at := 0
	for _, step := range text.FieldSteps(path) {
		i := 0
		for n.Kind == yaml.MappingNode && i < len(n.Content) && n.Content[i].Value != step {
			i += 2
		}
		switch {
		case n.Kind == yaml.MappingNode && i < len(n.Content):
			within, at, n = n, i, n.Content[i+1]
		case step[0] < 'A' || step[0] > 'Z': // else an inlined Go struct
			n = &yaml.Node{}
		}
	}
	if within != nil {
		within.Content = slices.Delete(within.Content, at, at+2)
	}
	return within != nil
}

// FollowsFrom reports whether a finding about a field may be a consequence of the findings of
// Decode: the field was not read, contains one that was not, or is missing and may be misspelt.
func (o *Object) FollowsFrom(decoding []finding.Finding, field string) bool {
	for _, f := range decoding {
		if field != "" && text.Inside(f.Field, field) ||
			f.Field != "" && text.Inside(field, f.Field) {
			return true
		}
	}
	return len(decoding) > 0 && !o.Has(field)
}

// JSON returns the object, without its waiting edits, as JSON.
func (o *Object) JSON() ([]byte, error) {
	n, err := o.Parse()
	if err != nil {
		return nil, err
	}
	return n.MarshalJSON()
}

// Parse returns the object, without its waiting edits, as kyaml reads it.
func (o *Object) Parse() (*yaml.RNode, error) {
	text := o.tree.src[o.start:o.end]
	if o.item && !o.rewritten {
		text = bytes.Clone(text)
		text[bytes.IndexByte(text, '-')] = ' '
	}
	return yaml.Parse(string(text))
}

// Value returns the object as plain Go values.
func (o *Object) Value() (value any, err error) {
	data, err := o.JSON()
	if err != nil {
		return nil, err
	}
	return value, json.Unmarshal(data, &value)
}

// LocalConfig is the annotation of an object that stays in its package and never
// gets into a cluster.
const LocalConfig = "config.kubernetes.io/local-config"

// helmBooks is the prefix of the annotation by which Helm 4 maps a manifest to its template.
const helmBooks = "postrenderer.helm.sh/"

// HostAnnotation reports whether an annotation belongs to the host of a KRM function, or to Helm
// for its post-renderers: the file of an item, for example, or its previous name. Hosts add these
// annotations and remove them again; the author does not write them.
func HostAnnotation(key string) bool {
	prefix, name, _ := strings.Cut(key, "/")
	switch prefix {
	case "internal.config.kubernetes.io", "kustomize.config.k8s.io",
		strings.TrimSuffix(helmBooks, "/"):
		return true
	case "config.kubernetes.io", "config.k8s.io":
		return name == "path" || name == "index" || name == "id"
	}
	return false
}

// OnlyHostAnnotations reports whether the object comes from a host or from Helm and its author
// wrote no annotations: all of them are HostAnnotations.
func (o *Object) OnlyHostAnnotations() bool {
	annotations := o.Get("metadata", "annotations")
	helm := true
	for key := range annotations.Fields() {
		if !HostAnnotation(key) {
			return false
		}
		helm = helm && strings.HasPrefix(key, helmBooks)
	}
	return (o.item || helm) && annotations.Len() > 0
}

// DropHostAnnotations deletes HostAnnotations and LocalConfig from an object's value.
func DropHostAnnotations(value any) {
	object, _ := value.(map[string]any)
	metadata, _ := object["metadata"].(map[string]any)
	annotations, ok := metadata["annotations"].(map[string]any)
	if !ok {
		return
	}
	for key := range annotations {
		if key == LocalConfig || HostAnnotation(key) {
			delete(annotations, key)
		}
	}
	if len(annotations) == 0 {
		delete(metadata, "annotations")
	}
}

// found describes a JSON value in the terms of YAML's users.
func found(value string) string {
	switch value {
	case "array":
		return "a list"
	case "object":
		return "a mapping"
	case "bool":
		return "true or false"
	}
	if strings.HasPrefix(value, "number ") {
		return "the " + value
	}
	return "a " + value
}

// article describes a Go type in the terms of YAML's users.
func article(goType string) string {
	switch t := strings.TrimLeft(goType, "*"); {
	case strings.HasPrefix(t, "int"), strings.HasPrefix(t, "uint"):
		return "a whole number"
	case strings.HasPrefix(t, "float"):
		return "a number"
	case t == "bool":
		return "true or false"
	case t == "string":
		return "a string"
	case strings.HasPrefix(t, "[]"):
		return "a list"
	}
	return "a mapping"
}

// walk finds the deepest value on a field path such as spec.rules[2].host. Keys that contain dots
// are in brackets. all reports whether the whole path exists.
func (o *Object) walk(path string) (deepest Node, all bool) {
	n := o.Root()
	for _, step := range text.FieldSteps(path) {
		key := strings.Trim(step, "[]")
		next := n.Get(key)
		if i, err := strconv.Atoi(key); err == nil && n.IsList() {
			next = ItemAt(n, i)
		}
		switch {
		case next.Exists():
			n, deepest = next, next
		case step[0] < 'A' || step[0] > 'Z': // else an inlined Go struct
			return deepest, false
		}
	}
	return deepest, true
}

// At finds the deepest value on a field path.
func (o *Object) At(path string) Node {
	deepest, _ := o.walk(path)
	return deepest
}

// Has reports whether the author wrote a field.
func (o *Object) Has(path string) bool {
	_, all := o.walk(path)
	return all
}

// LineOf returns the line of a field path such as spec.rules[2].host, or of the deepest value on
// the path.
func (o *Object) LineOf(path string) int {
	if n := o.At(path); n.Exists() {
		return n.Line()
	}
	return o.Origin.Line
}

const ignoredByMistake = "remove or correct it: unknown fields are errors, so that nothing " +
	"is ignored by mistake"

func fieldOf(strict error) string {
	var field kjson.FieldError
	if errors.As(strict, &field) {
		return field.FieldPath()
	}
	return ""
}

var embedded = text.Pattern(`\b[A-Z]\w*\.`)

// UnmarshalStrict reads JSON into a Go value. Unknown fields and wrong types are errors, each with
// its field and a remedy.
func UnmarshalStrict(data []byte, into any) error {
	strict, err := kjson.UnmarshalStrict(data, into)
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		field := embedded().ReplaceAllString(wrong.Field, "")
		err = fmt.Errorf("%s: %s where %s should be\n  hint: correct the value", field,
			found(wrong.Value), article(wrong.Type.String()))
	}
	for _, e := range strict {
		problem := e.Error()
		if path := fieldOf(e); path != "" {
			problem = path + ": no such field\n  hint: " +
				text.UnknownField(into, path, ignoredByMistake)
		}
		err = errors.Join(err, errors.New(problem))
	}
	return err
}
