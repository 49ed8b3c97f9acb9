package krm

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Kept is the part of the author's text that the record of a change keeps.
type Kept struct {
	// Unended says that the text, the last of its file, ended without a line feed.
	Unended bool `json:"unended,omitempty"`
	// Original is the packed text, if the layout had to be rewritten to place an edit safely.
	Original string `json:"original,omitempty"`
}

// Attempt makes edits, which then wait in the object, and makes them again if the object has to be
// rewritten for them. In that case it keeps the original text if original is set.
func (o *Object) Attempt(why string, original bool, edit func(Kept) error) error {
	kept := Kept{Unended: o.Unended()}
	err := edit(kept)
	_, rewritten := o.Rewritten()
	switch {
	case errors.Is(err, ErrUncertain):
		if err := o.Canonicalize(why); err != nil {
			return err
		}
	case err != nil || !rewritten:
		return err
	}
	if original {
		if kept.Original, err = pack(o.Bytes()); err != nil {
			return fmt.Errorf("keeping the original of %s: %w", o.Ref, err)
		}
	}
	o.Reset()
	return edit(kept)
}

// Undo reads the record in an annotation, of which kept is a part, and takes back the recorded
// changes by edits that wait to be applied. It reports whether there was a record, and whether the
// text ended without a line feed. If the record keeps an original text, it is returned; the caller
// decides whether it still applies. with completes the remedy of a message.
func (o *Object) Undo(key, with string, record any, kept *Kept,
	revert func() error) (was bool, original []byte, unended bool, err error) {
	marker := o.Get("metadata", "annotations", key)
	if !marker.Exists() {
		return false, nil, false, nil
	}
	decoder := json.NewDecoder(strings.NewReader(marker.Text()))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(record); err != nil {
		return true, nil, false, fmt.Errorf(
			"the annotation %s cannot be read (%w): restore the file from "+
				"Git, or remove the annotation%s", key, err, with)
	}
	if original, err = unpack(kept.Original); err != nil {
		return true, nil, false, fmt.Errorf("the annotation %s holds a damaged original: %w", key, err)
	}
	err = revert()
	if errors.Is(err, ErrUncertain) {
		if err = o.Canonicalize("a layout in which changes cannot be taken back"); err == nil {
			err = revert()
		}
	}
	return true, original, kept.Unended, err
}

// pack compresses text with gzip and encodes it in base64.
func pack(text []byte) (string, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return "", err
	}
	if _, err := w.Write(text); err != nil {
		return "", err
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(b.Bytes()), nil
}

// maxOriginal bounds the size of an unpacked original.
const maxOriginal = 16 << 20

// unpack decodes text that pack wrote. It returns nil for "".
func unpack(packed string) ([]byte, error) {
	if packed == "" {
		return nil, nil
	}
	data, err := base64.StdEncoding.DecodeString(packed)
	if err != nil {
		return nil, err
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(r, maxOriginal+1))
	if err == nil && len(text) > maxOriginal {
		err = errors.New("it unpacks to more than 16 MiB")
	}
	return text, err
}
