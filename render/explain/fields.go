package explain

import (
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
)

// maxTries bounds how many fields are tried. What is left is explained by its
// resource.
const maxTries = 256

// fields explains what resources that expand lead to by their single fields, and by
// those of the configuration: it alters one after the other, adds those that are
// left out, and notes where the render differs.
func (e *explainer) fields(objects []*explained, baseline map[finding.Ref]*values,
	candidates []candidate, open []bool) error {
	tries := 0
	compare := func(p identity.Provenance, tried map[finding.Ref]*values) {
		for _, x := range objects {
			e.compareField(x, baseline[x.Ref], tried[x.Ref], p, open)
		}
	}
	var sections []string // of the configuration
	for _, c := range candidates {
		kind, found := e.variants.kindOf(c.ref)
		if !found {
			continue
		}
		data, err := e.variants.all.Content(e.variants.all.Files[c.file].Path)
		if err != nil {
			return err
		}
		var o krm.Object
		if isObject, err := o.Read(data, krm.Document{Start: c.start, End: c.end}, false,
			krm.Origin{File: e.variants.all.Files[c.file].Path, Line: c.line}); err != nil || !isObject {
			continue
		}
		if kind.Config != "" && !slices.Contains(sections, kind.Config) {
			sections = append(sections, kind.Config)
		}
		for _, t := range trials(&o, reflect.TypeOf(kind.Fields), "spec", "data", "metadata.labels",
			"metadata.annotations") {
			if tries++; tries > maxTries {
				return nil
			}
			tried, rendered, err := e.variants.first(t.texts,
				func(text []byte) (*render.Stages, error) {
					return e.variants.otherwise(c.file,
						slices.Concat(data[:c.start], text, data[c.end:]))
				})
			if err != nil {
				return err
			}
			if rendered {
				compare(t.provenance(c.ref.Kind+" "+c.ref.Name+" ", identity.Input(c.ref.Kind),
					o.Origin.File, &o), tried)
			}
		}
	}
	if len(sections) == 0 {
		return nil
	}
	return e.configuration(sections, tries, compare)
}

// configuration tries the fields of the configuration that say what resources
// expand to.
func (e *explainer) configuration(sections []string, tries int,
	compare func(identity.Provenance, map[finding.Ref]*values)) error {
	file, o := render.ConfigFile, new(krm.Object)
	if e.variants.opt.Config != nil {
		author, written := e.variants.opt.Config.Origin.Text.(*krm.Object)
		if !written {
			return nil
		}
		file, o = e.variants.opt.Config.Origin.File, author
	} else if _, err := o.ReadMade([]byte("apiVersion: "+api.RenderV1alpha1+
		"\nkind: RenderConfig\nspec: {}\n"), new(krm.Object)); err != nil {
		return err
	}
	for _, t := range trials(o, reflect.TypeFor[api.RenderConfig](), sections...) {
		if tries++; tries > maxTries {
			return nil
		}
		tried, rendered, err := e.variants.first(t.texts,
			func(text []byte) (*render.Stages, error) {
				opt := e.variants.opt
				config, findings := render.ReadConfig(text, file)
				if finding.Failed(findings) || config == nil {
					return nil, nil
				}
				opt.Config = config
				return e.variants.stagesOf(e.variants.all, opt)
			})
		if err != nil {
			return err
		}
		if rendered {
			compare(t.provenance("", identity.ByRenderConfig, file, o), tried)
		}
	}
	return nil
}

// compareField notes a field as the cause of the lines that differ with another
// value of it. A field says more than the resource that it is of.
func (e *explainer) compareField(x *explained, was, other *values, p identity.Provenance, open []bool) {
	for s, there := range e.differing(x, was, other) {
		if s.entry < len(open) && !open[s.entry] ||
			strings.HasSuffix(s.field, "["+keys.Source+"]") {
			continue
		}
		l := &e.lines[s.entry]
		if !there && p.By == identity.ByDefault {
			continue // it is not what is left out that makes it go
		}
		whole := func(b identity.Provenance) bool {
			return b.Setting+" " == p.Setting[:min(len(p.Setting), len(b.Setting)+1)]
		}
		if !there && l.Presence {
			l.Because = slices.DeleteFunc(l.Because, whole)
		}
		e.because(s.entry, p, !there)
	}
}

// trial is a field with texts of the object in which it is another. They are made
// one after the other, from a tree that all trials of an object share.
type trial struct {
	field string
	texts iter.Seq[[]byte]
	added bool // the author left it out
}

func (t *trial) provenance(of string, by identity.Input, file string,
	o *krm.Object) identity.Provenance {
	if t.added {
		return identity.Provenance{Setting: of + t.field, By: identity.ByDefault}
	}
	return identity.Provenance{Setting: of + t.field, By: by, File: file,
		Line: api.Origin{Line: o.Origin.Line, Text: o}.LineOf(t.field)}
}

// trials returns the trials of an object: of all values below some fields, and of fields of its
// type that are left out.
func trials(o *krm.Object, fields reflect.Type, below ...string) (all []trial) {
	tree, err := o.Parse()
	if err != nil {
		return nil
	}
	within := func(field string) bool {
		return slices.ContainsFunc(below, func(b string) bool { return render.Inside(field, b) })
	}
	eachScalar(tree.YNode(), "", func(field string, n *yaml.Node, parent *yaml.Node, at int) {
		if !within(field) {
			return
		}
		all = append(all, trial{field: field, texts: func(yield func([]byte) bool) {
			was, content := *n, parent.Content
			defer func() { *n, parent.Content = was, content }()
			for _, value := range others(n) {
				if n.Value = value; !yield(textOf(tree)) {
					return
				}
			}
			*n = was
			if parent.Kind == yaml.MappingNode { // at last without it
				parent.Content = slices.Concat(content[:at], content[at+2:])
				yield(textOf(tree))
			}
		}})
	})
	if fields == nil {
		return all
	}
	leftOut(fields, nil, func(path []string, values []string, tag string) {
		field := strings.Join(path, ".")
		if o.Has(field) || !within(field) {
			return
		}
		all = append(all, trial{field: field, added: true, texts: func(yield func([]byte) bool) {
			for _, value := range values {
				tree, err := o.Parse()
				if err != nil {
					return
				}
				n, err := tree.Pipe(yaml.LookupCreate(yaml.ScalarNode, path...))
				if err != nil || n == nil {
					return
				}
				*n.YNode() = yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}
				if !yield(textOf(tree)) {
					return
				}
			}
		}})
	})
	return all
}

// textOf writes a tree with a newline at its end; nothing where it cannot be.
func textOf(tree *yaml.RNode) []byte {
	text, err := tree.String()
	if err != nil {
		return nil
	}
	return []byte(strings.TrimRight(text, "\n") + "\n")
}

// eachScalar visits the scalars of a tree with their paths; at is the place of the
// key, or of the item, in the parent.
func eachScalar(n *yaml.Node, path string, visit func(field string, n, parent *yaml.Node, at int)) {
	switch n.Kind {
	case yaml.DocumentNode:
		eachScalar(n.Content[0], path, visit)
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			field := path + "." + n.Content[i].Value
			if strings.ContainsAny(n.Content[i].Value, "./") {
				field = path + "[" + n.Content[i].Value + "]"
			}
			field = strings.TrimPrefix(field, ".")
			if n.Content[i+1].Kind == yaml.ScalarNode {
				visit(field, n.Content[i+1], n, i)
			} else {
				eachScalar(n.Content[i+1], field, visit)
			}
		}
	case yaml.SequenceNode:
		for i, item := range n.Content {
			field := fmt.Sprintf("%s[%d]", path, i)
			if item.Kind == yaml.ScalarNode {
				visit(field, item, n, i)
			} else {
				eachScalar(item, field, visit)
			}
		}
	}
}

// others returns other values of a scalar. Not each suits its field.
func others(n *yaml.Node) []string {
	number, err := strconv.Atoi(n.Value)
	switch {
	case n.ShortTag() == yaml.NodeTagBool:
		return []string{strconv.FormatBool(n.Value != "true")}
	case err == nil:
		return []string{strconv.Itoa(number + 1), strconv.Itoa(number - 1)}
	case strings.Contains(n.Value, "\n"):
		return []string{n.Value + "x\n"}
	}
	return []string{n.Value + "x", "1" + n.Value}
}

// leftOut visits the fields of a type that hold one value, through its structs.
func leftOut(t reflect.Type, path []string, visit func(path, values []string, tag string)) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			if name != "" && name != "-" && len(path) < 6 && (len(path) > 0 || name == "spec") {
				leftOut(t.Field(i).Type, append(path[:len(path):len(path)], name), visit)
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
