// Package a2a computes the payload of signatures of an A2A agent card, and reads and writes
// signatures in the card: A2A 1.0, section 8.4, "Agent Card Signing".
package a2a

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/armature-dev/armature/functions/text"
)

// CardFile is the usual name of the file with an agent's card.
const CardFile = "agent-card.json"

// MaxCard is the maximum size of a card, in bytes.
const MaxCard = 1 << 20

// Signature is an AgentCardSignature: the parts of a JSON Web Signature without its payload.
type Signature struct {
	// Protected is the protected header, in base64url.
	Protected string `json:"protected"`
	// Signature is in base64url.
	Signature string `json:"signature"`
	// Header is not protected, so it is ignored.
	Header json.RawMessage `json:"header,omitempty"`
}

// Signatures returns the signatures of a card.
func Signatures(card []byte) ([]Signature, error) {
	var c struct {
		Signatures []Signature `json:"signatures"`
	}
	if err := json.Unmarshal(card, &c); err != nil {
		return nil, fmt.Errorf("reading the signatures: %w", err)
	}
	return c.Signatures, nil
}

// Payload returns the signed content of a card: the card without its signatures and without the
// fields that have the default value of A2A 1.0, in canonical form. Fields that A2A does not know
// stay. A card of A2A 0.3, which has no rule for defaults, keeps all of them.
func Payload(card []byte) ([]byte, error) {
	if len(card) > MaxCard {
		return nil, fmt.Errorf("the card has more than %d bytes", MaxCard)
	}
	once, err := text.CanonicalJSON(card) // refuses ambiguous texts
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	numbers := json.NewDecoder(bytes.NewReader(once))
	numbers.UseNumber()
	if err := numbers.Decode(&fields); err != nil || fields == nil {
		return nil, errors.New("the card is not a JSON object")
	}
	delete(fields, "signatures")
	if number, inexact := inexactInteger(card); inexact {
		return nil, fmt.Errorf(
			"the card has the integer %.40s, which canonical JSON would round: write it as a string", number)
	}
	if _, current := fields["supportedInterfaces"]; current {
		withoutDefaults(fields)
	}
	payload, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	return text.CanonicalJSON(payload)
}

// Digest returns the name of a payload: sha256: and 64 hexadecimal digits.
func Digest(payload []byte) string {
	return fmt.Sprintf("sha256:%x", sha256.Sum256(payload))
}

// inexactInteger finds an integer that no double holds: a signature over its canonical form would
// also be valid for neighbouring integers.
func inexactInteger(card []byte) (number string, found bool) {
	for tokens := jsontext.NewDecoder(bytes.NewReader(card)); ; {
		token, err := tokens.ReadToken()
		if err != nil {
			return "", false
		}
		if token.Kind() != '0' || strings.ContainsAny(token.String(), ".eE") {
			continue
		}
		const exact = 1 << 53
		if n, err := strconv.ParseInt(token.String(), 10, 64); err != nil || n < -exact || n > exact {
			return token.String(), true
		}
	}
}

// defaults are the fields that a card of A2A 1.0 omits with their default: those that are neither
// required nor optional. Each line has the path, in which * is every field of a mapping and lists
// are transparent, and the default in JSON.
//
//go:embed defaults.txt
var defaults string

// withoutDefaults removes from a card the fields that have their default.
func withoutDefaults(card map[string]any) {
	for line := range strings.Lines(defaults) {
		path, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		var value any
		if err := json.Unmarshal([]byte(text), &value); err != nil {
			panic(err) // a test reads it
		}
		drop(card, strings.Split(path, "."), value)
	}
}

func drop(from any, path []string, value any) {
	if list, ok := from.([]any); ok {
		for _, item := range list {
			drop(item, path, value)
		}
		return
	}
	fields, _ := from.(map[string]any)
	switch have, there := fields[path[0]]; {
	case path[0] == "*":
		for _, item := range fields {
			drop(item, path[1:], value)
		}
	case len(path) > 1:
		drop(have, path[1:], value)
	case there && (have == nil || reflect.DeepEqual(have, value)):
		delete(fields, path[0])
	}
}

// Sign puts signatures into the text of a card, replacing those that it has. The rest of the text
// stays.
func Sign(card []byte, signatures []Signature) ([]byte, error) {
	lines := bytes.IndexByte(bytes.TrimSpace(card), '\n') >= 0
	text, err := json.Marshal(signatures)
	if lines && err == nil {
		text, err = json.MarshalIndent(signatures, "  ", "  ")
	}
	if err != nil {
		return nil, err
	}
	d := jsontext.NewDecoder(bytes.NewReader(card))
	if open, err := d.ReadToken(); err != nil || open.Kind() != '{' {
		return nil, errors.New("the card is not a JSON object")
	}
	end, fields := d.InputOffset(), 0
	for ; d.PeekKind() == '"'; fields++ {
		name, err := d.ReadToken()
		if err != nil {
			return nil, err
		}
		named := name.String() == "signatures"
		value, err := d.ReadValue()
		if err != nil {
			return nil, err
		}
		end = d.InputOffset()
		if named {
			return slices.Concat(card[:int(end)-len(value)], text, card[end:]), nil
		}
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, err
	}
	field := `"signatures":`
	if lines {
		field = "\n  " + `"signatures": `
	}
	if fields > 0 {
		field = "," + field
	}
	return slices.Concat(card[:end], []byte(field), text, card[end:]), nil
}
