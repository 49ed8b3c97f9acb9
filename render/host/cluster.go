package host

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render"
)

// ForCluster returns a rendered file without the objects for tools, which not every consumer omits,
// and the number of remaining objects. A file without such objects keeps its bytes; a file with no
// other objects becomes empty.
func ForCluster(f render.File) (text []byte, objects int, err error) {
	if all, local := locals(f.Data); local == 0 {
		return f.Data, all, nil
	}
	return withObjects(f.Data)
}

// withObjects returns the documents of a stream that contain objects for a cluster, and the number
// of these objects.
func withObjects(stream []byte) (text []byte, objects int, err error) {
	var out bytes.Buffer
	for d := range krm.Documents(stream) {
		part := stream[d.Start:d.End]
		all, dropped := locals(part)
		objects += all - dropped
		switch {
		case all == dropped:
			continue
		case dropped > 0:
			if part, err = withoutItems(part); err != nil {
				return nil, 0, fmt.Errorf("leaving out what is %s: %w", krm.LocalConfig, err)
			}
			fmt.Fprintf(&out, "---\n%s", part)
		default:
			out.Write(stream[d.Lead:d.End])
		}
	}
	return out.Bytes(), objects, nil
}

// locals counts the objects of a text, and the objects among them that stay in the package.
func locals(text []byte) (all, local int) {
	render.Objects(render.File{Data: text}, func(o *krm.Object) {
		all++
		if Local(o) {
			local++
		}
	})
	return all, local
}

// Local reports whether an object stays in its package: its kind is for tools, or it is annotated
// config.kubernetes.io/local-config with a value other than "false".
func Local(o *krm.Object) bool {
	value, ok := o.Annotation(krm.LocalConfig)
	return render.LocalKind(o) || ok && value != "false"
}

// withoutItems returns a list without the items that stay in the package.
func withoutItems(list []byte) ([]byte, error) {
	tree, err := yaml.Parse(string(list))
	if err != nil {
		return nil, err
	}
	if err := tree.DeAnchor(); err != nil {
		return nil, err
	}
	if err := dropItems(tree); err != nil {
		return nil, err
	}
	text, err := tree.String()
	return []byte(text), err
}

// dropItems drops these items from a list and from the lists in it.
func dropItems(list *yaml.RNode) error {
	items := list.Field("items")
	if items == nil || items.Value.YNode().Kind != yaml.SequenceNode {
		return errors.New("it has no items")
	}
	content := &items.Value.YNode().Content
	var errs []error
	*content = slices.DeleteFunc(*content, func(n *yaml.Node) bool {
		item := yaml.NewRNode(n)
		text, err := item.String()
		if err != nil {
			errs = append(errs, err)
			return false
		}
		all, dropped := locals([]byte(text))
		if dropped > 0 && dropped < all {
			errs = append(errs, dropItems(item))
		}
		return dropped > 0 && dropped == all
	})
	return multi.Errors(errs...)
}
