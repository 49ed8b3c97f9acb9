package compose

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/recipe"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/text"
)

// ValueOf returns the value of a parameter of a build.
func ValueOf(p api.Parameter) tektonv1.ParamValue {
	switch {
	case p.Array != nil:
		return tektonv1.ParamValue{Type: tektonv1.ParamTypeArray, ArrayVal: p.Array}
	case p.Object != nil:
		return tektonv1.ParamValue{Type: tektonv1.ParamTypeObject, ObjectVal: p.Object}
	case p.Value != nil:
		return *tektonv1.NewStructuredValues(*p.Value)
	}
	return *tektonv1.NewStructuredValues("")
}

// parameters returns the values of a task's parameters, in the documented order (000, "Parameter
// Resolution"): the user's for this step, the user's for the pipeline, the spec's, the template's
// for this step, the template's for all, and the step's own default, which Tekton applies. The
// known values include that one.
func parameters(in Input, spec derived,
	s step) (params tektonv1.Params, known map[string]tektonv1.ParamValue, found faults,
	warnings []string) {
	known = map[string]tektonv1.ParamValue{}
	offers := offersOf(s.file)
	for i, declared := range s.task.TaskSpec.Params {
		value, place, given := lookup(in, spec, s, declared.Name)
		if !given && declared.Default == nil {
			if text, ok := implied[recipe.Canonical(declared.Name)]; ok &&
				declared.Type == tektonv1.ParamTypeString {
				value, given = *tektonv1.NewStructuredValues(text), true
			}
		}
		switch {
		case !given && declared.Default != nil:
			known[declared.Name] = *declared.Default
			continue
		case !given:
			found.add(missing(in, s, declared.Name, s.file.Doc.At(fmt.Sprintf("params[%d]", i)),
				", which has no default"))
			continue
		// a whole reference has the type of the value that it refers to
		case value.Type != declared.Type &&
			!(value.Type == tektonv1.ParamTypeString &&
				wholeReference().MatchString(value.StringVal)):
			hint := "write the value as " + forms[declared.Type].form
			if place.At("") == in.Place {
				hint = "give it with " + forms[declared.Type].field + ":"
			}
			found.add(place.Fault(api.ReasonWrongParameterType,
				fmt.Sprintf("parameter %q of step %q takes %s, but is given %s", declared.Name,
					s.row.Name, forms[declared.Type].name, forms[value.Type].name), hint))
			continue
		}
		found = append(found, checkValue(s, declared, value, place)...)
		known[declared.Name] = value
		name := recipe.Canonical(declared.Name)
		if from, ok := spec[name]; ok && place == in.Place.At(from.field) {
			value = reference(name, from.Type)
		}
		params = append(params, tektonv1.Param{Name: declared.Name, Value: value})
	}
	found = append(found, requireParameters(in, spec, s)...)
	// Another ConfigMap of the same name may take less than the template offers,
	// so this is not an error.
	for _, p := range s.row.DefaultParameters {
		if !recipe.Declares(s.task.TaskSpec.Params, p.Name) {
			warnings = append(warnings,
				fmt.Sprintf("%s: %s.defaultParameters: step %q has no parameter %q, so its value "+
					"is lost: %s",
					s.place, s.place.Field, s.row.Name, p.Name, offers))
		}
	}
	if s.user == nil {
		return params, known, found, warnings
	}
	for i, p := range s.user.Parameters {
		if !recipe.Declares(s.task.TaskSpec.Params, p.Name) {
			found.bad(in, api.ReasonUndefinedParameter,
				fmt.Sprintf("%s.parameters[%d].name", s.field, i),
				fmt.Sprintf("step %q has no parameter %q", s.row.Name, p.Name), offers)
		}
	}
	return params, known, found, warnings
}

// usedOf spec are the parameters of the pipeline: those that a task refers to in a value or a
// when-expression.
func usedOf(spec derived, steps []step) map[string]bool {
	used := map[string]bool{}
	for _, s := range steps {
		for _, name := range referredTo(s.task) {
			if _, ok := spec[name]; ok {
				used[name] = true
			}
		}
	}
	return used
}

// referredTo are the parameters of the pipeline that the values and when-expressions of a task
// name.
func referredTo(task tektonv1.PipelineTask) (names []string) {
	for _, m := range recipe.ParamReference().FindAllStringSubmatch(tekton.JSON(task.Params)+
		tekton.JSON(task.When), -1) {
		names = append(names, m[1]+m[2])
	}
	return names
}

// maxValueBytes bounds each text of a parameter: values become arguments and
// environment variables, and Linux accepts 128 KiB for each.
const maxValueBytes = 32 * 1024

// checkValue refuses an object without the keys that the step declares, and a text that no
// container could be started with.
func checkValue(s step, declared tektonv1.ParamSpec, value tektonv1.ParamValue,
	place finding.Place) (found faults) {
	for _, key := range sortedKeys(declared.Properties) {
		_, has := value.ObjectVal[key]
		if declared.Default != nil && !has {
			_, has = declared.Default.ObjectVal[key]
		}
		if !has && declared.Type == tektonv1.ParamTypeObject &&
			value.Type == tektonv1.ParamTypeObject {
			found.add(place.Fault(api.ReasonMissingParameters,
				fmt.Sprintf("object parameter %q of step %q lacks the key %q", declared.Name,
					s.row.Name, key), "add the key"))
		}
	}
	longest := len(value.StringVal)
	for _, text := range value.ArrayVal {
		longest = max(longest, len(text))
	}
	for _, text := range value.ObjectVal {
		longest = max(longest, len(text))
	}
	if longest > maxValueBytes {
		found.add(place.Fault(api.ReasonInvalidBuild,
			fmt.Sprintf("parameter %q has a text of %d KiB, and at most %d KiB are taken",
				declared.Name, (longest+1023)/1024, maxValueBytes/1024),
			"put it into a file of the repository, or into a ConfigMap that the step mounts"))
	}
	return found
}

func offersOf(file *recipe.Step) string {
	var names []string
	for _, p := range file.Task.Params {
		names = append(names, p.Name)
	}
	if len(names) == 0 {
		return "remove it: the step takes no parameters"
	}
	return "it has " + strings.Join(names, ", ")
}

// fromBuild returns the parameter that the build itself passes to a step, or nil, and its field.
func fromBuild(in Input, s step, name string) (given *api.Parameter, field string) {
	if s.user != nil {
		if p := recipe.Find(s.user.Parameters, name); p != nil {
			return p, fmt.Sprintf("%s.parameters[%s]", s.field, p.Name)
		}
	}
	if p := in.Build.Spec.Pipeline; p != nil {
		if p := recipe.Find(p.Parameters, name); p != nil {
			return p, fmt.Sprintf("spec.pipeline.parameters[%s]", p.Name)
		}
	}
	return nil, ""
}

// lookup a value for a parameter of a step above the step's own default.
func lookup(in Input, spec derived, s step,
	name string) (value tektonv1.ParamValue, place finding.Place, ok bool) {
	build, real := in.Build.Spec, recipe.Canonical(name)
	resolved := (in.Resolves || in.Commit != "") && real == "revision"
	if isFork(in.Build) && slices.Contains(cacheParameters, real) {
		return *tektonv1.NewStructuredValues(""), in.Place.At("spec.source.pullRequest.fork"), true
	}
	ofStep := s.user != nil && recipe.Find(s.user.Parameters, name) != nil
	if p, field := fromBuild(in, s, name); p != nil && (ofStep || !resolved || p.Value == nil) {
		return ValueOf(*p), in.Place.At(field), true
	}
	// Settings of the template alone must keep its place in the order.
	fromSpec := true
	switch {
	case real == "repo-url":
		fromSpec = build.Source.SourceRepository != ""
	case real == "revision":
		fromSpec = build.Source.SourceRevision != "" || resolved
	case real == "cache" && build.Cache == nil:
		// A cache that nobody asked for is for steps that take all of spec.cache, and not for
		// any that has a parameter of this name.
		fromSpec = recipe.Declares(s.task.TaskSpec.Params, "cache-mode")
	}
	if v, has := spec[real]; has && fromSpec {
		return v.ParamValue, in.Place.At(v.field), true
	}
	if p := recipe.FindDefault(s.row.DefaultParameters, name); p != nil && p.Value != nil {
		field := fmt.Sprintf("steps[%d].defaultParameters", s.row.Index)
		return *p.Value, in.Template.Doc.At(field).At(field + "[" + p.Name + "]"), true
	}
	if p := recipe.FindDefault(in.Template.GlobalParameters, name); p != nil && p.Value != nil {
		return *p.Value, in.Template.Doc.At("globalParameters").At("globalParameters[" + p.Name +
			"]"), true
	}
	return value, place, false
}

// requireParameters that the row, the template or one of its parameters calls required. One
// that the step declares without a default is refused already.
func requireParameters(in Input, spec derived, s step) (found faults) {
	declared := s.task.TaskSpec.Params
	names := map[string]bool{}
	for _, name := range s.row.RequiredParameters {
		names[recipe.Canonical(name)] = true
	}
	if !s.row.Finally {
		for _, name := range in.Template.RequiredParameters {
			names[name] = names[name] || recipe.Declares(declared, name)
		}
		for _, p := range slices.Concat(in.Template.GlobalParameters, s.row.DefaultParameters) {
			required := p.Required != nil && *p.Required && p.Value == nil
			names[p.Name] = names[p.Name] || required && recipe.Declares(declared, p.Name)
		}
	}
	for _, name := range sortedKeys(names) {
		_, given := implied[recipe.Canonical(name)]
		if !given {
			_, _, given = lookup(in, spec, s, name)
		}
		at := slices.IndexFunc(declared, func(p tektonv1.ParamSpec) bool {
			return recipe.Canonical(p.Name) == recipe.Canonical(name)
		})
		if names[name] && !given && (at < 0 || declared[at].Default != nil) {
			found.add(missing(in, s, name, s.place, ""))
		}
	}
	return found
}

func missing(in Input, s step, name string, place finding.Place, because string) *finding.Finding {
	hint := fmt.Sprintf("set it in spec.pipeline.parameters or in the step's parameters of %s", in.Place)
	if field := recipe.Field(name); field != "" {
		hint = fmt.Sprintf("set %s of %s", strings.TrimSuffix(field, ".name"), in.Place)
	}
	return place.Fault(api.ReasonMissingParameters,
		fmt.Sprintf("step %q needs a value for parameter %q%s", s.row.Name, name, because), hint)
}

// checkUserParameters refuses what no step takes, since it would be ignored.
func checkUserParameters(in Input, spec derived, steps []step) (found faults) {
	if len(steps) == 0 {
		return nil
	}
	taken := func(name string) bool {
		return slices.ContainsFunc(steps,
			func(s step) bool { return recipe.Declares(s.task.TaskSpec.Params, name) })
	}
	required := func(name string) bool {
		same := func(other string) bool { return recipe.Canonical(other) == recipe.Canonical(name) }
		return slices.ContainsFunc(steps,
			func(s step) bool { return slices.ContainsFunc(s.row.RequiredParameters, same) })
	}
	if p := in.Build.Spec.Pipeline; p != nil {
		for i, param := range p.Parameters {
			if name := param.Name; !recipe.Noted(name) && !recipe.FromSpec(name) && !taken(name) &&
				!required(name) {
				found.bad(in, api.ReasonUndefinedParameter,
					fmt.Sprintf("spec.pipeline.parameters[%d].name", i),
					fmt.Sprintf("no enabled step has a parameter %q", name),
					"correct the name, enable the step that takes it, or remove it")
			}
		}
		for i, a := range p.Parameters {
			for _, b := range p.Parameters[:i] {
				if a.Name != b.Name && recipe.Canonical(a.Name) == recipe.Canonical(b.Name) &&
					ValueOf(a).StringVal != ValueOf(b).StringVal {
					found.bad(in, api.ReasonInvalidBuild,
						fmt.Sprintf("spec.pipeline.parameters[%d]", i),
						fmt.Sprintf("%s and %s are one parameter, but differ", b.Name, a.Name),
						"keep one of the two")
				}
			}
		}
	}
	for _, name := range []string{"build-args", "image-labels", "image-annotations", recipe.Secrets,
		"network", "cache", "cache-mode"} {
		if name == "cache" && in.Build.Spec.Cache == nil {
			continue // by default
		}
		if value, set := spec[name]; set && !taken(name) {
			they, kind := "it", ""
			if value.Type == tektonv1.ParamTypeArray {
				they, kind = "they", "array "
			}
			found.bad(in, api.ReasonUndefinedParameter, value.field,
				fmt.Sprintf("no step of this pipeline takes %s, so %s would be lost", name, they),
				fmt.Sprintf("use a build step with the %sparameter %s, or remove the field", kind, name))
		}
	}
	return found
}

var wholeReference = text.Pattern(`^\$\([^()]+\)$`)

// reference to a pipeline parameter in the form that its type requires.
func reference(name string, kind tektonv1.ParamType) tektonv1.ParamValue {
	if kind == tektonv1.ParamTypeArray {
		return tektonv1.ParamValue{Type: kind, ArrayVal: []string{"$(params." + name + "[*])"}}
	}
	return *tektonv1.NewStructuredValues("$(params." + name + ")")
}

// forms of values: in a sentence, as a field of a parameter of the build, and in a template.
var forms = map[tektonv1.ParamType]struct{ name, field, form string }{
	tektonv1.ParamTypeString: {"a string", "value", "a string"},
	tektonv1.ParamTypeArray:  {"an array", "array", "a list"},
	tektonv1.ParamTypeObject: {"an object", "object", "a map"},
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
