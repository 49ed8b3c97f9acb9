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

// appendConsumed writes a custom resource that was input as comments, so that the rendered file
// still shows it, can be rendered again, and can be restored.
func appendConsumed(dst, text []byte, ref finding.Ref) []byte {
	eol := lineEnding(text)
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
	kept, err := json.Marshal(keptDocument{string(text)})
	if err == nil {
		kept, err = json.Marshal(string(kept))
	}
	if err != nil {
		panic(err) // strings always marshal
	}
	dst = append(dst, `{"apiVersion": "v1", "kind": "List", "metadata": {"annotations": {"`+keys.Consumed+`": `...)
	return append(append(dst, kept...), "}}, \"items\": []}\n"...)
}

// keptDocument is what the annotation keys.Consumed of such a List says.
type keptDocument struct {
	Document string `json:"document"`
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
	var kept keptDocument
	if json.Unmarshal(text, &list) != nil || list.Kind != "List" || len(list.Items) > 0 ||
		json.Unmarshal([]byte(list.Metadata.Annotations[keys.Consumed]), &kept) != nil || kept.Document == "" {
		return nil, false
	}
	return []byte(kept.Document), true
}

// restoreLocal undoes localOnly.
func restoreLocal(o *krm.Object) ([]byte, bool) {
	annotations := o.Get("metadata", "annotations")
	was, marked := o.Annotation(keys.Consumed)
	if !marked || strings.HasPrefix(was, "{") { // a list's, which restoreFlowItems knows
		return nil, false
	}
	empty, err := o.Remove(annotations, func(n krm.Node) bool { return n.Key() == keys.Consumed || n.Key() == krm.LocalConfig })
	if err != nil {
		return nil, false
	}
	if emptied, ok := strings.CutPrefix(was, "emptied"); ok && empty {
		o.Restore(annotations, emptied)
	} else if was == "created" && empty {
		o.Reset()
		if o.RemoveField(annotations) != nil {
			return nil, false
		}
	}
	return o.Append(nil), true
}
