package explain

import (
	"reflect"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render"
)

// maxTries is the maximum number of fields that are altered. The remaining values are explained by
// their resource.
const maxTries = 256

// fields explains the lines that expanding resources lead to by single fields of the resources and
// of the configuration. It alters one field at a time, adds omitted ones, and records which lines
// of the render differ.
func (e *explainer) fields(resources []candidate, open []bool) error {
	tries := 0
	try := func(o *krm.Object, all []trial, prefix string, by identity.Input,
		stages func(text []byte) (*render.Stages, error)) error {
		for _, t := range all {
			if tries++; tries > maxTries {
				return nil
			}
			text, err := e.first(&t, o, stages)
			if err != nil {
				return err
			}
			p := identity.Provenance{Setting: prefix + t.field, By: by, File: o.Origin.File,
				Line: o.LineOf(t.field)}
			if t.added() {
				p = identity.Provenance{Setting: prefix + t.field, By: identity.ByDefault}
			}
			if text != nil {
				e.compare(text, func(_ *explained, s span, _ string, exists bool) {
					e.leadsTo(s, p, exists, open)
				})
			}
		}
		return nil
	}
	var sections []string // of the configuration
	for _, c := range resources {
		kind, found := e.kindOf(c.ref)
		var o krm.Object
		if isObject, err := o.Read(c.data, c.Document, false, krm.Origin{
			File: e.src.Files[c.file].Path, Line: c.line}); !found || err != nil || !isObject {
			continue
		}
		if kind.Config != "" && !slices.Contains(sections, kind.Config) {
			sections = append(sections, kind.Config)
		}
		if err := try(&o, trials(&o, reflect.TypeOf(kind.Fields), "spec", "data", "metadata.labels",
			"metadata.annotations"), c.ref.Kind+" "+c.ref.Name+" ", identity.Input(c.ref.Kind),
			func(text []byte) (*render.Stages, error) {
				return e.otherwise(c.file, slices.Concat(c.data[:c.Start], text, c.data[c.End:]))
			}); err != nil {
			return err
		}
	}
	config := e.configuration()
	if len(sections) == 0 || config == nil {
		return nil
	}
	return try(config, trials(config, reflect.TypeFor[api.RenderConfig](), sections...), "",
		identity.ByRenderConfig, func(text []byte) (*render.Stages, error) {
			opt := e.opt
			var findings []finding.Finding
			opt.Config, findings = render.ReadConfig(text, config.Origin.File)
			if finding.Failed(findings) || opt.Config == nil {
				return nil, nil
			}
			return e.stagesOf(e.src, opt)
		})
}

// configuration returns the configuration as its author wrote it, an empty one if there is none, or
// nil if it has no author.
func (e *explainer) configuration() *krm.Object {
	if e.opt.Config != nil {
		o, _ := e.opt.Config.Origin.Text.(*krm.Object)
		return o
	}
	config, _ := render.ReadConfig([]byte("apiVersion: "+api.RenderV1alpha1+
		"\nkind: RenderConfig\nspec: {}\n"), render.ConfigFile)
	return config.Origin.Text.(*krm.Object)
}

// kindOf returns the kind of a resource that expands, or to which one refers.
func (e *explainer) kindOf(ref finding.Ref) (contract.Kind, bool) {
	group := (&krm.Object{Ref: ref}).Group()
	for _, row := range e.stages.Rows() {
		for _, k := range row.Kinds {
			of := func(g contract.Group) bool { return g.Name == group || g.Name == "" }
			if k.Name == ref.Kind && (k.Use == contract.Expands || k.Use == contract.Refers) &&
				slices.ContainsFunc(k.Groups, of) {
				return k, true
			}
		}
	}
	return contract.Kind{}, false
}

// leadsTo records a field as the cause of a value that differs with another value of the field. A
// field replaces its resource as the cause.
func (e *explainer) leadsTo(s span, p identity.Provenance, exists bool, open []bool) {
	if !open[s.entry] || strings.HasSuffix(s.field, "["+keys.Source+"]") ||
		!exists && byDefault(p) { // an omitted field cannot be why the line exists
		return
	}
	if l := &e.lines[s.entry]; !exists && l.Presence {
		l.Because = slices.DeleteFunc(l.Because, func(b identity.Provenance) bool {
			return strings.HasPrefix(p.Setting, b.Setting+" ")
		})
	}
	e.because(s.entry, p, !exists)
}

// trial is a field with values to try in place of its own.
type trial struct {
	field        string
	path, values []string
	tag          string // of a field that the author omitted
}

func (t *trial) added() bool { return t.tag != "" }

// trials returns the trials for an object: all values below some fields, and omitted fields of its
// type.
func trials(o *krm.Object, fields reflect.Type, below ...string) (all []trial) {
	add := func(t trial) {
		if slices.ContainsFunc(below, func(b string) bool { return text.Inside(t.field, b) }) {
			all = append(all, t)
		}
	}
	eachScalar(o.Root(), nil, func(n krm.Node, path []string) {
		add(trial{field: n.Path(), path: path, values: others(n)})
	})
	if fields != nil {
		omitted(fields, nil, func(path, values []string, tag string) {
			if field := strings.Join(path, "."); !o.Has(field) {
				add(trial{field, path, values, tag})
			}
		})
	}
	return all
}

// first renders the file with the first value of a field that renders, or without the field. It
// returns nil if none renders.
func (e *explainer) first(t *trial, o *krm.Object,
	stages func(text []byte) (*render.Stages, error)) ([]byte, error) {
	for i := range len(t.values) + 1 {
		text := t.text(o, i)
		if text == nil {
			break
		}
		s, err := stages(text)
		if err != nil {
			return nil, err
		}
		if s == nil || finding.Failed(s.Findings()) {
			continue
		}
		out, err := s.Render(e.index, nil)
		if err != nil {
			return nil, err
		}
		if !finding.Failed(s.Findings()) {
			return out, nil
		}
	}
	return nil, nil
}

// text returns an object with the value of index i. After the last value it returns the object
// without the field if the author wrote it in a mapping. It returns nil if the object cannot be
// changed.
func (t *trial) text(o *krm.Object, i int) []byte {
	tree, err := o.Parse()
	if err != nil {
		return nil
	}
	if last := len(t.path) - 1; i < len(t.values) {
		n, err := tree.Pipe(yaml.LookupCreate(yaml.ScalarNode, t.path...))
		if err != nil || n == nil {
			return nil
		}
		if n.YNode().Value = t.values[i]; t.added() {
			*n.YNode() = yaml.Node{Kind: yaml.ScalarNode, Tag: t.tag, Value: t.values[i]}
		}
	} else if t.added() ||
		tree.PipeE(yaml.Lookup(t.path[:last]...), yaml.Clear(t.path[last])) != nil {
		return nil
	}
	text, err := tree.String()
	if err != nil {
		return nil
	}
	return []byte(strings.TrimRight(text, "\n") + "\n")
}

// eachScalar visits the scalars of an object with the keys and indices that lead to them.
func eachScalar(n krm.Node, path []string, visit func(n krm.Node, path []string)) {
	path = slices.Clip(path)
	switch {
	case n.IsMap():
		for key, value := range n.Fields() {
			eachScalar(value, append(path, key), visit)
		}
	case n.IsList():
		i := 0
		for item := range n.Items() {
			eachScalar(item, append(path, strconv.Itoa(i)), visit)
			i++
		}
	default:
		visit(n, path)
	}
}

// others returns other values of a scalar. Not every value suits the field.
func others(n krm.Node) []string {
	value := n.Text()
	number, err := strconv.Atoi(value)
	switch {
	case !n.IsText() && (value == "true" || value == "false"):
		return []string{strconv.FormatBool(value != "true")}
	case err == nil:
		return []string{strconv.Itoa(number + 1), strconv.Itoa(number - 1)}
	case strings.Contains(value, "\n"):
		return []string{value + "x\n"}
	}
	return []string{value + "x", "1" + value}
}

// omitted visits the fields of a type that contain one value, through its structs.
func omitted(t reflect.Type, path []string, visit func(path, values []string, tag string)) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			if name != "" && name != "-" && len(path) < 6 && (len(path) > 0 || name == "spec") {
				omitted(t.Field(i).Type, append(slices.Clip(path), name), visit)
			}
		}
	case reflect.Bool:
		visit(path, []string{"true", "false"}, yaml.NodeTagBool)
	case reflect.Int, reflect.Int32, reflect.Int64:
		visit(path, []string{"7", "1"}, yaml.NodeTagInt)
	case reflect.String:
		visit(path, []string{"x", "7s", "Always"}, yaml.NodeTagString)
	}
}
