package expand

import (
	"encoding/json"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/multi"
)

// source is a custom resource that a generated object remembers.
type source struct {
	*krm.Object
	at place // of the object
	// own says that the object was made from it, and not only with its help.
	own bool
	// was is the name that the object was rendered for.
	was string
	// expands says that the resource is one of those that expand, or that they
	// refer to.
	expands bool
}

// Reads reports whether a kind is read by a function at all, whether it is one of
// those that expand, or that they refer to, and whether it is in no namespace.
type Reads func(apiVersion, kind string) (read, expands, cluster bool)

// CollectSources reads the custom resources that a generated object was made
// from. They count only where the package does not have them itself.
func (s *Set) CollectSources(generated *krm.Object, reads Reads) {
	text, remembers := generated.Annotation(keys.Source)
	if !remembers {
		return
	}
	data := []byte(text)
	var list []json.RawMessage
	if json.Unmarshal(data, &list) != nil {
		list = []json.RawMessage{data}
	}
	_, was, _ := strings.Cut(generated.Get("metadata", "annotations", keys.RenderedFor).Text(), "/")
	for i, data := range list {
		o := new(krm.Object)
		isObject, err := o.ReadMade(data, generated)
		read, expands, cluster := reads(o.APIVersion, o.Kind)
		if err == nil && isObject && expands && !cluster {
			isObject, err = o.ReadMade(moved(data, generated, i == 0), generated)
		}
		if err == nil && isObject && read {
			s.sources = append(s.sources, source{o, placeOf(generated), i == 0, was, expands})
		}
	}
}

// moved sets on a resource the namespace, and its own one the name, that a host
// has given the object that remembers it.
func moved(data []byte, to *krm.Object, own bool) []byte {
	tree, err := yaml.Parse(string(data))
	if err != nil {
		return data
	}
	if own {
		err = tree.PipeE(yaml.SetK8sName(to.Name))
	}
	if to.Namespace != "" {
		err = multi.Errors(err, tree.PipeE(yaml.SetK8sNamespace(to.Namespace)))
	} else {
		err = multi.Errors(err, tree.PipeE(yaml.Lookup("metadata"), yaml.Clear("namespace")))
	}
	out, err2 := AppendJSON(nil, tree.YNode())
	if multi.Errors(err, err2) != nil {
		return data
	}
	return out
}

// ResolveSources adds to the package the custom resources that only generated
// objects remember. collect takes one, as if an author had written it.
func (s *Set) ResolveSources(collect func(*krm.Object)) {
	slices.SortStableFunc(s.sources, func(a, b source) int { // one that made the object first
		switch {
		case a.own == b.own:
			return 0
		case a.own:
			return -1
		}
		return 1
	})
	for _, from := range s.sources {
		k := index.KeyOf(from.Ref)
		if s.index.Has(k) {
			continue
		}
		if !from.expands {
			collect(from.Object)
			continue
		}
		s.builder.Enter(index.Entry{Key: k, APIVersion: from.APIVersion, File: from.Origin.File,
			Line: int32(from.Origin.Line)})
		known := len(s.resources)
		if collect(from.Object); len(s.resources) > known && from.own {
			r := s.resources[known]
			r.at, r.was, r.remembered = from.at, from.was, true
		}
	}
}

// StandsIn returns the texts of the objects that take the place of a generated
// one, because a host dropped the custom resource that it remembers.
func (s *Set) StandsIn(o *krm.Object) (texts [][]byte, found bool) {
	r := s.at[placeOf(o)]
	if r == nil || !r.remembered {
		return nil, false
	}
	return r.texts, true
}

// Remembered returns, as YAML, the custom resources that only a generated object remembers, for a
// package that is restored as its author wrote it. If several objects remember one, it is restored
// from the first.
func (s *Set) Remembered(o *krm.Object) (texts [][]byte, err error) {
	at := placeOf(o)
	for i, from := range s.sources {
		k := index.KeyOf(from.Ref)
		same := func(t source) bool { return index.KeyOf(t.Ref) == k }
		if from.at != at || !from.expands || s.index.Has(k) ||
			slices.ContainsFunc(s.sources[:i], same) {
			continue
		}
		tree, err := from.Parse()
		if err != nil {
			return nil, err
		}
		text, err := krm.BlockStyle(tree)
		if err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	return texts, nil
}
