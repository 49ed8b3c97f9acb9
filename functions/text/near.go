package text

import (
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Near reports whether two names differ by one edit, or by two if the name has six letters or more.
func Near(name, other string) bool {
	return name != other && editDistance(name, other, tooFar(name)) < tooFar(name)
}

// tooFar returns the number of edits at which two names are unrelated.
func tooFar(name string) int {
	if len(name) < 6 {
		return 2
	}
	return 3
}

// Nearest returns the first of the names with the fewest edits that is Near, or "".
func Nearest(name string, names []string) (nearest string) {
	distance := tooFar(name)
	for _, other := range names {
		if d := editDistance(name, other, distance); d < distance {
			nearest, distance = other, d
		}
	}
	return nearest
}

// editDistance counts letters that are missing, added, replaced, or swapped with their neighbour
// (optimal string alignment). The result is at most limit.
func editDistance(a, b string, limit int) int {
	if d := len(a) - len(b); d >= limit || -d >= limit {
		return limit
	}
	var few [3][64]int // most names are shorter
	before, row, next := few[0][:], few[1][:], few[2][:]
	if len(b) >= len(row) {
		before, row, next = make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	}
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next[j+1] = min(row[j]+cost, row[j+1]+1, next[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row, next = row, next, before
	}
	return min(row[len(b)], limit)
}

// nearestField returns the field of a type whose JSON name is nearest to the last name of a path
// such as spec.images[0].nmae, or "".
func nearestField(t reflect.Type, path string) string {
	steps := FieldSteps(path)
	for i, step := range steps {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		switch t.Kind() {
		case reflect.Slice, reflect.Array, reflect.Map:
			t = t.Elem()
		case reflect.Struct:
			fields := jsonFields(t, map[string]reflect.Type{})
			if i == len(steps)-1 {
				return Nearest(step, slices.Sorted(maps.Keys(fields)))
			}
			if t = fields[step]; t == nil {
				return ""
			}
		default:
			return ""
		}
	}
	return ""
}

// jsonFields adds the fields of a struct by their JSON names, with those of embedded structs.
func jsonFields(t reflect.Type, into map[string]reflect.Type) map[string]reflect.Type {
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		embedded := field.Type
		if embedded.Kind() == reflect.Pointer {
			embedded = embedded.Elem()
		}
		switch {
		case name == "" && field.Anonymous && embedded.Kind() == reflect.Struct:
			jsonFields(embedded, into)
		case name != "" && name != "-":
			into[name] = field.Type
		}
	}
	return into
}

// UnknownField returns the hint about a field that a type does not have: the field that was
// probably meant, or else the given hint.
func UnknownField(of any, path, otherwise string) string {
	if near := nearestField(reflect.TypeOf(of), path); near != "" {
		return "did you mean " + near + "?"
	}
	return otherwise
}

// fieldStep is a step of a field path: a key, or in brackets an index or a key.
var fieldStep = Pattern(`\[[^\]]*\]|[^.\[\]]+`)

// FieldSteps returns the steps of a field path such as spec.rules[2].host: keys, and indices or
// keys in brackets.
func FieldSteps(path string) []string { return fieldStep().FindAllString(path, -1) }

// JoinField appends a key to a field path. A key that contains dots, slashes or brackets is written
// in brackets.
func JoinField(path, key string) string {
	switch {
	case strings.ContainsAny(key, "./[]"):
		return path + "[" + key + "]"
	case path == "":
		return key
	}
	return path + "." + key
}

// Inside reports whether a field path equals another one or is below it. All fields are below "".
func Inside(field, of string) bool {
	rest, ok := strings.CutPrefix(field, of)
	return of == "" || ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}
