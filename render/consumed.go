package render

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
)

const (
	consumedMark = "# " + keys.Consumed + ": "
	// ConsumedLine is the prefix of the lines of a consumed custom resource in a rendered file.
	ConsumedLine = "#| "
	unendedMark  = ", without a line feed at its end"
)

// consumedNote is the value of the annotation keys.Consumed, which is used where comments are not
// possible.
type consumedNote struct {
	krm.Note
	// Items are the consumed items of a list in flow style.
	Items []keptItems `json:"items,omitempty"`
	// Document is the former content of a JSON file, which an empty List replaces.
	Document string `json:"document,omitempty"`
}

// keptItems are adjacent consumed items of a list as written, with the commas that separate them
// from others.
type keptItems struct {
	// After is the number of the list's items before them; all if the list has no other items.
	After int    `json:"after,omitempty"`
	Text  string `json:"text"`
}

const all = -1

// readNote parses a note. It returns false for a text that JSON does not return.
func readNote(text string) (note consumedNote, ok bool) {
	err := json.Unmarshal([]byte(text), &note)
	return note, err == nil && note.JSON() == text
}

// JSON returns the note as JSON.
func (n *consumedNote) JSON() string {
	text, err := json.Marshal(n)
	if err != nil {
		panic(err) // strings always marshal
	}
	return string(text)
}

// line returns the annotation as a line of YAML.
func (n *consumedNote) line() string {
	return keys.Consumed + ": '" + strings.ReplaceAll(n.JSON(), "'", "''") + "'\n"
}

// withoutComments converts the consumed items of a block list back to items. It keeps the lines
// that mark them, so that the lines keep their numbers; withoutMarks removes them.
func withoutComments(list []byte) (text []byte) {
	within := false
	for line := range bytes.Lines(list) {
		if bytes.HasPrefix(line, []byte(consumedMark)) {
			within = true
		} else if within {
			line, within = uncomment(line)
		}
		text = append(text, line...)
	}
	return text
}

// withoutMarks returns the text before an item without the line that marks it as consumed, and
// whether that line says that the item had no final line ending.
func withoutMarks(between []byte) (text []byte, unended bool) {
	if !bytes.Contains(between, []byte(consumedMark)) {
		return between, false
	}
	for line := range bytes.Lines(between) {
		if bytes.HasPrefix(line, []byte(consumedMark)) {
			unended = bytes.Contains(line, []byte(unendedMark))
			continue
		}
		text = append(text, line...)
	}
	return text, unended
}

// appendConsumed writes a consumed custom resource as comments, so that the rendered file shows it,
// can be rendered again, and can be restored.
func appendConsumed(dst, text []byte, ref finding.Ref) []byte {
	eol := krm.LineEnding(text)
	dst = append(dst, consumedMark...)
	dst = append(dst, ref.Kind+" "+ref.Name...)
	dst = append(dst, " (armature uninject restores it"...)
	if len(text) > 0 && text[len(text)-1] != '\n' {
		dst = append(dst, unendedMark...)
	}
	dst = append(append(dst, ')'), eol...)
	for line := range bytes.Lines(text) {
		if len(bytes.TrimRight(line, "\r\n")) == 0 {
			dst = append(dst, ConsumedLine[:2]...)
		} else {
			dst = append(dst, ConsumedLine...)
		}
		dst = append(dst, line...)
	}
	return dst
}

// restoreConsumed reverts appendConsumed and appendKept. It keeps lines that were added below. The
// origin of the text becomes that of the resource.
func restoreConsumed(text []byte, origin *krm.Origin) ([]byte, bool) {
	if document, ok := restoreKept(text); ok {
		origin.Kept = true
		return document, true
	}
	if !bytes.HasPrefix(text, []byte(consumedMark)) {
		return nil, false
	}
	origin.Line++
	var source []byte
	first, unended := true, false
	for line := range bytes.Lines(text) {
		if first {
			first, unended = false, bytes.Contains(line, []byte(unendedMark))
			continue
		}
		line, _ = uncomment(line)
		source = append(source, line...)
	}
	if unended {
		source = trimEnd(source)
	}
	return source, true
}

// uncomment returns a line of a consumed custom resource as written, and other lines unchanged.
func uncomment(line []byte) (written []byte, consumed bool) {
	if written, consumed = bytes.CutPrefix(line, []byte(ConsumedLine)); consumed {
		return written, true
	}
	return bytes.CutPrefix(line, []byte(ConsumedLine[:2]))
}

// appendKept writes a consumed custom resource that is all of a JSON file as an empty List with an
// annotation.
func appendKept(dst, text []byte) []byte {
	kept, err := json.Marshal((&consumedNote{Document: string(text)}).JSON())
	if err != nil {
		panic(err) // strings always marshal
	}
	dst = append(dst, `{"apiVersion": "v1", "kind": "List", "metadata": {"annotations": {"`+
		keys.Consumed+`": `...)
	return append(append(dst, kept...), "}}, \"items\": []}\n"...)
}

// restoreKept reverts appendKept.
func restoreKept(text []byte) (document []byte, ok bool) {
	if !BeginsJSON(text) || !bytes.Contains(text, []byte(keys.Consumed)) {
		return nil, false
	}
	var list struct {
		Kind     string
		Metadata struct{ Annotations map[string]string }
		Items    []any
	}
	if json.Unmarshal(text, &list) != nil || list.Kind != "List" || len(list.Items) > 0 {
		return nil, false
	}
	note, ok := readNote(list.Metadata.Annotations[keys.Consumed])
	return []byte(note.Document), ok && note.Document != ""
}

// restoreLocal reverts localOnly.
func restoreLocal(o *krm.Object) ([]byte, bool) {
	text, marked := o.Annotation(keys.Consumed)
	if !marked {
		return nil, false
	}
	note, ok := readNote(text)
	if !ok || note.Items != nil || note.Document != "" ||
		o.TakeNote(note.Note, keys.Consumed, krm.LocalConfig) != nil {
		return nil, false
	}
	return o.Append(nil), true
}
