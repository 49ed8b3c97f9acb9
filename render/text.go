package render

import (
	"bytes"
	"cmp"
	"errors"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
)

// jsonLead is the first line of a stream that would begin with a JSON object and continues with
// other documents. kubectl reads all of a stream that begins with a brace as JSON, and stops at the
// first "---".
const jsonLead = "--- # " + keys.Stream + ": YAML, although JSON comes first"

// leadJSON inserts jsonLead before a rendered stream that needs it, unless the stream is unchanged.
func leadJSON(out, data []byte) []byte {
	if !BeginsJSON(out) || bytes.Equal(out, data) {
		return out
	}
	several := 0
	for range krm.Documents(out) {
		if several++; several > 1 {
			return slices.Insert(out, 0, []byte(jsonLead+krm.LineEnding(data))...)
		}
	}
	return out
}

// BeginsJSON reports whether kubectl would read a stream as JSON.
func BeginsJSON(stream []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(stream, " \t\r\n"), []byte{'{'})
}

// trimEnd removes the line ending at the end of a text.
func trimEnd(text []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(text, []byte{'\n'}), []byte{'\r'})
}

// SyntaxRule is the rule of SyntaxFinding.
const SyntaxRule = "package/syntax"

// SyntaxFinding returns the finding for text that cannot be read and the error of reading it.
func SyntaxFinding(err error, text []byte) finding.Finding {
	f := finding.Finding{Rule: SyntaxRule, Severity: finding.Error, Message: err.Error(),
		Hint: syntaxHint(text)}
	var at *krm.SyntaxError
	if errors.As(err, &at) {
		f.File, f.Line, f.Message, f.Hint = at.File, at.Line, at.Message, cmp.Or(at.Hint, f.Hint)
	}
	if binary(text) && !strings.HasPrefix(f.Message, "UTF-16") {
		f.Message, f.Hint = "this is not a text file",
			"rename it, or leave it out with spec.exclude in armature.yaml"
	}
	switch {
	case f.Hint != correct:
	case path.Ext(f.File) == ".json" && noManifest(text):
		f.Severity, f.Hint =
			finding.Warning,
			"if it is not a manifest, leave the file out with spec.exclude in armature.yaml; "+
				"otherwise correct the JSON"
	default:
		f.Hint = remedyFor(f.Message)
	}
	return f
}

// binary reports whether text is a binary file: it is not UTF-8 and contains control characters.
func binary(text []byte) bool {
	return !utf8.Valid(text) &&
		bytes.ContainsFunc(text, func(r rune) bool {
			return r < ' ' && r != '\t' && r != '\n' && r != '\r' && r != '\f'
		})
}

// remedyFor returns the hint for an error that the text itself does not explain.
func remedyFor(message string) string {
	for _, known := range [...]struct{ part, hint string }{
		{"',' or ']'",
			"close the bracket that opens here or above, or put the text between quotes"},
		{"',' or '}'", "close the brace that opens here or above, or put the text between quotes"},
		{"expected key",
			"indent the lines of this mapping alike, and put a text with special characters " +
				"between quotes"},
		{"expected '-'", "indent the items of this list alike"},
		{"mapping values", "put the text between quotes, or indent the line"},
		{"a single value",
			"write a manifest, which begins with apiVersion and kind, or leave the file out with " +
				"spec.exclude in armature.yaml"},
		{`"apiVersion" occurs twice`, betweenObjects},
		{`"kind" occurs twice`, betweenObjects},
		{`"metadata" occurs twice`, betweenObjects},
		{"occurs twice", "remove one of the two"},
	} {
		if strings.Contains(message, known.part) {
			return known.hint
		}
	}
	return correct
}

const betweenObjects = "put a line --- between two objects, or remove one of the two keys"

// noManifest reports whether text in a JSON file, for example with comments, is not a Kubernetes
// object for any other reader either: it has no apiVersion, and no escape with which a key could be
// written in another way.
func noManifest(text []byte) bool {
	return utf8.Valid(text) && !bytes.ContainsAny(text, "\\!\x00") &&
		!bytes.Contains(bytes.ToLower(text), []byte("apiversion"))
}

const correct = "correct the YAML"

// streamOfJSON matches the end of an object and the beginning of the next one.
var streamOfJSON = text.Pattern(`\}[ \t\r]*\n\s*\{`)

var directive = text.Pattern(`(?m)^%[A-Z]`)

// syntaxHint returns the hint for text that is not YAML of the kind that manifests are.
func syntaxHint(src []byte) string {
	switch {
	case bytes.Contains(src, []byte("{{")):
		return "if it is a template (Helm, Go), render that first, or leave the file out with " +
			"spec.exclude in armature.yaml"
	case directive().Match(src):
		return "remove the line that begins with %: manifests need no directives, and none are read"
	}
	if start := bytes.TrimSpace(src); bytes.HasPrefix(start, []byte("{")) &&
		streamOfJSON().Match(start) {
		return "put a line --- between the objects, or send them as the items of a List"
	}
	return correct
}
