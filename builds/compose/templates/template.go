// Package templates reads the ConfigMaps of pipeline templates and of steps, of which builds are
// composed. It validates each by itself, knows the names of parameters, and chooses the builder.
package templates

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/builds/failure/findings"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/text"
)

// ConfigMap holds the data of a ConfigMap and its place.
type ConfigMap struct {
	Namespace string
	Name      string
	// File holds the ConfigMap, which begins on Line; both are empty for one in a cluster.
	File   string
	Line   int
	Labels map[string]string
	Data   map[string]string
}

// SharedWith reports whether a label allows builds of a namespace to use the ConfigMap of another
// namespace that is not the platform's.
func (c ConfigMap) SharedWith(namespace string) bool {
	return c.Labels[keys.SharePrefix+namespace] == "true"
}

// ShareHint returns an addition to the hint about a missing ConfigMap, which the namespace of
// spec.pipeline.namespace may have without sharing it.
func ShareHint(build *api.AgentBuild) string {
	if build.Spec.Pipeline == nil || build.Spec.Pipeline.Namespace == "" {
		return ""
	}
	return fmt.Sprintf("; one in namespace %s needs the label %s%s: \"true\"",
		build.Spec.Pipeline.Namespace, keys.SharePrefix, build.Namespace)
}

// document returns the document of a key. It drops the other keys of the ConfigMap, which may be
// large.
func (c ConfigMap) document(key, body string) *Document {
	c.Labels, c.Data = nil, nil
	return &Document{From: c, key: key, Body: body}
}

// Place returns the place of the ConfigMap.
func (c ConfigMap) Place() finding.Place {
	return finding.Place{File: c.File, Line: c.Line,
		Object: finding.Ref{APIVersion: "v1", Kind: "ConfigMap", Namespace: c.Namespace, Name: c.Name}}
}

func (c ConfigMap) String() string { return c.Place().String() }

// The keys and names under which templates and steps are stored (000, "Template Structure" and
// "Step Storage").
const (
	TemplateKeyYAML = "template.yaml"
	TemplateKeyJSON = "template.json"
	StepKey         = "task-spec.yaml"
	TemplatePrefix  = "pipeline-template-"
	// UsualMode is the mode of builds that name none.
	UsualMode = "dev"
)

// TemplateName returns the name of the ConfigMap that holds mode's template.
func TemplateName(mode string) string { return TemplatePrefix + cmp.Or(mode, UsualMode) }

// Template is a pipeline template (000, "Template Structure").
type Template struct {
	Name               string      `json:"name,omitempty"`
	Namespace          string      `json:"namespace,omitempty"`
	Description        string      `json:"description,omitempty"`
	RequiredParameters []string    `json:"requiredParameters,omitempty"`
	GlobalParameters   []Parameter `json:"globalParameters,omitempty"`
	Steps              []Row       `json:"steps"`
	// Builder is the builder of builds that do not choose one. It is one of the builders of the
	// steps. If omitted, it is buildkit if a step has that.
	Builder string `json:"builder,omitempty"`
	// Cache false refuses builds that name a cache. If omitted, builds may name one unless the
	// runs are isolated.
	Cache *bool `json:"cache,omitempty"`

	// Attest makes this a template of the platform: it counts in the controller's namespace only,
	// builds change only what Open names, its steps may sign, and its runs are isolated in a
	// namespace of the platform. If omitted, it is false.
	Attest bool `json:"attest,omitempty"`
	// Isolate isolates the runs as Attest does, under the same rules, without attesting them. If
	// omitted, it is false.
	Isolate bool `json:"isolate,omitempty"`
	// Open names what a build may change of a template with Attest or Isolate. If omitted, a build
	// may change nothing.
	Open Open `json:"open,omitempty"`
	// VerifySource names a ConfigMap in the controller's namespace whose policy the commit of each
	// build has to satisfy. It requires Attest or Isolate. If omitted, builds may set
	// spec.source.verify.
	VerifySource string `json:"verifySource,omitempty"`

	// Doc is the document of the template.
	Doc *Document `json:"-"`
	// Broken is set if the problems of the template are reported, so that Tekton's errors about
	// them are not.
	Broken bool `json:"-"`
	// chosen is the builder to which Steps is reduced; empty if Steps has all builders.
	chosen string
}

// Parameter is the default of a parameter; Value is a string, a list or a map.
type Parameter struct {
	Name        string               `json:"name"`
	Value       *tektonv1.ParamValue `json:"value,omitempty"`
	Required    *bool                `json:"required,omitempty"`
	Description string               `json:"description,omitempty"`
}

// Row is one row of a template.
type Row struct {
	Name               string               `json:"name"`
	ConfigMap          string               `json:"configMap"`
	Enabled            *bool                `json:"enabled,omitempty"`
	Description        string               `json:"description,omitempty"`
	DefaultParameters  []Parameter          `json:"defaultParameters,omitempty"`
	RequiredParameters []string             `json:"requiredParameters,omitempty"`
	WhenExpressions    []api.WhenExpression `json:"whenExpressions,omitempty"`

	// Source 000 does not have the fields from here on.

	// Builders lists the builders that the step belongs to: it runs for builds that choose one of
	// them. If omitted, it runs for all builders.
	Builders []string `json:"builders,omitempty"`
	// PodOf names an earlier step, in whose pod this step runs after the containers of that step:
	// the pipeline has one task for both, with the name of the earlier step. A workspace that one
	// of them does not declare is not mounted into its containers. If omitted, the step has its
	// own pod.
	PodOf string `json:"podOf,omitempty"`
	// SourceFrom names an earlier step, with the result source-digest, that packs the source. This
	// step works on its own copy, of exactly that digest, in its workspace source, which is empty
	// until a first container has unpacked the copy. If omitted, the workspace source is the
	// shared volume of the steps.
	SourceFrom string `json:"sourceFrom,omitempty"`
	// RunAfter names the steps to wait for. If omitted, the step waits for the step before it;
	// with an empty list it waits for none.
	RunAfter *[]string `json:"runAfter,omitempty"`
	// Timeout of the step. If omitted, the pipeline's timeout applies.
	Timeout *v1.Duration `json:"timeout,omitempty"`
	// Retries of the step by Tekton. If omitted, there are none.
	Retries int `json:"retries,omitempty"`
	// OnError is continue or stopAndFail. If omitted, it is stopAndFail.
	OnError tektonv1.PipelineTaskOnErrorType `json:"onError,omitempty"`
	// Finally runs the step after all others, even if they failed.
	Finally bool `json:"finally,omitempty"`
	// Workspaces maps the step's workspaces to the pipeline's. If omitted, each has its own name,
	// and source is the shared workspace.
	Workspaces map[string]string `json:"workspaces,omitempty"`

	// Index among the steps of the template as it was written.
	Index int `json:"-"`

	refers bool // to the builder
}

// Isolates reports whether the template's runs are isolated.
func (t *Template) Isolates() bool { return t.Attest || t.Isolate }

// Open names what a build may change of a template whose runs are isolated.
type Open struct {
	// Parameters that spec.pipeline.parameters or a step's parameters may set. If omitted, none.
	Parameters []string `json:"parameters,omitempty"`
	// Steps that a build may disable or make conditional. If omitted, none.
	Steps []string `json:"steps,omitempty"`
	// Labels and Annotations are the keys that spec.labels and spec.annotations may have. Tekton
	// copies them to the pods, where admission and nodes may act on them. If omitted, none.
	Labels      []string `json:"labels,omitempty"`
	Annotations []string `json:"annotations,omitempty"`
}

// Step is a step ConfigMap that was read.
type Step struct {
	Task tektonv1.TaskSpec
	// Doc is the document of the step.
	Doc *Document
	// Broken is set if the problems of the step are reported, so that errors which follow from
	// them are not.
	Broken bool
	// RefersToTasks is set if the step refers to other tasks, such as by
	// $(tasks.NAME.results.RESULT) in a script.
	RefersToTasks bool
}

// NoTemplate returns the placeholder of a template that could not be read.
func NoTemplate() *Template { return &Template{Doc: &Document{}} }

// StepNames returns the names of the template's steps.
func (t *Template) StepNames() []string {
	names := make([]string, len(t.Steps))
	for i, s := range t.Steps {
		names[i] = s.Name
	}
	return names
}

// ReadTemplate reads the template of a ConfigMap strictly.
func ReadTemplate(cm ConfigMap) (*Template, error) {
	yamlText, hasYAML := cm.Data[TemplateKeyYAML]
	jsonText, hasJSON := cm.Data[TemplateKeyJSON]
	doc := cm.document(TemplateKeyYAML, yamlText)
	switch {
	case hasYAML && hasJSON:
		return nil, findings.Join(cm.Place().Fault(api.ReasonInvalidTemplate,
			"has both template.yaml and template.json", "keep one of the two keys"))
	case hasJSON:
		doc.key, doc.Body = TemplateKeyJSON, jsonText
	case !hasYAML:
		return nil, findings.Join(cm.Place().Fault(api.ReasonInvalidTemplate,
			"has neither the key template.yaml nor template.json",
			"put the template under template.yaml"))
	}
	t, r := &Template{Doc: doc}, &reader{Document: doc, reason: api.ReasonInvalidTemplate}
	if !r.decode(t) {
		return nil, r.err()
	}
	for i := range t.Steps {
		t.Steps[i].Index, t.Steps[i].refers = i, tekton.Contains(t.Steps[i], "$(builder")
		r.checkRow(fmt.Sprintf("steps[%d]", i), t.Steps[i])
	}
	r.checkBuilders(t)
	r.checkPods(t)
	r.checkSources(t)
	r.checkDoubles("globalParameters", t.GlobalParameters)
	r.checkOpen(t)
	t.Broken = len(r.found) > 0
	return t, r.err()
}

// checkRow checks a row of a template by itself.
func (r *reader) checkRow(at string, s Row) {
	switch {
	case s.Name == "":
		r.bad(at, "give each step a name, such as unit-tests", "has no name")
	case !dnsLabel().MatchString(s.Name) || len(s.Name) > 63:
		r.bad(at, "use at most 63 lower-case letters, digits and '-'",
			"name %q is not a DNS label", s.Name)
	}
	if s.ConfigMap == "" {
		r.bad(at, "name the ConfigMap that holds the step's task-spec.yaml", "has no configMap")
	}
	if s.Retries < 0 {
		r.bad(at, "leave it out, or write how often the step is tried again",
			"retries %d is negative", s.Retries)
	}
	for j, w := range s.WhenExpressions {
		at := fmt.Sprintf("%s.whenExpressions[%d]", at, j)
		if w.Operator != "in" && w.Operator != "notin" {
			r.bad(at, "use in or notin", "operator %q is unknown", w.Operator)
		}
		if len(w.Values) == 0 {
			r.bad(at, "list at least one value to compare with", "has no values")
		}
	}
	r.checkDoubles(at+".defaultParameters", s.DefaultParameters)
}

func (r *reader) checkDoubles(at string, params []Parameter) {
	seen := map[string]bool{}
	for i, p := range params {
		field := fmt.Sprintf("%s[%d]", at, i)
		if p.Name == "" {
			r.bad(field, "name the parameter", "has no name")
		}
		if seen[p.Name] {
			r.bad(field, "keep one of them", "parameter %q occurs twice", p.Name)
		}
		seen[p.Name] = true
	}
}

// checkPods refuses podOf that does not name an earlier step with its own pod, and podOf of a step
// with settings that apply to whole tasks only.
func (r *reader) checkPods(t *Template) {
	for i, row := range t.Steps {
		if row.PodOf == "" {
			continue
		}
		field := fmt.Sprintf("steps[%d].podOf", i)
		at := slices.IndexFunc(t.Steps[:i],
			func(before Row) bool { return before.Name == row.PodOf })
		switch {
		case at < 0:
			r.bad(field, "name an earlier step", "is %q, and no step before this one has that name",
				row.PodOf)
		case t.Steps[at].PodOf != "":
			r.bad(field, fmt.Sprintf("use %q", t.Steps[at].PodOf),
				"is %q, which runs in the pod of %q", row.PodOf, t.Steps[at].PodOf)
		case t.Steps[at].Finally || row.Finally || row.RunAfter != nil || row.Timeout != nil ||
			row.Retries > 0 || row.OnError != "" || len(row.WhenExpressions) > 0:
			r.bad(field, "remove those, or podOf", "cannot be combined with whenExpressions, "+
				"runAfter, timeout, retries, onError or finally")
		}
	}
}

// checkSources refuses sourceFrom that does not name an earlier step on the shared source.
func (r *reader) checkSources(t *Template) {
	for i, row := range t.Steps {
		before := func(s Row) bool {
			return s.Name == row.SourceFrom && !s.Finally && s.SourceFrom == ""
		}
		if row.SourceFrom != "" && !slices.ContainsFunc(t.Steps[:i], before) {
			r.bad(fmt.Sprintf("steps[%d].sourceFrom", i),
				"name an earlier step that packs the source, such as one of pack-source-step",
				"is %q, and no step before this one has that name and works on the shared source",
				row.SourceFrom)
		}
	}
}

// checkOpen checks the fields attest, isolate, open, verifySource and cache of a template.
func (r *reader) checkOpen(t *Template) {
	const useless = "has no effect without attest: true or isolate: true"
	if !t.Isolates() {
		if len(t.Open.Parameters)+len(t.Open.Steps)+len(t.Open.Labels)+len(t.Open.Annotations) > 0 {
			r.bad("open", "add one of them, or remove open", useless)
		}
		if t.VerifySource != "" {
			r.bad("verifySource", "add one of them, or let builds set spec.source.verify", useless)
		}
		return
	}
	if t.Cache != nil && *t.Cache {
		r.bad("cache", "remove it", "cannot be true with attest: true or isolate: true, because a "+
			"writer of the cache decides what is built")
	}
	for i, name := range t.Open.Parameters {
		at := fmt.Sprintf("open.parameters[%d]", i)
		switch {
		case FromSpec(name) || name == "source-revision":
			r.bad(at, "remove it", "parameter %q comes from the build's spec alone", name)
		case Handed(name):
			r.bad(at, "remove it", "parameter %q is handed from step to step", name)
		}
	}
	for field, keys := range map[string][]string{"labels": t.Open.Labels,
		"annotations": t.Open.Annotations} {
		for i, key := range keys {
			if domain, _, _ := strings.Cut(key, "/"); domain == "tekton.dev" ||
				strings.HasSuffix(domain, ".tekton.dev") {
				r.bad(fmt.Sprintf("open.%s[%d]", field, i), "remove it", "%s steers Tekton", key)
			}
		}
	}
	for i, name := range t.Open.Steps {
		if !slices.Contains(t.StepNames(), name) {
			r.bad(fmt.Sprintf("open.steps[%d]", i), "use one of "+strings.Join(t.StepNames(), ", "),
				"no step is named %q", name)
		}
	}
}

var dnsLabel = text.Pattern(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
