package tekton

import (
	"fmt"
	"maps"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/functions/text"
)

// Values are the values of a run's variables: texts, lists and objects, by their names without $(
// and ).
type Values struct {
	Texts   map[string]string
	Lists   map[string][]string
	Objects map[string]map[string]string
}

// NewValues returns the values of parameters: the declared defaults, overridden by the given
// values.
func NewValues(declared tektonv1.ParamSpecs, given tektonv1.Params) Values {
	v := Values{map[string]string{}, map[string][]string{}, map[string]map[string]string{}}
	return v.With(declared, given)
}

// With returns the values and those of other parameters, whose defaults may contain variables.
func (v Values) With(declared tektonv1.ParamSpecs, given tektonv1.Params) Values {
	v = Values{maps.Clone(v.Texts), maps.Clone(v.Lists), maps.Clone(v.Objects)}
	for _, p := range declared {
		if p.Default != nil {
			v.Set("params", p.Name, v.Put(*p.Default))
		}
	}
	for _, p := range given {
		v.Set("params", p.Name, p.Value)
	}
	return v
}

// Set sets a value in all notations of Tekton: params.a, params["a"] and params['a'].
func (v Values) Set(kind, name string, value tektonv1.ParamValue) {
	for _, at := range []string{kind + "." + name, kind + `["` + name + `"]`,
		kind + "['" + name + "']"} {
		switch value.Type {
		case tektonv1.ParamTypeArray:
			v.Lists[at] = value.ArrayVal
			for i, item := range value.ArrayVal {
				v.Texts[fmt.Sprintf("%s[%d]", at, i)] = item
			}
		case tektonv1.ParamTypeObject:
			v.Objects[at] = value.ObjectVal
			for key, item := range value.ObjectVal {
				v.Texts[at+"."+key] = item
			}
		default:
			v.Texts[at] = value.StringVal
		}
	}
}

// Put returns a value with its variables replaced.
func (v Values) Put(value tektonv1.ParamValue) tektonv1.ParamValue {
	value = *value.DeepCopy()
	value.ApplyReplacements(v.Texts, v.Lists, v.Objects)
	return value
}

// PutAll returns parameters with the variables in their values replaced.
func (v Values) PutAll(params tektonv1.Params) tektonv1.Params {
	return params.ReplaceVariables(v.Texts, v.Lists, v.Objects)
}

// Text returns a text unchanged, and a list or an object as JSON.
func Text(value tektonv1.ParamValue) string {
	if value.Type == tektonv1.ParamTypeString || value.Type == "" {
		return value.StringVal
	}
	return JSON(value)
}

// Variable matches a variable of Tekton.
var Variable = text.Pattern(`\$\((params|workspaces|results|tasks|context)[.\[][^)]*\)`)
