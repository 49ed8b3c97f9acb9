package render

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"path"
	"slices"

	"github.com/armature-dev/armature/functions/krm"
)

func (w *worker) renderFile(i int) error {
	f := w.src.Files[i]
	asIs := w.asIs(&f)
	if asIs && w.opt.ObjectsOnly {
		return nil
	}
	data, err := w.read(i, w.buffers.in)
	if err != nil {
		return reading(f.Path, err)
	}
	if f.Data == nil {
		w.buffers.in = data[:0]
	}
	w.stats.Files++
	if asIs {
		return w.sink(f.Path, data)
	}
	if w.sums[i] != 0 && maphash.Bytes(w.seed, data) != w.sums[i] {
		return fmt.Errorf("%s changed while it was rendered: try again", f.Path)
	}
	w.file.spilled = false
	w.file.json, w.file.aside = w.opt.Beside && path.Ext(f.Path) == ".json", w.file.aside[:0]
	// Generated text doubles most workloads. Unlike slices.Grow, make touches no memory.
	if room := 3 * len(data); !w.opt.Pieces && cap(w.buffers.out) < room {
		w.buffers.out = make([]byte, 0, room)
	}
	w.buffers.out = w.appendFile(w.buffers.out[:0], data, f.Path, w.forms[i])
	if w.file.failure != nil {
		return w.file.failure
	}
	if len(w.file.aside) > 0 {
		if err := w.sink(FileBeside(f.Path), w.file.aside); err != nil {
			return err
		}
	}
	if len(w.buffers.out) == 0 && len(data) > 0 {
		return w.sink(f.Path, nil)
	}
	return w.sink(f.Path, w.buffers.out)
}

// spill passes a large part of a file to the sink if the sink accepts pieces. It keeps the last
// line ending, which the end of the file may remove.
func (w *worker) spill(dst []byte, file string) []byte {
	if !w.opt.Pieces || len(dst) < pieceSize || w.file.failure != nil {
		return dst
	}
	if !w.file.spilled && !w.undo && BeginsJSON(dst) { // another document follows
		dst = slices.Insert(dst, 0, []byte(jsonLead+krm.LineEnding(dst))...)
	}
	w.file.spilled = true
	kept := len(dst) - len("\r\n")
	w.file.failure = w.sink(file, dst[:kept])
	return append(dst[:0], dst[kept:]...)
}

// appendFile renders the text of one file.
func (w *worker) appendFile(dst, data []byte, file string, form form) []byte {
	line, at := 1, 0
	from := len(dst)
	for d := range krm.DocumentsOf(data, !form.several) {
		w.stats.Documents++
		dst = w.spill(dst, file)
		line += bytes.Count(data[at:d.Start], []byte{'\n'})
		at = d.Start
		origin := krm.Origin{File: file, Line: line}
		text := data[d.Start:d.End]
		start := len(dst)
		if start > from {
			dst = krm.EndLine(dst, krm.LineEnding(data))
		}
		if lead := data[d.Lead:d.Start]; d.Lead > 0 ||
			!bytes.Equal(trimEnd(lead), []byte(jsonLead)) {
			dst = append(dst, lead...)
		}
		body := len(dst)
		if source, ok := restoreConsumed(text, &origin); ok &&
			(w.undo || w.pkg.KeepCustomResources()) {
			dst = append(dst, source...)
			continue
		} else if ok {
			dst = w.appendDocument(dst, source, krm.Document{End: len(source)}, false, origin)
			continue
		}
		if form.list != nil {
			dst = w.appendItems(dst, *form.list, file)
			continue
		}
		if form.lists {
			if list, ok := listOf(data, d, line, true); ok {
				dst = w.appendItems(dst, list, file)
				continue
			}
		}
		dst = w.appendDocument(dst, data, d, false, origin)
		if len(dst) == body && len(text) > 0 { // dropped with its separator
			dst = dst[:start]
		}
	}
	if !w.file.spilled && !w.undo {
		dst = leadJSON(dst, data)
	}
	return dst
}
