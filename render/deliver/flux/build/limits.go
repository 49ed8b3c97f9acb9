package build

import (
	"bytes"
	"fmt"
	"math"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/krm"
)

// Limits of YAML and JSON, which are checked before a parser runs: it needs some hundred bytes for
// each value.
const (
	maxFile     = 16 << 20 // bytes of a file
	maxDocument = 3 << 20  // bytes of a document; the API server takes no request beyond that
	// of a document, and of one whose aliases are replaced by what they repeat
	maxValues  = 250_000
	maxBuilt   = 1_500_000 // of all that kustomize reads, as often as it does
	maxNesting = 100       // of flow collections in each other
)

// limit reports the first document of a file that is beyond the limits. It counts the values of
// all of them.
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

// count returns at least the number of values of a document: each follows one of these characters,
// which texts have as well. at is the place where there are too many, -1 for none.
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

// expanded is the number of values where each alias is replaced by what it repeats.
func expanded(n *yaml.Node, known map[*yaml.Node]int) int {
	if n == nil {
		return 0
	}
	if v, ok := known[n]; ok {
		return v
	}
	known[n] = math.MaxInt32 // of one that contains itself
	total := 1 + expanded(n.Alias, known)
	for _, child := range n.Content {
		total = min(math.MaxInt32, total+expanded(child, known))
	}
	known[n] = total
	return total
}
