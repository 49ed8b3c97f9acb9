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

// Kept is what the record of a change keeps of the author's text.
type Kept struct {
	// Unended says that the text, the last of its file, ended without a line feed.
	Unended bool `json:"unended,omitempty"`
	// Original is the text, packed, where the layout had to be rewritten to place an edit safely.
	Original string `json:"original,omitempty"`
}

// Attempt makes edits, which then wait in the object, and makes them again if the object has
// to be rewritten for them. original says that its text is kept then.
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

// Undo reads the record in an annotation, of which kept is a part, and takes back what it
// says by edits that wait to be applied. It reports whether there was a record, and whether
// the text ended without a line feed. An original text that the record keeps is returned; the
// caller decides whether it still holds. with is what goes with the annotation.
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

// pack makes of a text what a record can keep of it: gzip in base64.
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

// maxOriginal bounds what a record may unpack to.
const maxOriginal = 16 << 20

// unpack is the inverse of pack; of "" it makes nil.
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
