// Package templates reads what builds are composed of: the ConfigMaps of pipeline templates and
// of steps. It judges each by itself, knows the names of parameters, and chooses the builder.
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

// ConfigMap is what composition reads of one: its data, and its place for
// people.
type ConfigMap struct {
	Namespace string
	Name      string
	// File that holds the ConfigMap, and the line on which it begins; empty for one
	// in a cluster.
	File   string
	Line   int
	Labels map[string]string
	Data   map[string]string
}

// SharedWith reports whether builds of a namespace may use the ConfigMap of another
// one that is not the platform's: a label names their namespace.
func (c ConfigMap) SharedWith(namespace string) bool {
	return c.Labels[keys.SharePrefix+namespace] == "true"
}

// ShareHint follows the hint about a ConfigMap that build's pipeline.namespace may have.
func ShareHint(build *api.AgentBuild) string {
	if build.Spec.Pipeline == nil || build.Spec.Pipeline.Namespace == "" {
		return ""
	}
	return fmt.Sprintf("; one in namespace %s needs the label %s%s: \"true\"",
		build.Spec.Pipeline.Namespace, keys.SharePrefix, build.Namespace)
}

// document of a key, without the other keys of the ConfigMap, which may be large.
func (c ConfigMap) document(key, body string) *Document {
	c.Labels, c.Data = nil, nil
	return &Document{From: c, key: key, Body: body}
}

// Place of the ConfigMap.
func (c ConfigMap) Place() finding.Place {
	return finding.Place{File: c.File, Line: c.Line,
		Object: finding.Ref{APIVersion: "v1", Kind: "ConfigMap", Namespace: c.Namespace, Name: c.Name}}
}

func (c ConfigMap) String() string { return c.Place().String() }

// The keys and names under which templates and steps are stored (000,
// "Template Structure" and "Step Storage").
const (
	TemplateKeyYAML = "template.yaml"
	TemplateKeyJSON = "template.json"
	StepKey         = "task-spec.yaml"
	TemplatePrefix  = "pipeline-template-"
	// UsualMode is that of builds that name none.
	UsualMode = "dev"
)

// TemplateName is the name of the ConfigMap that holds mode's template.
func TemplateName(mode string) string { return TemplatePrefix + cmp.Or(mode, UsualMode) }

// Template is a pipeline template (000, "Template Structure"). The fields from
// Builders on in its steps are ours.
type Template struct {
	Name               string      `json:"name,omitempty"`
	Namespace          string      `json:"namespace,omitempty"`
	Description        string      `json:"description,omitempty"`
	RequiredParameters []string    `json:"requiredParameters,omitempty"`
	GlobalParameters   []Parameter `json:"globalParameters,omitempty"`
	Steps              []Row       `json:"steps"`
	// Builder of builds that do not choose one, out of the builders of the steps. If
	// omitted, it is buildkit if a step has that.
	Builder string `json:"builder,omitempty"`
	// Cache false refuses builds that name a cache. Omitted, they may, unless the runs are
	// isolated.
	Cache *bool `json:"cache,omitempty"`

	// Attest makes this a template of the platform: it counts in the controller's
	// namespace only, builds change what Open names and nothing else, its steps may
	// sign, and its runs are isolated in a namespace of the platform. Omitted, false.
	Attest bool `json:"attest,omitempty"`
	// Isolate isolates the runs as Attest does, under the same rules; nothing is attested.
	// Omitted, false.
	Isolate bool `json:"isolate,omitempty"`
	// Open names what a build may change of a template with Attest or Isolate. Omitted, nothing.
	Open Open `json:"open,omitempty"`
	// VerifySource names a ConfigMap in the controller's namespace, whose policy the
	// commit of each build has to satisfy; it goes with Attest or Isolate. Omitted, builds may
	// demand that by themselves.
	VerifySource string `json:"verifySource,omitempty"`

	// Doc is the text that it was read from.
	Doc *Document `json:"-"`
	// Broken says that its problems are reported, so that Tekton need not report them again.
	Broken bool `json:"-"`
	// chosen is the builder whose steps alone are left in Steps; empty has them all.
	chosen string
}

// Parameter is a default; Value is a string, a list or a map.
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

	// Builders that the step belongs to: it runs for builds that choose one of
	// them. Omitted, it runs whatever the builder is.
	Builders []string `json:"builders,omitempty"`
	// PodOf names an earlier step, in whose pod this one runs after the containers of
	// that one: the pipeline has one task for both, with the name of the earlier step.
	// A workspace that one of them does not declare is not mounted into its containers.
	// Omitted, the step has a pod of its own.
	PodOf string `json:"podOf,omitempty"`
	// SourceFrom names an earlier step, with the result source-digest, that packs the
	// source. This step works on a copy of its own, of exactly that digest, in its
	// workspace source, which is empty until a container before its others has
	// unpacked it. Omitted, the workspace source is the volume that steps share.
	SourceFrom string `json:"sourceFrom,omitempty"`
	// RunAfter names the steps to wait for. Omitted, the step before; an empty
	// list starts at once.
	RunAfter *[]string `json:"runAfter,omitempty"`
	// Timeout of the step. Omitted, the pipeline's.
	Timeout *v1.Duration `json:"timeout,omitempty"`
	// Retries of the step by Tekton. Omitted, none.
	Retries int `json:"retries,omitempty"`
	// OnError is continue or stopAndFail. Omitted, stopAndFail.
	OnError tektonv1.PipelineTaskOnErrorType `json:"onError,omitempty"`
	// Finally runs the step after all others, whatever became of them.
	Finally bool `json:"finally,omitempty"`
	// Workspaces maps the step's workspaces to the pipeline's. Omitted, each
	// has its own name, and source is the shared one.
	Workspaces map[string]string `json:"workspaces,omitempty"`

	// Index among the steps of the template as it was written.
	Index int `json:"-"`

	refers bool // to the builder
}

// Isolates reports whether the template's runs are isolated, so that nothing of it is the build's.
func (t *Template) Isolates() bool { return t.Attest || t.Isolate }

// Open names what a build may change of a template whose runs are isolated.
type Open struct {
	// Parameters that spec.pipeline.parameters or a step's parameters may set.
	// Omitted, none.
	Parameters []string `json:"parameters,omitempty"`
	// Steps that a build may switch off or make conditional. Omitted, none.
	Steps []string `json:"steps,omitempty"`
	// Labels and Annotations are the keys that spec.labels and spec.annotations may have.
	// Tekton copies them to the pods, where what admission and nodes do may depend on them.
	// Omitted, none.
	Labels      []string `json:"labels,omitempty"`
	Annotations []string `json:"annotations,omitempty"`
}

// Step is a step ConfigMap that was read.
type Step struct {
	Task tektonv1.TaskSpec
	// Doc is the text that it was read from.
	Doc *Document
	// Broken says that its problems are reported, so that no more follow from it.
	Broken bool
	// RefersToTasks says that it refers to others, as by $(tasks.NAME.results.RESULT) in a
	// script.
	RefersToTasks bool
}

// NoTemplate takes the place of a template that could not be read.
func NoTemplate() *Template { return &Template{Doc: &Document{}} }

// StepNames are the names of its steps.
func (t *Template) StepNames() []string {
	names := make([]string, len(t.Steps))
	for i, s := range t.Steps {
		names[i] = s.Name
	}
	return names
}

// ReadTemplate reads the template of a ConfigMap, strictly.
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

// checkRow judges a row of a template by itself.
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

// checkPods of a template: podOf names an earlier step that has a pod, and the step
// has nothing that only a whole task can have.
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

// checkSources of a template: sourceFrom names an earlier step.
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

// checkOpen judges what a template says of attest, isolate, open, verifySource and cache.
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
