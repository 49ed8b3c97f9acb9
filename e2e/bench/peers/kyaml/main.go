// Command kyaml injects what Armature injects with sigs.k8s.io/kustomize/kyaml,
// the library of kustomize and kpt: parse, insert nodes, print. It learns the
// parts from one rendered workload and fills in the names of the others.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

const usage = `kyaml SAMPLE IN OUT   inject the files below IN, write them below OUT
kyaml SAMPLE          inject a stream from standard input to standard output
kyaml -patch SAMPLE   print a strategic-merge patch of what it injects`

func main() {
	if len(os.Args) < 2 || len(os.Args) > 4 {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	sample := os.Args[1]
	if len(os.Args) == 3 {
		sample = os.Args[2]
	}
	in, err := learn(sample)
	switch {
	case err != nil:
	case len(os.Args) == 4:
		err = in.files(os.Args[2], os.Args[3])
	case len(os.Args) == 3:
		err = in.patch(os.Stdout)
	default:
		err = in.stream(os.Stdin, os.Stdout)
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
	mount          *yaml.RNode
	record         string
	generated      string // the ConfigMaps, separators included
}

const (
	recordKey = "armature.dev/injected" // this module cannot import the root's packages
	label     = "kagenti.io/inject"
	ours      = "armature-"
)

var podSpec = []string{"spec", "template", "spec"}

// learn takes the parts from a workload that was rendered.
func learn(file string) (*injector, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	first, generated, _ := strings.Cut(string(data), "\n---\n")
	root, err := yaml.Parse(first)
	if err != nil {
		return nil, err
	}
	in := &injector{name: root.GetName(), generated: "---\n" + generated, record: root.GetAnnotations()[recordKey]}
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
	isOurs := func(n *yaml.RNode) bool {
		name, err := n.GetString("name")
		return err == nil && strings.HasPrefix(name, ours)
	}
	for _, v := range elements("volumes") {
		if isOurs(v) {
			in.volumes = append(in.volumes, v)
		}
	}
	mounts, err := elements("containers")[0].Field("volumeMounts").Value.Elements()
	if err != nil {
		return nil, err
	}
	in.mount = mounts[len(mounts)-1]
	if len(in.initContainers) == 0 || len(in.volumes) == 0 || !isOurs(in.mount) || in.record == "" {
		return nil, fmt.Errorf("%s is not a rendered workload", file)
	}
	return in, nil
}

// part copies one for a workload.
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
	if root.GetLabels()[label] != "enabled" {
		return "", nil
	}
	name := root.GetName()
	spec, err := root.Pipe(yaml.Lookup(podSpec...))
	if err != nil || spec == nil {
		return "", errors.Join(err, errors.New("no pod template"))
	}
	add := func(to *yaml.RNode, field string, parts ...*yaml.RNode) error {
		var nodes []*yaml.Node
		for _, p := range parts {
			nodes = append(nodes, in.part(p, name))
		}
		return to.PipeE(yaml.LookupCreate(yaml.SequenceNode, field), yaml.Append(nodes...))
	}
	if err := errors.Join(add(spec, "initContainers", in.initContainers...), add(spec, "volumes", in.volumes...)); err != nil {
		return "", err
	}
	containers, err := spec.Pipe(yaml.Lookup("containers"))
	if err != nil {
		return "", err
	}
	if err := containers.VisitElements(func(c *yaml.RNode) error { return add(c, "volumeMounts", in.mount) }); err != nil {
		return "", err
	}
	if err := root.PipeE(yaml.SetAnnotation(recordKey, in.record)); err != nil {
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

// stream works on one document after the other, so that memory stays bounded.
func (in *injector) stream(r io.Reader, w io.Writer) error {
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	for i, text := range bytes.Split(data, []byte("\n---\n")) {
		if i > 0 {
			out.WriteString("---\n")
		}
		rendered, err := in.document(string(text))
		if err != nil {
			return err
		}
		out.WriteString(rendered)
	}
	return out.Flush()
}

// patch is what a patch can say of the parts: the same names for all, and no
// ConfigMaps.
func (in *injector) patch(w io.Writer) error {
	root := yaml.MustParse(`apiVersion: apps/v1
kind: Deployment
metadata: {name: any}
spec:
  template:
    spec:
      containers:
      - {name: agent, volumeMounts: []}
      - {name: cache, volumeMounts: []}
`)
	root.SetLabels(map[string]string{label: "enabled"})
	if _, err := in.inject(root); err != nil {
		return err
	}
	text, err := root.String()
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, text)
	return err
}
