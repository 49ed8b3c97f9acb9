package text

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// CanonicalJSON returns a JSON text in the canonical form for signatures and fingerprints: the JSON
// Canonicalization Scheme, RFC 8785. An ambiguous text is an error: an object with two fields of
// one name, invalid UTF-8, half a surrogate pair, or a number that no double holds. Numbers are
// doubles, as the scheme demands: integers beyond 2^53 are rounded.
func CanonicalJSON(text []byte) ([]byte, error) {
	value := jsontext.Value(bytes.Clone(text))
	if err := value.Canonicalize(); err != nil {
		return nil, fmt.Errorf("canonical JSON: %w", err)
	}
	for tokens := jsontext.NewDecoder(bytes.NewReader(text)); ; {
		token, err := tokens.ReadToken()
		if errors.Is(err, io.EOF) {
			return value, nil
		}
		if err == nil && token.Kind() == '0' {
			_, err = strconv.ParseFloat(token.String(), 64)
		}
		if err != nil {
			return nil, fmt.Errorf("canonical JSON: %w", err)
		}
	}
}
