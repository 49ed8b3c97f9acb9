package krm

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"io"
)

// Pack makes of a text what a record can keep of it: gzip in base64.
func Pack(text []byte) (string, error) {
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

// Unpack is the inverse of Pack; of "" it makes nil.
func Unpack(packed string) ([]byte, error) {
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
