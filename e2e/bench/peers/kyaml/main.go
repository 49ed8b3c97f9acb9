// Command kyaml injects the same parts as Armature with sigs.k8s.io/kustomize/kyaml, the library of
// kustomize and kpt: parse, insert nodes, print. It learns the parts from one rendered workload and
// replaces the name in them.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/multi"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr,
			"kyaml SAMPLE IN OUT   inject the files below IN, write them below OUT")
		os.Exit(2)
	}
	sample := os.Args[1]
	in, err := learn(sample, filepath.Join(os.Args[2], filepath.Base(filepath.Dir(sample)),
		filepath.Base(sample)))
	if err == nil {
		err = in.files(os.Args[2], os.Args[3])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kyaml:", err)
		os.Exit(1)
	}
}

// injector holds the parts that a workload gets.
type injector struct {
	name           string // of the sample, to be replaced
	initContainers []*yaml.RNode
	volumes        []*yaml.RNode
	inside         map[string][]*yaml.RNode // of each container, by field
	record         string
	generated      string // the ConfigMaps, separators included
}

const prefix = "armature-" // of the names of injected parts

var podSpec = []string{"spec", "template", "spec"}

// learn reads the parts from a workload that was rendered, and those of containers from the
// difference to its original.
func learn(file, original string) (*injector, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	before, err := yaml.ReadFile(original)
	if err != nil {
		return nil, err
	}
	first, generated, _ := strings.Cut(string(data), "\n---\n")
	root, err := yaml.Parse(first)
	if err != nil {
		return nil, err
	}
	in := &injector{name: root.GetName(), generated: "---\n" + generated,
		record: root.GetAnnotations()[keys.Injected]}
	spec, err := root.Pipe(yaml.Lookup(podSpec...))
	if err != nil {
		return nil, err
	}
	elements := func(name string) []*yaml.RNode {
		list, err := spec.Field(name).Value.Elements()
		if err != nil {
			panic(err) // the sample is a render of our own
		}
		return list
	}
	in.initContainers = elements("initContainers")
	injected := func(n *yaml.RNode) bool {
		name, err := n.GetString("name")
		return err == nil && strings.HasPrefix(name, prefix)
	}
	for _, v := range elements("volumes") {
		if injected(v) {
			in.volumes = append(in.volumes, v)
		}
	}
	had, err := before.Pipe(yaml.Lookup(append(podSpec, "containers", "0")...))
	if err != nil {
		return nil, err
	}
	in.inside = make(map[string][]*yaml.RNode)
	for _, field := range []string{"env", "volumeMounts"} {
		list, err := elements("containers")[0].Pipe(yaml.Lookup(field))
		if err != nil || list == nil {
			continue
		}
		if err := list.VisitElements(func(n *yaml.RNode) error {
			name, _ := n.GetString("name")
			there, err := had.Pipe(yaml.Lookup(field, "[name="+name+"]"))
			if there == nil {
				in.inside[field] = append(in.inside[field], n)
			}
			return err
		}); err != nil {
			return nil, err
		}
	}
	if len(in.initContainers) == 0 || len(in.volumes) == 0 || len(in.inside) == 0 ||
		in.record == "" {
		return nil, fmt.Errorf("%s is not a rendered workload", file)
	}
	return in, nil
}

// part copies a part for a workload.
func (in *injector) part(n *yaml.RNode, name string) *yaml.Node {
	copied := n.Copy().YNode()
	in.rename(copied, name)
	return copied
}

func (in *injector) rename(n *yaml.Node, name string) {
	if n.Kind == yaml.ScalarNode && strings.Contains(n.Value, in.name) {
		n.Value = strings.ReplaceAll(n.Value, in.name, name)
	}
	for _, c := range n.Content {
		in.rename(c, name)
	}
}

// inject adds the parts to a workload that opted in.
func (in *injector) inject(root *yaml.RNode) (generated string, err error) {
	if root.GetLabels()[keys.LabelPrefix+"/inject"] != "enabled" {
		return "", nil
	}
	name := root.GetName()
	spec, err := root.Pipe(yaml.Lookup(podSpec...))
	if err != nil || spec == nil {
		return "", multi.Errors(err, errors.New("no pod template"))
	}
	add := func(to *yaml.RNode, field string, parts ...*yaml.RNode) error {
		var nodes []*yaml.Node
		for _, p := range parts {
			nodes = append(nodes, in.part(p, name))
		}
		return to.PipeE(yaml.LookupCreate(yaml.SequenceNode, field), yaml.Append(nodes...))
	}
	if err := multi.Errors(add(spec, "initContainers", in.initContainers...),
		add(spec, "volumes", in.volumes...)); err != nil {
		return "", err
	}
	containers, err := spec.Pipe(yaml.Lookup("containers"))
	if err != nil {
		return "", err
	}
	if err := containers.VisitElements(func(c *yaml.RNode) error {
		return multi.Errors(add(c, "env", in.inside["env"]...),
			add(c, "volumeMounts", in.inside["volumeMounts"]...))
	}); err != nil {
		return "", err
	}
	if err := root.PipeE(yaml.SetAnnotation(keys.Injected, in.record)); err != nil {
		return "", err
	}
	return strings.ReplaceAll(in.generated, in.name, name), nil
}

func (in *injector) files(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, relative), 0o755)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text, err := in.document(string(data))
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return os.WriteFile(filepath.Join(to, relative), []byte(text), 0o644)
	})
}

func (in *injector) document(text string) (string, error) {
	root, err := yaml.Parse(text)
	if err != nil {
		return "", err
	}
	generated, err := in.inject(root)
	if err != nil {
		return "", err
	}
	text, err = root.String()
	return text + generated, err
}
