package kagentagent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
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

// get returns the value of a field, nil where there is none.
func (o ordered) get(key string) any {
	for _, p := range o {
		if p.key == key {
			return p.value
		}
	}
	return nil
}

// set adds a value that is not empty, and no number below zero.
func (o *ordered) set(key string, value any) {
	v := reflect.ValueOf(value)
	if !v.IsZero() && !((v.Kind() == reflect.Map || v.Kind() == reflect.Slice) && v.Len() == 0) &&
		!(v.CanInt() && v.Int() < 0) {
		o.add(key, value)
	}
}
