package krm

import (
	"bytes"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// SharedItems returns the items of a list that share text by an anchor with another item, or with
// the rest of the list. They are written without anchors and aliases and keyed by their index among
// the n items. It returns none for a list that kyaml does not read, or with an item that Read would
// refuse.
func SharedItems(list []byte, n int) map[int][]byte {
	if !mayAlias(list) {
		return nil
	}
	plain := bytes.ReplaceAll(list, []byte("\r\n"), []byte("\n"))
	var document yaml.Node
	if yaml.Unmarshal(plain, &document) != nil || len(document.Content) != 1 {
		return nil
	}
	if _, problem := refused(&document, plain); problem != "" {
		return nil
	}
	_, items := step{key: "items", index: -1}.in(document.Content[0])
	if items == nil || items.Kind != yaml.SequenceNode || len(items.Content) != n {
		return nil
	}
	shared := make(map[int][]byte)
	for i := range sharing(&document, items) {
		shared[i] = nil
	}
	if len(shared) == 0 {
		return nil
	}
	root := yaml.NewRNode(&document)
	if root.DeAnchor() != nil {
		return nil
	}
	_, items = step{key: "items", index: -1}.in(root.YNode())
	for i := range shared {
		text, err := BlockStyle(yaml.NewRNode(items.Content[i]))
		if err != nil {
			return nil
		}
		shared[i] = text
	}
	return shared
}

// mayAlias reports whether a text has a star that may begin an alias.
func mayAlias(text []byte) bool {
	for at := 0; ; at++ {
		star := bytes.IndexByte(text[at:], '*')
		if star < 0 {
			return false
		}
		at += star
		if (at == 0 || strings.IndexByte(" \t\n[,{", text[at-1]) >= 0) && at+1 < len(text) &&
			strings.IndexByte(" \t\r\n,[]{}*", text[at+1]) < 0 {
			return true
		}
	}
}

// sharing returns the indices of the items that share values with other items by aliases.
func sharing(document, items *yaml.Node) map[int]bool {
	const outside = -1
	owner := make(map[*yaml.Node]int) // of the values with an anchor
	var aliases []*yaml.Node
	var of []int // the owners of aliases
	var visit func(n *yaml.Node, item int)
	visit = func(n *yaml.Node, item int) {
		if n.Anchor != "" {
			owner[n] = item
		}
		if n.Kind == yaml.AliasNode {
			aliases, of = append(aliases, n.Alias), append(of, item)
		}
		for i, c := range n.Content {
			if n == items {
				visit(c, i)
			} else {
				visit(c, item)
			}
		}
	}
	visit(document, outside)
	shared := make(map[int]bool)
	for i, target := range aliases {
		if from := owner[target]; from != of[i] {
			shared[from], shared[of[i]] = true, true
		}
	}
	delete(shared, outside)
	return shared
}

// ReadShared reads an item that SharedItems returned. Its text differs from the author's, so it can
// be read but not edited.
func (o *Object) ReadShared(item, author []byte, origin Origin) (isObject bool, err error) {
	isObject, err = o.Read(item, Document{End: len(item)}, false, origin)
	if err != nil {
		return false, err
	}
	o.item, o.author, o.rewritten = true, author, true
	o.why = "an anchor that it shares with other text of its list"
	o.frozen = "it shares text with the rest of its list by an anchor, and cannot be edited"
	o.takeHostFile()
	return isObject, nil
}

// Frozen returns why the object can be read but not edited, or "" if it can be edited.
func (o *Object) Frozen() string { return o.frozen }
