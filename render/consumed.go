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
	// ConsumedLine begins the lines of a consumed custom resource in a rendered file.
	ConsumedLine = "#| "
	unendedMark  = ", without a line feed at its end"
)

// consumedNote is what the annotation keys.Consumed says, where no comment has a place.
type consumedNote struct {
	krm.Note
	// Items are those of a list between brackets.
	Items []keptItems `json:"items,omitempty"`
	// Document is what was all of a JSON file, in whose place an empty List keeps it.
	Document string `json:"document,omitempty"`
}

// keptItems are consumed items of a list that follow each other, as their author wrote
// them, with the commas that set them apart from others.
type keptItems struct {
	// After is how many of the list's items are before them; all if it has no other.
	After int    `json:"after,omitempty"`
	Text  string `json:"text"`
}

const all = -1

// readNote parses a note. It reports false for any text that JSON does not write.
func readNote(text string) (note consumedNote, ok bool) {
	err := json.Unmarshal([]byte(text), &note)
	return note, err == nil && note.JSON() == text
}

// JSON writes the note.
func (n *consumedNote) JSON() string {
	text, err := json.Marshal(n)
	if err != nil {
		panic(err) // strings always marshal
	}
	return string(text)
}

// line is the annotation as a line of YAML.
func (n *consumedNote) line() string {
	return keys.Consumed + ": '" + strings.ReplaceAll(n.JSON(), "'", "''") + "'\n"
}

// withoutComments makes the consumed items of a block list items again. The lines that
// mark them stay, see withoutMarks, so that all lines are those of the file.
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

// withoutMarks returns the text before an item without the line that marks it as
// consumed, and whether that says that the item's last line had no end.
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

// appendConsumed writes a custom resource that was input as comments, so that the rendered file
// still shows it, can be rendered again, and can be restored.
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

// restoreConsumed undoes appendConsumed and appendKept. Lines that somebody added
// below are kept as they are. The origin of the text becomes that of the resource.
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

// uncomment returns a line of a consumed custom resource as its author wrote it, and other lines
// unchanged.
func uncomment(line []byte) (written []byte, consumed bool) {
	if written, consumed = bytes.CutPrefix(line, []byte(ConsumedLine)); consumed {
		return written, true
	}
	return bytes.CutPrefix(line, []byte(ConsumedLine[:2]))
}

// appendKept writes a custom resource that was input, and is all of a JSON file,
// as an empty List that keeps it.
func appendKept(dst, text []byte) []byte {
	kept, err := json.Marshal((&consumedNote{Document: string(text)}).JSON())
	if err != nil {
		panic(err) // strings always marshal
	}
	dst = append(dst, `{"apiVersion": "v1", "kind": "List", "metadata": {"annotations": {"`+
		keys.Consumed+`": `...)
	return append(append(dst, kept...), "}}, \"items\": []}\n"...)
}

// restoreKept undoes appendKept.
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

// restoreLocal undoes localOnly.
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
