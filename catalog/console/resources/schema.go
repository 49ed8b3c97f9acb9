package resources

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Param is a parameter, or a field of one.
type Param struct {
	Name, Type, Description string
	Required                bool
	Default                 string
	Values                  []string // that it may have
	Fields                  []Param
}

// Bounds of the parameters of a tool that are shown.
const (
	maxParams = 60
	maxDepth  = 4
	maxValues = 20
)

// Params reads the properties of a JSON Schema, those that are required first. left is the number
// of properties that it omits.
func Params(schema map[string]any) (all []Param, left int) {
	more := maxParams
	all = params(schema, maxDepth, &more)
	return all, max(0, -more)
}

func params(s map[string]any, depth int, left *int) (out []Param) {
	properties, _ := s["properties"].(map[string]any)
	required, _ := s["required"].([]any)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if *left--; *left < 0 {
			continue
		}
		p, _ := properties[name].(map[string]any)
		one := Param{Name: name, Type: typeOf(p), Required: slices.Contains(required, any(name))}
		one.Description, _ = p["description"].(string)
		if d, ok := p["default"]; ok {
			one.Default = Shown(d)
		}
		values, _ := p["enum"].([]any)
		for _, value := range values[:min(len(values), maxValues)] {
			one.Values = append(one.Values, Shown(value))
		}
		if depth > 1 {
			inner := p
			if items, ok := p["items"].(map[string]any); ok {
				inner = items
			}
			one.Fields = params(inner, depth-1, left)
		}
		out = append(out, one)
	}
	slices.SortStableFunc(out, func(a, b Param) int {
		switch {
		case a.Required == b.Required:
			return 0
		case a.Required:
			return -1
		}
		return 1
	})
	return out
}

// typeOf returns the type of a schema in a few words.
func typeOf(s map[string]any) string {
	var words []string
	switch t := s["type"].(type) {
	case string:
		words = append(words, t)
	case []any:
		for _, one := range t {
			words = append(words, fmt.Sprint(one))
		}
	}
	if items, ok := s["items"].(map[string]any); ok {
		if of := typeOf(items); of != "" {
			words = append(words, "of "+of)
		}
	}
	for _, key := range []string{"anyOf", "oneOf"} {
		if list, ok := s[key].([]any); ok {
			for _, one := range list[:min(len(list), 5)] {
				if m, ok := one.(map[string]any); ok {
					words = append(words, typeOf(m))
				}
			}
		}
	}
	text := strings.Join(words, " or ")
	text = strings.ReplaceAll(text, " or of ", " of ")
	if format, ok := s["format"].(string); ok {
		text += ", " + Clip(30, format)
	}
	for _, limit := range [][2]string{{"minimum", "≥"}, {"maximum", "≤"}} {
		if n, ok := s[limit[0]].(float64); ok {
			text += fmt.Sprintf(" %s %v", limit[1], n)
		}
	}
	return text
}
