package krm

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/functions/text"
)

// maxNodes bounds the number of values after aliases are expanded: a "billion laughs" document is
// small only as text.
const maxNodes = 200_000

// rewrite sets the object to the text that kyaml writes for it, in the block style that the scanner
// is certain of. If the scanner is still not certain, the object can be read as JSON, but not
// edited.
func (o *Object) rewrite(text []byte) error {
	plain := text
	if o.item { // a list item: its dash is in the place of a space
		plain = bytes.Clone(text)
		plain[bytes.IndexByte(plain, '-')] = ' '
	}
	// kyaml places some comments elsewhere when lines end in CRLF.
	plain = yamlEscapes(bytes.ReplaceAll(plain, []byte("\r\n"), []byte("\n")))
	var document yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(plain))
	if err := decoder.Decode(&document); err != nil {
		if err.Error() == "EOF" {
			o.empty()
			return nil
		}
		return o.parseError(err)
	}
	var second yaml.Node
	if err := decoder.Decode(&second); err == nil {
		return o.parseErrorAt(second.Line, "a second document without a \"---\" line of its own")
	} else if err.Error() != "EOF" {
		return o.parseError(err)
	}
	if line, message := refused(&document, plain); message != "" {
		return o.parseErrorAt(line, message)
	}
	root := yaml.NewRNode(&document)
	if err := root.DeAnchor(); err != nil {
		return o.parseError(err)
	}
	canonical, err := BlockStyle(root)
	if err != nil {
		return o.parseError(err)
	}
	var again tree
	if why, _ := again.scan(canonical, 0, len(canonical), false); why != "" {
		if noObject(root.YNode()) {
			o.empty()
			return nil
		}
		if root.YNode().Kind == yaml.ScalarNode {
			return o.parseErrorAt(document.Line, "no manifest: "+why)
		}
		// The text itself, which may be a Secret's, is not quoted.
		if why != o.why {
			why = o.why + ": " + why
		}
		o.frozen = fmt.Sprintf("text that can be read but not edited safely (%s)", why)
		if canonical, err = root.MarshalJSON(); err != nil {
			return o.parseErrorAt(document.Line, o.frozen)
		}
		if why, _ := again.scan(canonical, 0, len(canonical), false); why != "" {
			return o.parseErrorAt(document.Line, o.frozen)
		}
	}
	o.author, o.tree, o.start, o.end, o.rewritten = text, again, 0, len(canonical), true
	return nil
}

// empty leaves the object without values.
func (o *Object) empty() {
	o.tree, o.why = tree{src: o.tree.src, nodes: append(o.tree.nodes[:0], node{})}, ""
}

// refused returns the reason why a document is refused, and its line in the text, or "".
func refused(document *yaml.Node, text []byte) (line int, message string) {
	if n, line := expandedSize(document, map[*yaml.Node]int{}, map[*yaml.Node]bool{}); n > maxNodes {
		return line, fmt.Sprintf("aliases expand to more than %d values", maxNodes)
	}
	if line := beyond(document, 0, make(map[*yaml.Node]int)); line > 0 {
		return line, tooDeep
	}
	if line, key := DuplicateKey(document); key != "" {
		return line, fmt.Sprintf("the key %q occurs twice in one mapping", key)
	}
	if line := EmptyKey(document); line > 0 {
		return line, "a key without a text, which the API server refuses"
	}
	if line := bareTag(document, bytes.Split(text, []byte{'\n'})); line > 0 {
		return line, `a "!" without a name, which kubectl and kustomize do not read alike`
	}
	return 0, ""
}

// noObject reports whether a mapping certainly has neither apiVersion nor kind. A key with a tag,
// such as a merge, may bring them in.
func noObject(n *yaml.Node) bool {
	for i := 0; n.Kind == yaml.MappingNode && i < len(n.Content); i += 2 {
		if key := n.Content[i]; key.Tag != yaml.NodeTagString || key.Value == "apiVersion" ||
			key.Value == "kind" {
			return false
		}
	}
	return n.Kind == yaml.MappingNode
}

// BlockStyle writes a document in block style throughout.
func BlockStyle(root *yaml.RNode) ([]byte, error) {
	blockStyles(root.YNode())
	text, err := root.String()
	return []byte(text), err
}

func blockStyles(n *yaml.Node) {
	if n.Kind != yaml.ScalarNode && len(n.Content) > 0 {
		n.Style &^= yaml.FlowStyle
	}
	n.Style &^= yaml.TaggedStyle
	for _, c := range n.Content {
		blockStyles(c)
	}
}

// expandedSize returns the number of values of a document after its aliases are expanded. A cycle
// counts as more than any bound.
func expandedSize(n *yaml.Node, known map[*yaml.Node]int,
	open map[*yaml.Node]bool) (size, line int) {
	if size, ok := known[n]; ok {
		return size, n.Line
	}
	if open[n] {
		return maxNodes + 1, n.Line
	}
	open[n] = true
	defer delete(open, n)
	size = 1
	if n.Kind == yaml.AliasNode {
		size, _ = expandedSize(n.Alias, known, open)
	}
	for _, c := range n.Content {
		more, at := expandedSize(c, known, open)
		size += more
		if size > maxNodes {
			if line == 0 {
				line = at
			}
			return maxNodes + 1, line
		}
	}
	known[n] = size
	return size, n.Line
}

// beyond returns the line of a value that is deeper than maxDepth levels after aliases are
// expanded, or 0: the time to write a document grows with the square of its depth. seen maps values
// to the levels at which they were visited.
func beyond(n *yaml.Node, level int, seen map[*yaml.Node]int) (line int) {
	if level > maxDepth {
		return n.Line
	}
	if before, met := seen[n]; met && before >= level {
		return 0
	}
	seen[n] = level
	if n.Kind == yaml.AliasNode && beyond(n.Alias, level, seen) > 0 {
		return n.Line
	}
	for _, c := range n.Content {
		if line := beyond(c, level+1, seen); line > 0 {
			return line
		}
	}
	return 0
}

// DuplicateKey returns the first key that occurs twice in one mapping, and the line of its second
// occurrence, or "".
func DuplicateKey(n *yaml.Node) (line int, key string) {
	if n.Kind == yaml.MappingNode {
		seen := make(map[string]bool, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			k := n.Content[i]
			if seen[k.Value] && k.Kind == yaml.ScalarNode && k.Value != "<<" {
				return k.Line, k.Value
			}
			seen[k.Value] = true
		}
	}
	for _, c := range n.Content {
		if line, key := DuplicateKey(c); key != "" {
			return line, key
		}
	}
	return 0, ""
}

// EmptyKey returns the line of the first key that is null and has no text, which kyaml would write
// as an empty string, or 0.
func EmptyKey(n *yaml.Node) (line int) {
	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 && c.Kind == yaml.ScalarNode && c.Value == "" &&
			c.Tag == yaml.NodeTagNull {
			return c.Line
		}
		if line := EmptyKey(c); line > 0 {
			return line
		}
	}
	return 0
}

// bareTag returns the line of the first value that has a tag without a name, or 0.
func bareTag(n *yaml.Node, lines [][]byte) (line int) {
	number, text := 0, []rune(nil) // the line that was split last
	var find func(n *yaml.Node) int
	find = func(n *yaml.Node) int {
		if n.Line > 0 && n.Line <= len(lines) {
			if n.Line != number {
				number, text = n.Line, []rune(string(lines[n.Line-1]))
			}
			if at := n.Column - 1; at >= 0 && at < len(text) && text[at] == '!' &&
				(at+1 == len(text) || text[at+1] == ' ' || text[at+1] == '\t') {
				return n.Line
			}
		}
		for _, c := range n.Content {
			if line := find(c); line > 0 {
				return line
			}
		}
		return 0
	}
	return find(n)
}

var yamlLine = text.Pattern(`^(?:yaml: )?(?:line (\d+): )?`)

// parseError moves the line of an error of the YAML library into the file.
func (o *Object) parseError(err error) error {
	message := withoutValues(err.Error())
	m := yamlLine().FindStringSubmatch(message)
	line, _ := strconv.Atoi(m[1])
	message = strings.TrimPrefix(message, m[0])
	if strings.HasPrefix(message, "did not find expected") {
		// The library counts from 0 in errors of its parser, and the end of the text as a line.
		line = min(line+1,
			1+bytes.Count(bytes.TrimRight(o.tree.src[o.start:o.end], "\r\n"), []byte{'\n'}))
	}
	if strings.HasPrefix(o.why, "a tab") {
		message += " (indent with spaces, not tabs)"
	}
	return o.parseErrorAt(max(line, 1), message)
}

var quotedValue = text.Pattern("`[^`]*`")

// withoutValues removes the values, which may be secret, from an error of the YAML library.
func withoutValues(message string) string {
	return quotedValue().ReplaceAllString(message, "a value")
}

func (o *Object) parseErrorAt(line int, message string) error {
	return &SyntaxError{File: o.Origin.File, Line: o.Origin.Line + line - 1, Message: message}
}

// SameAs reports whether another text is the block-style form of the object.
func (o *Object) SameAs(text []byte) (bool, error) {
	if !o.rewritten {
		if err := o.rewrite(o.Bytes()); err != nil {
			return false, err
		}
	}
	if o.inline {
		return sameValue(o.tree.src[o.start:o.end], text)
	}
	// kyaml moves some comments and blank lines only when it rewrites its own text, so both texts
	// go through it once more.
	one, two := Object{Origin: o.Origin}, Object{Origin: o.Origin, item: o.item}
	if err := multi.Errors(one.rewrite(o.tree.src[o.start:o.end]), two.rewrite(text)); err != nil {
		return false, err
	}
	return bytes.Equal(one.tree.src[one.start:one.end], two.tree.src[two.start:two.end]), nil
}
