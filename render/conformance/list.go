package conformance

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
)

// list is a parsed ResourceList.
type list struct {
	version string
	items   []*item
	results []result
	config  *yaml.Node
}

// item is an item of a list. text is as written, without the indentation of the list; "" in a list
// of flow style.
type item struct {
	node  *yaml.Node
	value any
	text  string
	ref   ref
	host  map[string]string
}

type ref struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Name       string `yaml:"name"`
	Namespace  string `yaml:"namespace"`
}

func (r ref) String() string {
	return text.Printable(strings.Trim(r.Kind+" "+strings.Trim(r.Namespace+"/"+r.Name, "/"), " "))
}

type result struct {
	Message     string `yaml:"message"`
	Severity    string `yaml:"severity"`
	ResourceRef *ref   `yaml:"resourceRef"`
	Field       *struct {
		Path string `yaml:"path"`
	} `yaml:"field"`
	File *struct {
		Path  string `yaml:"path"`
		Index int    `yaml:"index"`
	} `yaml:"file"`
}

// read parses a text that contains one ResourceList and nothing else.
func read(text []byte) (*list, error) {
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	var doc, more yaml.Node
	if err := decoder.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("it is empty")
		}
		return nil, err
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one document")
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode || textOf(root, "kind") != "ResourceList" {
		return nil, errors.New("it has no kind: ResourceList")
	}
	l := &list{version: textOf(root, "apiVersion"), config: field(root, "functionConfig")}
	if !strings.HasPrefix(l.version, "config.kubernetes.io/") {
		return nil, fmt.Errorf("its apiVersion is %s", quoted(l.version))
	}
	if r := field(root, "results"); r != nil {
		if err := r.Decode(&l.results); err != nil {
			return nil, fmt.Errorf("its results are not a list of results: %w", err)
		}
	}
	items := field(root, "items")
	if items == nil || items.Kind == yaml.ScalarNode && items.Tag == yaml.NodeTagNull {
		return l, nil
	}
	if items.Kind != yaml.SequenceNode {
		return nil, errors.New("its items are not a list")
	}
	spans, _, _, ok := krm.Items(text, krm.FirstStart(text), len(text))
	ok = ok && len(spans) == len(items.Content)
	for i, n := range items.Content {
		it := &item{node: n, host: make(map[string]string)}
		if n.Kind == yaml.AliasNode {
			it.node = n.Alias
		}
		if err := n.Decode(&it.value); err != nil {
			return nil, fmt.Errorf("its item %d: %w", i, err)
		}
		if it.node.Kind != yaml.MappingNode {
			return nil, fmt.Errorf("its item %d is not an object", i)
		}
		it.ref = ref{textOf(it.node, "apiVersion"), textOf(it.node, "kind"),
			textOf(it.node, "metadata", "name"), textOf(it.node, "metadata", "namespace")}
		a := field(field(it.node, "metadata"), "annotations")
		if a != nil && a.Kind == yaml.MappingNode {
			for k := 0; k+1 < len(a.Content); k += 2 {
				if krm.HostAnnotation(a.Content[k].Value) {
					it.host[a.Content[k].Value] = a.Content[k+1].Value
				}
			}
		}
		if ok {
			it.text = dedent(string(text[spans[i].Start:spans[i].End]))
		}
		l.items = append(l.items, it)
	}
	return l, nil
}

// dedent removes the spaces before the dash of an item.
func dedent(text string) string {
	by := len(text) - len(strings.TrimLeft(text, " "))
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(line[min(by, len(line)-len(strings.TrimLeft(line, " "))):])
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

func field(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// textOf returns the text of a scalar at a path.
func textOf(n *yaml.Node, path ...string) string {
	for _, key := range path {
		n = field(n, key)
	}
	if n == nil {
		return ""
	}
	return n.Value
}

// file returns the file and the index from which a host read an item.
func (it *item) file() (path, index string) {
	for _, prefix := range []string{"internal.config.kubernetes.io/", "config.kubernetes.io/"} {
		if path = it.host[prefix+"path"]; path != "" {
			return path, it.host[prefix+"index"]
		}
	}
	return "", ""
}

// compose returns the text of a list with items and a functionConfig.
func compose(version string, items []*item, config *yaml.Node) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: %s\nkind: ResourceList\nitems:", version)
	if len(items) == 0 {
		b.WriteString(" []")
	}
	b.WriteString("\n")
	for _, it := range items {
		b.WriteString(it.text)
	}
	more, err := configText(config)
	return b.String() + more, err
}

func configText(config *yaml.Node) (string, error) {
	if config == nil {
		return "", nil
	}
	text, err := yaml.Marshal(map[string]*yaml.Node{"functionConfig": config})
	return string(text), err
}

// pairs returns, for each item of a list, its index in another list, or -1. Items match by name, by
// name in another namespace, or by the file from which a host read them.
func pairs(in, out *list) []int {
	at, taken := make([]int, len(in.items)), make([]bool, len(out.items))
	for i := range at {
		at[i] = -1
	}
	for _, key := range []func(*item) string{
		func(it *item) string { return fmt.Sprint(it.ref) + it.ref.APIVersion },
		func(it *item) string { return it.ref.APIVersion + " " + it.ref.Kind + " " + it.ref.Name },
		func(it *item) string {
			path, index := it.file()
			return it.ref.Kind + " " + path + " " + index
		},
	} {
		places := make(map[string][]int)
		for j, it := range out.items {
			if !taken[j] {
				places[key(it)] = append(places[key(it)], j)
			}
		}
		for i, it := range in.items {
			if p := places[key(it)]; at[i] < 0 && len(p) > 0 {
				at[i], taken[p[0]], places[key(it)] = p[0], true, p[1:]
			}
		}
	}
	return at
}

// quoted returns a text that is not trusted, quoted and shortened to one line.
func quoted(text string) string {
	if runes := []rune(text); len(runes) > 120 {
		text = string(runes[:120]) + "…"
	}
	return strconv.Quote(text)
}

// shape contains the parts of an item's text that a change of other fields must not affect.
type shape struct {
	comments map[string]int                 // by path and text
	styles   map[string]map[yaml.Style]bool // of scalars, by path and value
	keys     map[string][]string            // of mappings outside of lists, by path
	paths    map[string]bool
	all      map[string]int // comments by their text
}

func shapeOf(n *yaml.Node) *shape {
	s := &shape{make(map[string]int), make(map[string]map[yaml.Style]bool),
		make(map[string][]string), make(map[string]bool), make(map[string]int)}
	s.walk(n, "")
	return s
}

func (s *shape) comment(n *yaml.Node, path string) {
	for _, c := range []string{n.HeadComment, n.LineComment, n.FootComment} {
		for _, line := range strings.Split(c, "\n") {
			if line = strings.TrimSpace(line); line != "" {
				s.comments[path+"\n"+line]++
				s.all[line]++
			}
		}
	}
}

func (s *shape) walk(n *yaml.Node, path string) {
	s.paths[path] = true
	s.comment(n, path)
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			if !strings.Contains(path, "[]") {
				s.keys[path] = append(s.keys[path], key.Value)
			}
			inner := strings.TrimPrefix(path+"."+key.Value, ".")
			s.comment(key, inner)
			s.walk(n.Content[i+1], inner)
		}
	case yaml.SequenceNode:
		for _, c := range n.Content {
			s.walk(c, path+"[]")
		}
	case yaml.ScalarNode:
		at := path + "\n" + n.Value
		if s.styles[at] == nil {
			s.styles[at] = make(map[yaml.Style]bool)
		}
		s.styles[at][n.Style] = true
	}
}
