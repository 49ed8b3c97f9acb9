// Package host connects a render with its hosts: it reads and writes the ResourceList that
// kustomize, kpt and Argo CD pass to KRM functions, and writes findings for people, editors and
// code scanning.
package host

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
)

// listVersions are the versions of ResourceLists in the KRM Functions Specification, and before its
// first version.
var listVersions = []string{"config.kubernetes.io/v1", "config.kubernetes.io/v1beta1",
	"config.kubernetes.io/v1alpha1"}

// IsResourceList reports whether a stream is the input that a host passes to a KRM function.
func IsResourceList(data []byte) bool {
	if !bytes.Contains(data[:min(len(data), 4<<10)], []byte("ResourceList")) &&
		!bytes.Contains(data[max(0, len(data)-4<<10):], []byte("ResourceList")) {
		return false
	}
	var head struct {
		Kind string `yaml:"kind"`
	}
	if kind := krm.KindOf(data); kind != "" {
		return kind == "ResourceList"
	}
	return yaml.Unmarshal(data, &head) == nil && head.Kind == "ResourceList"
}

// List is a ResourceList that a function processes.
type List struct {
	data []byte
	// Config is the functionConfig; nil if the host passes none.
	Config *api.RenderConfig
	// Findings on the functionConfig.
	Findings []finding.Finding
}

// listFields are the fields of a ResourceList.
var listFields = []string{"apiVersion", "kind", "metadata", "items", "functionConfig", "results"}

// ReadList parses a ResourceList. Its functionConfig is a RenderConfig, or a ConfigMap whose data
// contains plain settings of a RenderConfig.
func ReadList(data []byte) (*List, error) {
	if !utf8.Valid(data) {
		valid := bytes.ToValidUTF8(data, nil)
		at := 0
		for at < len(valid) && valid[at] == data[at] {
			at++
		}
		return nil, fmt.Errorf("reading the ResourceList: line %d is not valid UTF-8",
			1+bytes.Count(data[:at], []byte{'\n'}))
	}
	_, from, to, ok := krm.Items(data, krm.FirstStart(data), len(data))
	if !ok {
		// JSON, flow style, or no items: convert it to block style.
		n, err := yaml.Parse(string(data))
		if err != nil {
			return nil, fmt.Errorf("reading the ResourceList: %w", err)
		}
		if line, key := krm.DuplicateKey(n.YNode()); key != "" {
			return nil, twice(line, key)
		}
		if line := krm.EmptyKey(n.YNode()); line > 0 {
			return nil, fmt.Errorf(
				"reading the ResourceList: line %d: a key without a text: remove or name it", line)
		}
		plainKeys(n.YNode())
		if data, err = krm.BlockStyle(n); err != nil {
			return nil, fmt.Errorf("reading the ResourceList: %w", err)
		}
		if _, from, to, ok = krm.Items(data, 0, len(data)); !ok {
			items := n.Field("items")
			switch {
			case items == nil || items.Value.IsTaggedNull():
			case items.Value.YNode().Kind != yaml.SequenceNode:
				return nil, errors.New("reading the ResourceList: its items are not a list: " +
					"write each one behind a dash")
			case !items.IsNilOrEmpty():
				return nil, errors.New("reading the ResourceList: its items are not a list in a " +
					"style that Armature reads: write it in block style")
			}
			from, to = len(data), len(data)
		}
	}
	l := &List{data: data}
	frame, err := yaml.Parse(string(data[:from]) + string(data[to:]))
	if err != nil {
		return nil, fmt.Errorf("reading the ResourceList: %w", err)
	}
	if frame.YNode().Kind != yaml.MappingNode {
		return nil, errors.New(
			"reading the ResourceList: it is not a mapping: send apiVersion, kind and items")
	}
	if v := frame.GetApiVersion(); frame.GetKind() != "ResourceList" ||
		!slices.Contains(listVersions, v) {
		return nil, fmt.Errorf("%s %s is not a supported ResourceList: send apiVersion "+
			"config.kubernetes.io/v1, kind ResourceList", v, frame.GetKind())
	}
	fields, err := frame.Fields()
	if err != nil {
		return nil, fmt.Errorf("reading the ResourceList: %w", err)
	}
	for _, field := range fields {
		if !slices.Contains(listFields, field) {
			return nil, fmt.Errorf("reading the ResourceList: it has no field %q: known are %s",
				field, strings.Join(listFields, ", "))
		}
	}
	if line, key := krm.DuplicateKey(frame.YNode()); key != "" {
		if line > bytes.Count(data[:from], []byte{'\n'}) {
			line += bytes.Count(data[from:to], []byte{'\n'})
		}
		return nil, twice(line, key)
	}
	// A value may contradict its tag.
	if err := frame.YNode().Decode(&map[string]any{}); err != nil {
		return nil, fmt.Errorf("reading the ResourceList: %w", err)
	}
	if frame.Field("results") != nil {
		l.data = withoutResults(data)
	}
	l.Config, l.Findings, err = functionConfig(frame.Field("functionConfig"))
	// The items are then not read, and returned unchanged.
	if err == nil && finding.Failed(l.Findings) {
		err = checkItems(l.data)
	}
	return l, err
}

// checkItems returns an error if a host could not read a list.
func checkItems(data []byte) error {
	n, err := yaml.Parse(string(data))
	if err != nil {
		return fmt.Errorf("reading the ResourceList: %w", err)
	}
	if line, key := krm.DuplicateKey(n.YNode()); key != "" {
		return twice(line, key)
	}
	return nil
}

func twice(line int, key string) error {
	return fmt.Errorf("reading the ResourceList: line %d: the key %q occurs twice in one "+
		"mapping: remove one of the two", line, key)
}

// plainKeys removes the quotes from keys, which JSON has.
func plainKeys(n *yaml.Node) {
	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			c.Style = 0
		}
		plainKeys(c)
	}
}

func functionConfig(field *yaml.MapNode) (*api.RenderConfig, []finding.Finding, error) {
	if field.IsNilOrEmpty() {
		return nil, nil, nil
	}
	if field.Value.YNode().Kind != yaml.MappingNode {
		return nil, nil, errors.New(
			"reading the functionConfig: it is not an object: write a RenderConfig or a ConfigMap")
	}
	if field.Value.GetKind() == "ConfigMap" {
		if data := field.Value.Field("data"); !data.IsNilOrEmpty() &&
			data.Value.YNode().Kind != yaml.MappingNode {
			return nil, nil, errors.New("reading the functionConfig: its data is not a mapping: " +
				"write each setting as a field of data")
		}
		return WithSettings(nil, field.Value.GetDataMap(), "functionConfig")
	}
	text, err := krm.BlockStyle(field.Value)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the functionConfig: %w", err)
	}
	config, findings := render.ReadConfig(text, "functionConfig")
	return config, findings, nil
}

// WithSettings sets plain settings of a RenderConfig's spec in a configuration; nil is the
// defaults. kpt passes settings in this form as a function's configMap, and Argo CD as parameters.
// from names their origin in findings.
func WithSettings(config *api.RenderConfig, settings map[string]string,
	from string) (*api.RenderConfig, []finding.Finding, error) {
	if config == nil {
		config = &api.RenderConfig{Origin: api.Origin{File: from}}
	}
	spec := make(map[string]any)
	for key, value := range settings {
		spec[key] = value
		if value == "true" || value == "false" {
			spec[key] = value == "true"
		}
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return nil, nil, fmt.Errorf("reading %s: %w", from, err)
	}
	strict, err := kjson.UnmarshalStrict(data, &config.Spec)
	var findings []finding.Finding
	for _, e := range append(strict, err) {
		if e != nil {
			findings = append(findings, finding.Finding{Rule: "config/field",
				Severity: finding.Error, Place: finding.Place{File: from}, Message: e.Error(),
				Hint: "only the plain settings of a RenderConfig's spec can be given here"})
		}
	}
	return config, findings, nil
}

// Render runs the functions on the items. If a finding is an error, it returns the items unchanged.
// The results always contain the findings.
func (l *List) Render(opt render.Options) (out []byte, findings []finding.Finding,
	stats render.Stats, err error) {
	return l.Run(opt, render.Stream)
}

// Run passes the items to render.Stream, render.Uninject or a similar function.
func (l *List) Run(opt render.Options,
	do func(render.Source, render.Options,
		render.Sink) ([]finding.Finding, render.Stats, error)) (out []byte,
	findings []finding.Finding, stats render.Stats, err error) {
	out = l.data
	opt.Workers, opt.Config, opt.Hosted = 1, l.Config, true
	findings = l.Findings
	if !finding.Failed(findings) {
		src := render.Source{Files: []render.File{{Path: "-", Data: l.data}}}
		var found []finding.Finding
		found, stats, err = do(src, opt, func(_ string, data []byte) error {
			out = data
			return nil
		})
		if err != nil {
			return nil, nil, stats, err
		}
		for _, f := range found {
			if f.Rule == render.SyntaxRule { // the output would not be a list
				return nil, nil, stats, fmt.Errorf("reading the ResourceList: line %d: %s: %s",
					f.Line, f.Message, f.Hint)
			}
		}
		withoutLines(found)
		findings = append(findings, found...)
	}
	if finding.Failed(findings) {
		out = l.data
		if _, err := yaml.Parse(string(out)); err != nil { // the output would not be a list
			return nil, nil, stats, fmt.Errorf("reading the ResourceList: %w", err)
		}
	}
	if len(findings) > 0 {
		text, err := results(findings)
		if err != nil {
			return nil, nil, stats, fmt.Errorf("writing the results: %w", err)
		}
		if len(out) > 0 && out[len(out)-1] != '\n' {
			out = append(slices.Clip(out), '\n')
		}
		out = append(out, text...)
	}
	return out, findings, stats, nil
}

// withoutResults drops the results of an earlier function, which the host already has.
func withoutResults(list []byte) []byte {
	i := bytes.Index(list, []byte("\nresults:"))
	if i < 0 {
		return list
	}
	end := len(list)
	for p := i + 1; p < len(list); {
		next := bytes.IndexByte(list[p:], '\n')
		if next < 0 {
			break
		}
		p += next + 1
		if p < len(list) && !strings.ContainsRune(" -#\r\n", rune(list[p])) {
			end = p
			break
		}
	}
	return append(bytes.Clone(list[:i+1]), list[end:]...)
}
