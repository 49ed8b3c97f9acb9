package expand

import (
	"bytes"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/multi"
)

// Plain returns the objects that a custom resource generates, as manifests of
// their own: nothing in them says what they were made from. finish makes last
// changes to each; nil makes none.
func (s *Set) Plain(o *krm.Object, finish func(*yaml.RNode) error) (texts [][]byte, err error) {
	made, _ := s.Texts(o)
	for _, text := range made {
		tree, err := yaml.Parse(string(text))
		if err != nil {
			return nil, err
		}
		err = multi.Errors(tree.PipeE(yaml.ClearAnnotation(keys.RenderedFor)),
			tree.PipeE(yaml.ClearAnnotation(keys.Source)), yaml.ClearEmptyAnnotations(tree))
		if err == nil && tree.GetLabels()[identity.ManagedBy] == "armature" {
			err = tree.PipeE(yaml.Lookup("metadata", "labels"), yaml.Clear(identity.ManagedBy))
		}
		if err == nil && finish != nil {
			err = finish(tree)
		}
		if err != nil {
			return nil, err
		}
		plain, err := krm.BlockStyle(tree)
		if err != nil {
			return nil, err
		}
		texts = append(texts, bytes.TrimLeft(plain, "\n"))
	}
	return texts, nil
}
