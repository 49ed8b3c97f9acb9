package main

import (
	"fmt"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/render"
)

// equivalentPatch renders a workload and leaves of it what its author did not
// write.
func equivalentPatch() (string, error) {
	before := workload(0)
	rendered, err := render.Run(render.Source{Files: []render.File{{Path: "w.yaml", Data: []byte(before)}}}, render.Options{})
	if err != nil {
		return "", err
	}
	if len(rendered.Files) == 0 {
		return "", fmt.Errorf("rendering a generated workload: %v", rendered.Findings)
	}
	after, _, _ := strings.Cut(string(rendered.Files[0].Data), "\n---\n")
	old, err := yaml.Parse(before)
	if err != nil {
		return "", err
	}
	patch, err := yaml.Parse(after)
	if err != nil {
		return "", err
	}
	if !subtract(patch.YNode(), old.YNode()) {
		return "", fmt.Errorf("a generated workload was not rendered")
	}
	if err := patch.PipeE(yaml.Tee(yaml.SetField("kind", yaml.NewStringRNode("Deployment"))),
		yaml.Tee(yaml.SetField("apiVersion", yaml.NewStringRNode("apps/v1"))),
		yaml.LookupCreate(yaml.MappingNode, "metadata"), yaml.SetField("name", yaml.NewStringRNode("agent"))); err != nil {
		return "", err
	}
	return patch.String()
}

// subtract takes out of a node what old has, and reports whether anything is
// left. Items of lists are told apart by their names.
func subtract(n, old *yaml.Node) bool {
	if old == nil {
		return true
	}
	switch n.Kind {
	case yaml.MappingNode:
		var left []*yaml.Node
		for i := 0; i < len(n.Content); i += 2 {
			if subtract(n.Content[i+1], field(old, n.Content[i].Value)) {
				left = append(left, n.Content[i], n.Content[i+1])
			}
		}
		n.Content = left
		return len(left) > 0
	case yaml.SequenceNode:
		var left []*yaml.Node
		for i, item := range n.Content {
			name := field(item, "name")
			var same *yaml.Node
			for k, o := range old.Content {
				if oname := field(o, "name"); name != nil && oname != nil && name.Value == oname.Value || name == nil && k == i {
					same = o
				}
			}
			if subtract(item, same) {
				if same != nil && name != nil && field(item, "name") == nil {
					item.Content = append([]*yaml.Node{{Kind: yaml.ScalarNode, Value: "name"}, name}, item.Content...)
				}
				left = append(left, item)
			}
		}
		n.Content = left
		return len(left) > 0
	}
	return n.Value != old.Value
}

func field(n *yaml.Node, key string) *yaml.Node {
	for i := 0; n.Kind == yaml.MappingNode && i < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}
