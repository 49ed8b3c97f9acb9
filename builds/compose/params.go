package compose

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/krm"
)

// find a parameter by name or by an alias; the name itself wins.
func find[P any](params []P, name string, nameOf func(*P) string) *P {
	var alias *P
	for i := range params {
		switch have := nameOf(&params[i]); {
		case have == name:
			return &params[i]
		case alias == nil && canonical(have) == canonical(name):
			alias = &params[i]
		}
	}
	return alias
}

func findUser(params []api.Parameter, name string) *api.Parameter {
	return find(params, name, func(p *api.Parameter) string { return p.Name })
}

func findDefault(params []TemplateParameter, name string) *TemplateParameter {
	return find(params, name, func(p *TemplateParameter) string { return p.Name })
}

func (p userParameter) value() tektonv1.ParamValue {
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

type userParameter api.Parameter

// parameters gives a task its values, in the documented order (000, "Parameter
// Resolution"): the user's for this step, the user's for the pipeline, what the
// spec says, the template's for this step, the template's for all, and the
// step's own default, which Tekton applies.
func (c *composition) parameters(s *plannedStep) {
	s.known = map[string]tektonv1.ParamValue{}
	spec := s.task.TaskSpec
	for i := range spec.Params {
		spec.Params[i].SetDefaults(background())
	}
	required := map[string]bool{}
	for _, name := range s.row.RequiredParameters {
		required[canonical(name)] = true
	}
	for i, declared := range spec.Params {
		value, place, given := c.lookup(s, declared.Name)
		if !given && declared.Default == nil {
			if text, ok := implied[canonical(declared.Name)]; ok && declared.Type == tektonv1.ParamTypeString {
				value, given = *tektonv1.NewStructuredValues(text), true
			}
		}
		if !given {
			switch {
			case declared.Default != nil:
				s.known[declared.Name] = *declared.Default
			default:
				c.missing(s, declared.Name, fmt.Sprintf("params[%d]", i))
			}
			continue
		}
		// a whole reference has the type of the value that it refers to
		if value.Type != declared.Type && !(value.Type == tektonv1.ParamTypeString && wholeReference().MatchString(value.StringVal)) {
			c.problems.add(place.Fault(api.ReasonWrongParameterType,
				fmt.Sprintf("parameter %q of step %q takes %s, but is given %s", declared.Name, s.row.Name, article(declared.Type), article(value.Type)),
				typeHint(declared.Type, place.At("") == c.buildPlace())))
			continue
		}
		c.checkObject(s, declared, value, place)
		c.checkSize(declared.Name, value, place)
		s.known[declared.Name] = value
		name := canonical(declared.Name)
		if from, ok := c.spec.values[name]; ok && place == c.buildPlace().At(c.spec.field[name]) {
			c.used[name] = true
			value = reference(name, from.Type)
		}
		s.task.Params = append(s.task.Params, tektonv1.Param{Name: declared.Name, Value: value})
	}
	c.requireStepParameters(s, required)
	// Another ConfigMap of the same name may take less than the template offers,
	// so this is not an error.
	for _, p := range s.row.DefaultParameters {
		if !declares(spec.Params, p.Name) {
			place := c.rowPlace(s)
			c.warnings = append(c.warnings, fmt.Sprintf("%s: %s.defaultParameters: step %q has no parameter %q, so its value is lost: %s",
				place, place.Field, s.row.Name, p.Name, s.offers()))
		}
	}
	if s.user == nil {
		return
	}
	for i, p := range s.user.Parameters {
		if !declares(spec.Params, p.Name) {
			c.bad(api.ReasonUndefinedParameter, fmt.Sprintf("spec.pipeline.steps[%d].parameters[%d].name", s.userAt, i),
				fmt.Sprintf("step %q has no parameter %q", s.row.Name, p.Name), s.offers())
		}
	}
}

func (c *composition) checkObject(s *plannedStep, declared tektonv1.ParamSpec, value tektonv1.ParamValue, place krm.Place) {
	if declared.Type != tektonv1.ParamTypeObject || value.Type != tektonv1.ParamTypeObject {
		return
	}
	for _, key := range sortedKeys(declared.Properties) {
		_, has := value.ObjectVal[key]
		if declared.Default != nil && !has {
			_, has = declared.Default.ObjectVal[key]
		}
		if !has {
			c.problems.add(place.Fault(api.ReasonMissingParameters,
				fmt.Sprintf("object parameter %q of step %q lacks the key %q", declared.Name, s.row.Name, key), "add the key"))
		}
	}
}

// maxValueBytes bounds each text of a parameter: values become arguments and
// environment variables, and Linux accepts 128 KiB for each.
const maxValueBytes = 32 * 1024

// checkSize refuses a value that no container could be started with.
func (c *composition) checkSize(name string, value tektonv1.ParamValue, place krm.Place) {
	longest := len(value.StringVal)
	for _, text := range value.ArrayVal {
		longest = max(longest, len(text))
	}
	for _, text := range value.ObjectVal {
		longest = max(longest, len(text))
	}
	if longest > maxValueBytes {
		c.problems.add(place.Fault(api.ReasonInvalidBuild,
			fmt.Sprintf("parameter %q has a text of %d KiB, and at most %d KiB are taken", name, (longest+1023)/1024, maxValueBytes/1024),
			"put it into a file of the repository, or into a ConfigMap that the step mounts"))
	}
}

func declares(params tektonv1.ParamSpecs, name string) bool {
	return slices.ContainsFunc(params, func(p tektonv1.ParamSpec) bool { return canonical(p.Name) == canonical(name) })
}

func (s *plannedStep) offers() string {
	var names []string
	for _, p := range s.file.Task.Params {
		names = append(names, p.Name)
	}
	if len(names) == 0 {
		return "remove it: the step takes no parameters"
	}
	return "it has " + strings.Join(names, ", ")
}

// lookup a value for a parameter of a step above the step's own default.
func (c *composition) lookup(s *plannedStep, name string) (value tektonv1.ParamValue, place krm.Place, ok bool) {
	build := c.in.Build.Spec
	if s.user != nil {
		if p := findUser(s.user.Parameters, name); p != nil {
			return userParameter(*p).value(), c.buildPlace().At(fmt.Sprintf("spec.pipeline.steps[%d].parameters[%s]", s.userAt, p.Name)), true
		}
	}
	resolved := c.in.Commit != "" && canonical(name) == "revision"
	if build.Pipeline != nil {
		if p := findUser(build.Pipeline.Parameters, name); p != nil {
			c.taken[p.Name] = true
			if !resolved {
				return userParameter(*p).value(), c.buildPlace().At(fmt.Sprintf("spec.pipeline.parameters[%s]", p.Name)), true
			}
		}
	}
	real := canonical(name)
	// Settings of the template alone must keep its place in the order.
	fromSpec := map[string]bool{"repo-url": build.Source.SourceRepository != "", "revision": build.Source.SourceRevision != "" || resolved}
	// A cache that nobody asked for is for steps that take all of spec.cache, and not for
	// any that has a parameter of this name.
	if real == "cache" && build.Cache == nil {
		fromSpec[real] = declares(s.task.TaskSpec.Params, "cache-mode")
	}
	if own, special := fromSpec[real]; !special || own {
		if v, has := c.spec.values[real]; has {
			return v, c.buildPlace().At(c.spec.field[real]), true
		}
	}
	if p := findDefault(s.row.DefaultParameters, name); p != nil && p.Value != nil {
		field := fmt.Sprintf("steps[%d].defaultParameters", s.rowIndex)
		return *p.Value, c.in.Template.doc.place(field).At(field + "[" + p.Name + "]"), true
	}
	if p := findDefault(c.in.Template.GlobalParameters, name); p != nil && p.Value != nil {
		return *p.Value, c.in.Template.doc.place("globalParameters").At("globalParameters[" + p.Name + "]"), true
	}
	return value, place, false
}

// given reports whether the build, the template or an implied value provides name.
func (c *composition) given(s *plannedStep, name string) bool {
	if _, ok := implied[canonical(name)]; ok {
		return true
	}
	_, _, ok := c.lookup(s, name)
	return ok
}

func (c *composition) requireStepParameters(s *plannedStep, required map[string]bool) {
	for _, name := range sortedKeys(required) {
		if !c.given(s, name) && !c.reported(s, name) {
			c.missing(s, name, "")
		}
	}
	if s.row.Finally {
		return
	}
	for _, name := range c.in.Template.RequiredParameters {
		if declares(s.task.TaskSpec.Params, name) && !c.given(s, name) && !c.reported(s, name) {
			c.missing(s, name, "")
		}
	}
	for _, p := range append(slices.Clone(c.in.Template.GlobalParameters), s.row.DefaultParameters...) {
		required := p.Required != nil && *p.Required && p.Value == nil
		if required && declares(s.task.TaskSpec.Params, p.Name) && !c.given(s, p.Name) && !c.reported(s, p.Name) {
			c.missing(s, p.Name, "")
		}
	}
}

// reported reports whether a declared parameter without any value was named.
func (c *composition) reported(s *plannedStep, name string) bool {
	for _, p := range s.task.TaskSpec.Params {
		if canonical(p.Name) == canonical(name) {
			return p.Default == nil
		}
	}
	return false
}

func (c *composition) missing(s *plannedStep, name, at string) {
	place := c.rowPlace(s)
	hint := fmt.Sprintf("set it in spec.pipeline.parameters or in the step's parameters of %s", c.buildPlace())
	if f, ok := specFields[canonical(name)]; ok {
		hint = fmt.Sprintf("set %s of %s", f, c.buildPlace())
	}
	message := fmt.Sprintf("step %q needs a value for parameter %q", s.row.Name, name)
	if at != "" {
		place = s.file.doc.place(at)
		message += ", which has no default"
	}
	c.problems.add(place.Fault(api.ReasonMissingParameters, message, hint))
}

// specFields are the fields of the spec that derived parameters come from.
var specFields = map[string]string{
	"repo-url":           "spec.source.sourceRepository",
	"repo-clone-url":     "spec.source.sourceRepository",
	"image":              "spec.buildOutput",
	"registry-secret":    "spec.buildOutput.imageRepoCredentials",
	"SOURCE_REPO_SECRET": "spec.source.sourceCredentials",
	"repo-user":          "spec.source.repoUser",
	"build-args":         "spec.buildArgs",
	"image-labels":       "spec.buildOutput.labels",
	"image-annotations":  "spec.buildOutput.annotations",
	"subfolder-path":     "spec.source.sourceSubfolder",
	"revision":           "spec.source.sourceRevision",
	buildSecrets:         "spec.secrets",
	"network":            "spec.network",
	"cache":              "spec.cache.registry",
	"cache-mode":         "spec.cache.mode",
	imageCache:           "spec.cache.mode",
	buildpacksCache:      "spec.cache.mode",
	PlatformParameter:    "spec.platforms",
	platformsParameter:   "spec.platforms",
}

// checkUserParameters refuses what no step takes, since it would be ignored.
func (c *composition) checkUserParameters() {
	if len(c.steps) == 0 {
		return
	}
	if p := c.in.Build.Spec.Pipeline; p != nil {
		for i, param := range p.Parameters {
			_, isSpec := specFields[canonical(param.Name)]
			if c.taken[param.Name] || noted[param.Name] || isSpec {
				continue
			}
			declared := false
			for _, s := range c.steps {
				declared = declared || declares(s.task.TaskSpec.Params, param.Name)
			}
			if !declared {
				c.bad(api.ReasonUndefinedParameter, fmt.Sprintf("spec.pipeline.parameters[%d].name", i),
					fmt.Sprintf("no enabled step has a parameter %q", param.Name), "correct the name, enable the step that takes it, or remove it")
			}
		}
		c.checkAliases(p.Parameters)
	}
	for _, name := range []string{"build-args", "image-labels", "image-annotations", buildSecrets, "network", "cache", "cache-mode"} {
		if name == "cache" && c.in.Build.Spec.Cache == nil {
			continue // by default
		}
		if value, set := c.spec.values[name]; set && !slices.ContainsFunc(c.steps, func(s *plannedStep) bool { return declares(s.task.TaskSpec.Params, name) }) {
			they, kind := "it", ""
			if value.Type == tektonv1.ParamTypeArray {
				they, kind = "they", "array "
			}
			c.bad(api.ReasonUndefinedParameter, c.spec.field[name],
				fmt.Sprintf("no step of this pipeline takes %s, so %s would be lost", name, they),
				fmt.Sprintf("use a build step with the %sparameter %s, or remove the field", kind, name))
		}
	}
}

// checkAliases refuses two names of one parameter with different values.
func (c *composition) checkAliases(params []api.Parameter) {
	for i, p := range params {
		for _, q := range params[:i] {
			if p.Name != q.Name && canonical(p.Name) == canonical(q.Name) && userParameter(p).value().StringVal != userParameter(q).value().StringVal {
				c.bad(api.ReasonInvalidBuild, fmt.Sprintf("spec.pipeline.parameters[%d]", i),
					fmt.Sprintf("%s and %s are one parameter, but differ", q.Name, p.Name), "keep one of the two")
			}
		}
	}
}

var wholeReference = krm.Pattern(`^\$\([^()]+\)$`)

// reference to a pipeline parameter in the form that its type requires.
func reference(name string, kind tektonv1.ParamType) tektonv1.ParamValue {
	if kind == tektonv1.ParamTypeArray {
		return tektonv1.ParamValue{Type: kind, ArrayVal: []string{"$(params." + name + "[*])"}}
	}
	return *tektonv1.NewStructuredValues("$(params." + name + ")")
}

func article(t tektonv1.ParamType) string {
	if t == tektonv1.ParamTypeString {
		return "a string"
	}
	return "an " + string(t)
}

func typeHint(t tektonv1.ParamType, inBuild bool) string {
	if inBuild {
		return map[tektonv1.ParamType]string{
			tektonv1.ParamTypeString: "give it with value:",
			tektonv1.ParamTypeArray:  "give it with array:",
			tektonv1.ParamTypeObject: "give it with object:",
		}[t]
	}
	return map[tektonv1.ParamType]string{
		tektonv1.ParamTypeString: "write the value as a string",
		tektonv1.ParamTypeArray:  "write the value as a list",
		tektonv1.ParamTypeObject: "write the value as a map",
	}[t]
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// FromSpec reports whether a parameter has its value from a field of the spec.
func FromSpec(name string) bool {
	_, ok := specFields[canonical(name)]
	return ok
}
