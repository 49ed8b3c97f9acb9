package build

import (
	"bytes"
	"fmt"
	"math"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/krm"
)

// These are the limits of YAML and JSON. They are checked before a parser runs, because it needs
// some hundred bytes for each value.
const (
	maxFile     = 16 << 20  // bytes of a file
	maxDocument = 3 << 20   // bytes of a document; the API server accepts no larger request
	maxValues   = 250_000   // values of a document, with and without expanded aliases
	maxBuilt    = 1_500_000 // values that kustomize reads, counting a file each time it is read
	maxNesting  = 100       // levels of nested flow collections
)

// limit reports the first document of a file that exceeds the limits. It counts the values of all
// documents.
func (b *builder) limit(file string, data []byte) (values int, within bool) {
	refuse := func(line int, text string, args ...any) (int, bool) {
		b.report("source/limit", file, fmt.Sprintf(text, args...),
			"split it, or leave it out of the source").Line = line
		return values, false
	}
	if len(data) > maxFile {
		return refuse(0, "the file has %d bytes, more than %d", len(data), maxFile)
	}
	for d := range krm.Documents(data) {
		text := data[d.Start:d.End]
		line := func(at int) int { return 1 + bytes.Count(data[:d.Start+at], []byte("\n")) }
		if len(text) > maxDocument {
			return refuse(line(0), "the document has %d bytes, more than %d", len(text), maxDocument)
		}
		n, at := count(text)
		if at >= 0 {
			return refuse(line(at),
				"the document has more than %d values, or %d levels of flow collections", maxValues,
				maxNesting)
		}
		values += n
		if bytes.IndexByte(text, '&') >= 0 && bytes.IndexByte(text, '*') >= 0 {
			root, err := yaml.Parse(string(text))
			if err != nil {
				continue // the parser of the file reports the reason and the place
			}
			if n := expanded(root.YNode(), map[*yaml.Node]int{}); n > maxValues {
				return refuse(line(0), "the aliases of the document repeat more than %d values",
					maxValues)
			}
		}
	}
	return values, true
}

// count returns an upper bound of the values of a document: each follows one of these characters,
// which also occur in strings. at is the offset at which there are too many, or -1.
func count(text []byte) (values, at int) {
	depth := 0
	for i, c := range text {
		switch c {
		case '[', '{':
			depth++
			values++
		case ']', '}':
			depth = max(0, depth-1)
		case '\n', ':', ',', '-', '?':
			values++
		}
		if values > maxValues || depth > maxNesting {
			return values, i
		}
	}
	return values, -1
}

// expanded returns the number of values after each alias is replaced by the node that it repeats.
func expanded(n *yaml.Node, known map[*yaml.Node]int) int {
	if n == nil {
		return 0
	}
	if v, ok := known[n]; ok {
		return v
	}
	known[n] = math.MaxInt32 // for a node that contains itself
	total := 1 + expanded(n.Alias, known)
	for _, child := range n.Content {
		total = min(math.MaxInt32, total+expanded(child, known))
	}
	known[n] = total
	return total
}
