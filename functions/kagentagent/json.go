package kagentagent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// object is a mapping of a manifest.
type object = map[string]any

// ordered is a JSON object whose fields keep their order.
type ordered []pair

type pair struct {
	key   string
	value any
}

// MarshalJSON writes the fields in order.
func (o ordered) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, p := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err1 := json.Marshal(p.key)
		value, err2 := json.Marshal(p.value)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("writing %s: %w", p.key, err2)
		}
		b.Write(append(append(key, ':'), value...))
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

func (o *ordered) add(key string, value any) { *o = append(*o, pair{key, value}) }

// text adds a text that is not empty.
func (o *ordered) text(key, value string) {
	if value != "" {
		o.add(key, value)
	}
}

// number adds what a resource has as text and the configuration as a number.
func (o *ordered) number(key, value string) {
	if f, err := strconv.ParseFloat(value, 64); err == nil {
		o.add(key, f)
	}
}

// positive adds a number above 0.
func (o *ordered) positive(key string, value int) {
	if value > 0 {
		o.add(key, value)
	}
}

func (o *ordered) integer(key string, value *int) {
	if value != nil {
		o.add(key, *value)
	}
}

// list adds a list that is not empty.
func (o *ordered) list(key string, values []string) {
	if len(values) > 0 {
		o.add(key, values)
	}
}
