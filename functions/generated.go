package functions

import "github.com/armature-dev/armature/functions/krm"

// Generated is a YAML document that belongs behind an object. Most of them are
// alike but for two names, and are not written before they have their place.
type Generated struct {
	text            []byte
	block           *krm.Block
	name, namespace string
}

// Document is a generated document of its own.
func Document(text []byte) Generated { return Generated{text: text} }

// Append writes the document's lines with n more spaces before each, and with
// a line ending of the caller's.
func (g *Generated) Append(dst []byte, n int, eol string) []byte {
	if g.block != nil {
		return g.block.Append(dst, n, eol, g.name, g.namespace)
	}
	return krm.AppendIndented(dst, g.text, n, eol)
}

// Text is the document alone.
func (g *Generated) Text() []byte { return g.Append(nil, 0, "\n") }
