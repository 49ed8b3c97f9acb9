package compose

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/utils/ptr"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/builds/compose/templates"
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

// pipelineOf returns the pipeline of a build, or an empty one.
func pipelineOf(b *api.AgentBuild) api.PipelineSpec {
	return ptr.Deref(b.Spec.Pipeline, api.PipelineSpec{})
}

// setParameters sets the values of a task's parameters in the documented order (000, "Parameter
// Resolution"): the user's for this step, the user's for the pipeline, the spec's, the template's
// for this step, the template's for all, and the step's own default, which Tekton applies. The
// known values include the default.
func setParameters(c *composer, s *step) {
	s.known = map[string]tektonv1.ParamValue{}
	offers := "remove it: the step takes no parameters"
	if names := s.file.Task.Params.GetNames(); len(names) > 0 {
		offers = "it has " + strings.Join(names, ", ")
	}
	for i, declared := range s.task.TaskSpec.Params {
		value, place, given := c.lookup(*s, declared.Name)
		name := templates.Canonical(declared.Name)
		if text, ok := implied[name]; ok && !given && declared.Default == nil &&
			declared.Type == tektonv1.ParamTypeString {
			value, given = *tektonv1.NewStructuredValues(text), true
		}
		switch {
		case !given && declared.Default != nil:
			s.known[declared.Name] = *declared.Default
			continue
		case !given:
			c.missing(*s, declared.Name, s.file.Doc.At(fmt.Sprintf("params[%d]", i)),
				", which has no default")
			continue
		// A whole reference has the type of the value that it refers to.
		case value.Type != declared.Type &&
			!(value.Type == tektonv1.ParamTypeString &&
				wholeReference().MatchString(value.StringVal)):
			hint := "write the value as " + forms[declared.Type].form
			if place.At("") == c.Place {
				hint = "give it with " + forms[declared.Type].field + ":"
			}
			c.fault("", place, api.ReasonWrongParameterType, hint,
				"parameter %q of step %q takes %s, but is given %s", declared.Name, s.row.Name,
				forms[declared.Type].name, forms[value.Type].name)
			continue
		}
		checkValue(c, *s, declared, value, place)
		s.known[declared.Name] = value
		if from, ok := c.spec[name]; ok && place == c.Place.At(from.field) {
			value = reference(name, from.Type)
		}
		s.task.Params = append(s.task.Params, tektonv1.Param{Name: declared.Name, Value: value})
	}
	requireParameters(c, *s)
	// Another ConfigMap of the same name may take fewer parameters than the template sets, so this
	// is not an error.
	for _, p := range s.row.DefaultParameters {
		if !s.declares(p.Name) {
			c.warn("%s: %s.defaultParameters: step %q has no parameter %q, so its value is lost: "+
				"%s", s.place, s.place.Field, s.row.Name, p.Name, offers)
		}
	}
	if s.user == nil {
		return
	}
	for i, p := range s.user.Parameters {
		if !s.declares(p.Name) {
			c.bad(api.ReasonUndefinedParameter, fmt.Sprintf("%s.parameters[%d].name", s.field, i),
				offers, "step %q has no parameter %q", s.row.Name, p.Name)
		}
	}
}

// used returns the parameters of the pipeline: those that a task refers to in a value or a
// when-expression.
func (c *composer) used() map[string]bool {
	used := map[string]bool{}
	for _, s := range c.steps {
		for _, name := range referredTo(s.task) {
			if _, ok := c.spec[name]; ok {
				used[name] = true
			}
		}
	}
	return used
}

// referredTo returns the parameters of the pipeline that the values and when-expressions of a task
// refer to.
func referredTo(task tektonv1.PipelineTask) (names []string) {
	for _, m := range templates.ParamReference().FindAllStringSubmatch(tekton.JSON(task.Params)+
		tekton.JSON(task.When), -1) {
		names = append(names, m[1]+m[2])
	}
	return names
}

// maxValueBytes bounds each text of a parameter: values become arguments and environment variables,
// and Linux accepts 128 KiB for each.
const maxValueBytes = 32 * 1024

// checkValue refuses an object without the keys that the step declares, and a text that is too long
// to start a container with.
func checkValue(c *composer, s step, declared tektonv1.ParamSpec, value tektonv1.ParamValue,
	place finding.Place) {
	for _, key := range sortedKeys(declared.Properties) {
		_, has := value.ObjectVal[key]
		if declared.Default != nil && !has {
			_, has = declared.Default.ObjectVal[key]
		}
		if !has && declared.Type == tektonv1.ParamTypeObject &&
			value.Type == tektonv1.ParamTypeObject {
			c.fault("", place, api.ReasonMissingParameters, "add the key",
				"object parameter %q of step %q lacks the key %q", declared.Name, s.row.Name, key)
		}
	}
	longest := len(value.StringVal)
	for _, text := range slices.AppendSeq(slices.Clone(value.ArrayVal),
		maps.Values(value.ObjectVal)) {
		longest = max(longest, len(text))
	}
	if longest > maxValueBytes {
		c.fault("", place, api.ReasonInvalidBuild,
			"put it into a file of the repository, or into a ConfigMap that the step mounts",
			"parameter %q has a text of %d KiB, and at most %d KiB are taken", declared.Name,
			(longest+1023)/1024, maxValueBytes/1024)
	}
}

// fromBuild returns the parameter that the build itself passes to a step, or nil, and the field.
func (c *composer) fromBuild(s step, name string) (given *api.Parameter, field string) {
	if s.user != nil {
		if p := templates.Find(s.user.Parameters, name); p != nil {
			return p, fmt.Sprintf("%s.parameters[%s]", s.field, p.Name)
		}
	}
	if p := templates.Find(pipelineOf(c.Build).Parameters, name); p != nil {
		return p, fmt.Sprintf("spec.pipeline.parameters[%s]", p.Name)
	}
	return nil, ""
}

// lookup returns the value of a step's parameter from all levels above the step's own default.
func (c *composer) lookup(s step, name string) (value tektonv1.ParamValue, place finding.Place,
	ok bool) {
	source, real := c.Build.Spec.Source, templates.Canonical(name)
	resolved := (c.Resolves || c.Commit != "") && real == "revision"
	if isFork(c.Build) && slices.Contains(cacheParameters, real) {
		return *tektonv1.NewStructuredValues(""), c.Place.At("spec.source.pullRequest.fork"), true
	}
	ofStep := s.user != nil && templates.Find(s.user.Parameters, name) != nil
	if p, field := c.fromBuild(s, name); p != nil && (ofStep || !resolved || p.Value == nil) {
		return ValueOf(*p), c.Place.At(field), true
	}
	// A value that only the template sets keeps the template's place in the order.
	fromSpec := true
	switch {
	case real == "repo-url":
		fromSpec = source.SourceRepository != ""
	case real == "revision":
		fromSpec = source.SourceRevision != "" || resolved
	case real == "cache" && c.Build.Spec.Cache == nil:
		// The default cache is for steps that take all of spec.cache, not for every step with a
		// parameter of this name.
		fromSpec = s.declares("cache-mode")
	}
	if v, has := c.spec[real]; has && fromSpec {
		return v.ParamValue, c.Place.At(v.field), true
	}
	for _, of := range []struct {
		params []templates.Parameter
		field  string
	}{{s.row.DefaultParameters, fmt.Sprintf("steps[%d].defaultParameters", s.row.Index)},
		{c.Template.GlobalParameters, "globalParameters"}} {
		if p := templates.FindDefault(of.params, name); p != nil && p.Value != nil {
			return *p.Value, c.Template.Doc.At(of.field).At(of.field + "[" + p.Name + "]"), true
		}
	}
	return value, place, false
}

// requireParameters refuses missing values of parameters that the row, the template or one of its
// parameters declares required. setParameters already refuses a parameter without a default.
func requireParameters(c *composer, s step) {
	declared := s.task.TaskSpec.Params
	names := map[string]bool{}
	for _, name := range s.row.RequiredParameters {
		names[templates.Canonical(name)] = true
	}
	if !s.row.Finally {
		for _, name := range c.Template.RequiredParameters {
			names[name] = names[name] || s.declares(name)
		}
		for _, p := range slices.Concat(c.Template.GlobalParameters, s.row.DefaultParameters) {
			required := ptr.Deref(p.Required, false) && p.Value == nil
			names[p.Name] = names[p.Name] || required && s.declares(p.Name)
		}
	}
	for _, name := range sortedKeys(names) {
		_, given := implied[templates.Canonical(name)]
		if !given {
			_, _, given = c.lookup(s, name)
		}
		at := slices.IndexFunc(declared, func(p tektonv1.ParamSpec) bool {
			return templates.Canonical(p.Name) == templates.Canonical(name)
		})
		if names[name] && !given && (at < 0 || declared[at].Default != nil) {
			c.missing(s, name, s.place, "")
		}
	}
}

// missing adds the finding that a parameter of a step has no value.
func (c *composer) missing(s step, name string, place finding.Place, because string) {
	hint := fmt.Sprintf("set it in spec.pipeline.parameters or in the step's parameters of %s",
		c.Place)
	if field := templates.Field(name); field != "" {
		hint = fmt.Sprintf("set %s of %s", strings.TrimSuffix(field, ".name"), c.Place)
	}
	c.fault("", place, api.ReasonMissingParameters, hint,
		"step %q needs a value for parameter %q%s", s.row.Name, name, because)
}

// checkUserParameters refuses parameters and fields of the build that no step takes, since they
// would have no effect.
func checkUserParameters(c *composer) {
	if len(c.steps) == 0 {
		return
	}
	taken := func(name string) bool {
		return slices.ContainsFunc(c.steps, func(s step) bool { return s.declares(name) })
	}
	required := func(name string) bool {
		same := func(other string) bool { return templates.Canonical(other) == templates.Canonical(name) }
		return slices.ContainsFunc(c.steps,
			func(s step) bool { return slices.ContainsFunc(s.row.RequiredParameters, same) })
	}
	given := pipelineOf(c.Build).Parameters
	for i, param := range given {
		if name := param.Name; !templates.Noted(name) && !templates.FromSpec(name) && !taken(name) &&
			!required(name) {
			c.bad(api.ReasonUndefinedParameter, fmt.Sprintf("spec.pipeline.parameters[%d].name", i),
				"correct the name, enable the step that takes it, or remove it",
				"no enabled step has a parameter %q", name)
		}
	}
	for i, a := range given {
		for _, b := range given[:i] {
			if a.Name != b.Name && templates.Canonical(a.Name) == templates.Canonical(b.Name) &&
				ValueOf(a).StringVal != ValueOf(b).StringVal {
				c.invalid(fmt.Sprintf("spec.pipeline.parameters[%d]", i), "keep one of the two",
					"%s and %s are one parameter, but differ", b.Name, a.Name)
			}
		}
	}
	for _, name := range []string{"build-args", "image-labels", "image-annotations", templates.Secrets,
		"network", "cache", "cache-mode"} {
		value, set := c.spec[name]
		if !set || taken(name) || name == "cache" && c.Build.Spec.Cache == nil { // by default
			continue
		}
		they, kind := "it", ""
		if value.Type == tektonv1.ParamTypeArray {
			they, kind = "they", "array "
		}
		c.bad(api.ReasonUndefinedParameter, value.field,
			"use a build step with the "+kind+"parameter "+name+", or remove the field",
			"no step of this pipeline takes %s, so %s would be lost", name, they)
	}
}

var wholeReference = text.Pattern(`^\$\([^()]+\)$`)

// reference returns a reference to a pipeline parameter in the form that its type requires.
func reference(name string, kind tektonv1.ParamType) tektonv1.ParamValue {
	if kind == tektonv1.ParamTypeArray {
		return tektonv1.ParamValue{Type: kind, ArrayVal: []string{"$(params." + name + "[*])"}}
	}
	return *tektonv1.NewStructuredValues("$(params." + name + ")")
}

// forms names the types of values in a sentence, as a field of a build's parameter, and in a
// template.
var forms = map[tektonv1.ParamType]struct{ name, field, form string }{
	tektonv1.ParamTypeString: {"a string", "value", "a string"},
	tektonv1.ParamTypeArray:  {"an array", "array", "a list"},
	tektonv1.ParamTypeObject: {"an object", "object", "a map"},
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
