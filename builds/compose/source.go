package compose

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	yamlv3 "go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/krm"
)

// ConfigMap is what composition reads of one: its data, and its place for
// people.
type ConfigMap struct {
	Namespace string
	Name      string
	// File that holds the ConfigMap, and the line on which it begins; empty for one
	// in a cluster.
	File string
	Line int
	Data map[string]string
}

// Place of the ConfigMap.
func (c ConfigMap) Place() krm.Place {
	return krm.Place{File: c.File, Line: c.Line, Object: krm.Ref{APIVersion: "v1", Kind: "ConfigMap", Namespace: c.Namespace, Name: c.Name}}
}

func (c ConfigMap) String() string { return c.Place().String() }

// The keys and names under which templates and steps are stored (000,
// "Template Structure" and "Step Storage").
const (
	TemplateKeyYAML = "template.yaml"
	TemplateKeyJSON = "template.json"
	StepKey         = "task-spec.yaml"
	templatePrefix  = "pipeline-template-"
)

// TemplateName is the name of the ConfigMap that holds mode's template.
func TemplateName(mode string) string {
	if mode == "" {
		mode = "dev"
	}
	return templatePrefix + mode
}

// document is the text of one key, with enough of its structure to say on which
// line a field is.
type document struct {
	from ConfigMap
	key  string
	body string
	root *yamlv3.Node
}

// place of a field path such as "steps[1].image", or of the document.
func (d *document) place(path string) krm.Place {
	where := d.from.Place().At(path)
	where.Key, where.KeyLine = d.key, d.line(path)
	return where
}

// line of path or of the nearest parent that exists; 0 when nothing is known.
func (d *document) line(path string) int {
	if d.root == nil || len(d.root.Content) == 0 {
		return 0
	}
	node := d.root.Content[0]
	line := 0
	for _, part := range splitPath(path) {
		next := child(node, part)
		if next == nil {
			break
		}
		node, line = next.value, next.line
	}
	return line
}

type located struct {
	value *yamlv3.Node
	line  int
}

func child(node *yamlv3.Node, part string) *located {
	switch node.Kind {
	case yamlv3.AliasNode:
		return child(node.Alias, part)
	case yamlv3.SequenceNode:
		i, err := strconv.Atoi(part)
		if err != nil || i < 0 || i >= len(node.Content) {
			return nil
		}
		return &located{node.Content[i], node.Content[i].Line}
	case yamlv3.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == part {
				return &located{node.Content[i+1], node.Content[i].Line}
			}
		}
	}
	return nil
}

// splitPath cuts "steps[1].params[name].x" into steps, 1, params, name, x.
func splitPath(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' })
}

// Template is a pipeline template (000, "Template Structure"). The fields from
// Builders on in its steps are ours.
type Template struct {
	Name               string              `json:"name,omitempty"`
	Namespace          string              `json:"namespace,omitempty"`
	Description        string              `json:"description,omitempty"`
	RequiredParameters []string            `json:"requiredParameters,omitempty"`
	GlobalParameters   []TemplateParameter `json:"globalParameters,omitempty"`
	Steps              []TemplateStep      `json:"steps"`
	// Builder of builds that choose none; it goes with builders of the steps. Omitted,
	// it is buildkit where steps have that.
	Builder string `json:"builder,omitempty"`
	// Cache false refuses builds that name a cache. Omitted, they may, unless Attest is set.
	Cache *bool `json:"cache,omitempty"`

	// Attest makes this a template of the platform: it counts in the controller's
	// namespace only, builds change what Open names and nothing else, and its
	// steps may sign. Omitted, false.
	Attest bool `json:"attest,omitempty"`
	// Open names what a build may change of an attested template. Omitted, nothing.
	Open Open `json:"open,omitempty"`
	// VerifySource names a ConfigMap in the controller's namespace, whose policy the
	// commit of each build has to satisfy; it goes with Attest. Omitted, builds may
	// demand that by themselves.
	VerifySource string `json:"verifySource,omitempty"`

	doc *document
	// chosen is the builder whose steps alone are left in Steps; empty has them all.
	chosen string
	// broken: its problems are reported, so that Tekton need not report them again
	broken bool
}

// TemplateParameter is a default; Value is a string, a list or a map.
type TemplateParameter struct {
	Name        string               `json:"name"`
	Value       *tektonv1.ParamValue `json:"value,omitempty"`
	Required    *bool                `json:"required,omitempty"`
	Description string               `json:"description,omitempty"`
}

// TemplateStep is one row of a template.
type TemplateStep struct {
	Name               string               `json:"name"`
	ConfigMap          string               `json:"configMap"`
	Enabled            *bool                `json:"enabled,omitempty"`
	Description        string               `json:"description,omitempty"`
	DefaultParameters  []TemplateParameter  `json:"defaultParameters,omitempty"`
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

	index  int  // among the steps of the template as it was written
	refers bool // to the builder
}

// StepFile is a step ConfigMap that was read.
type StepFile struct {
	Task tektonv1.TaskSpec
	doc  *document
	// broken: its problems are reported, so that no more follow from it
	broken bool
	// refers to other tasks, as by $(tasks.NAME.results.RESULT) in a script
	refers bool
}

// ReadTemplate reads the template of a ConfigMap, strictly.
func ReadTemplate(cm ConfigMap) (*Template, error) {
	problems := &findings{}
	yamlText, hasYAML := cm.Data[TemplateKeyYAML]
	jsonText, hasJSON := cm.Data[TemplateKeyJSON]
	doc := &document{from: cm, key: TemplateKeyYAML, body: yamlText}
	switch {
	case hasYAML && hasJSON:
		problems.add(cm.Place().Fault(api.ReasonInvalidTemplate,
			"has both template.yaml and template.json", "keep one of the two keys"))
		return nil, problems.err()
	case hasJSON:
		doc.key, doc.body = TemplateKeyJSON, jsonText
	case !hasYAML:
		problems.add(cm.Place().Fault(api.ReasonInvalidTemplate,
			"has neither the key template.yaml nor template.json"+otherKeys(cm),
			"put the template under template.yaml"))
		return nil, problems.err()
	}
	template := &Template{doc: doc}
	if !decode(doc, template, api.ReasonInvalidTemplate, problems) {
		return nil, problems.err()
	}
	for i, s := range template.Steps {
		template.Steps[i].index, template.Steps[i].refers = i, strings.Contains(mustJSON(s), "$(builder")
		at := fmt.Sprintf("steps[%d]", i)
		bad := func(message, hint string) {
			problems.add(doc.place(at).Fault(api.ReasonInvalidTemplate, message, hint))
		}
		switch {
		case s.Name == "":
			bad("has no name", "give each step a name, such as unit-tests")
		case !dnsLabel().MatchString(s.Name) || len(s.Name) > 63:
			bad(fmt.Sprintf("name %q is not a DNS label", s.Name), "use at most 63 lower-case letters, digits and '-'")
		}
		if s.ConfigMap == "" {
			bad("has no configMap", "name the ConfigMap that holds the step's task-spec.yaml")
		}
		if s.Retries < 0 {
			bad(fmt.Sprintf("retries %d is less than none", s.Retries), "leave it out, or write how often the step is tried again")
		}
		for j, w := range s.WhenExpressions {
			checkWhen(w, func(message, hint string) {
				p := fmt.Sprintf("%s.whenExpressions[%d]", at, j)
				problems.add(doc.place(p).Fault(api.ReasonInvalidTemplate, message, hint))
			})
		}
		checkDoubles(s.DefaultParameters, doc, at+".defaultParameters", problems)
	}
	template.checkBuilders(problems)
	template.checkPods(problems)
	template.checkSources(problems)
	checkDoubles(template.GlobalParameters, doc, "globalParameters", problems)
	checkOpen(template, func(field, message, hint string) {
		problems.add(doc.place(field).Fault(api.ReasonInvalidTemplate, message, hint))
	})
	template.broken = len(problems.found) > 0
	return template, problems.err()
}

func checkDoubles(params []TemplateParameter, doc *document, at string, problems *findings) {
	seen := map[string]bool{}
	for i, p := range params {
		field := fmt.Sprintf("%s[%d]", at, i)
		if p.Name == "" {
			problems.add(doc.place(field).Fault(api.ReasonInvalidTemplate, "has no name", "name the parameter"))
		}
		if seen[p.Name] {
			problems.add(doc.place(field).Fault(api.ReasonInvalidTemplate,
				fmt.Sprintf("parameter %q occurs twice", p.Name), "keep one of them"))
		}
		seen[p.Name] = true
	}
}

func checkWhen(w api.WhenExpression, bad func(message, hint string)) {
	if w.Operator != "in" && w.Operator != "notin" {
		bad(fmt.Sprintf("operator %q is unknown", w.Operator), "use in or notin")
	}
	if len(w.Values) == 0 {
		bad("has no values", "list at least one value to compare with")
	}
}

// ReadStep reads the TaskSpec of a step ConfigMap, strictly, and lets Tekton
// judge it. With an error too there is a StepFile, so that the rest of a build
// can be judged in the same go.
func ReadStep(cm ConfigMap) (*StepFile, error) {
	problems := &findings{}
	body, ok := cm.Data[StepKey]
	doc := &document{from: cm, key: StepKey, body: body}
	if !ok {
		problems.add(cm.Place().Fault(api.ReasonInvalidStep,
			"has no key task-spec.yaml"+otherKeys(cm), "put the step's Tekton TaskSpec under task-spec.yaml"))
		return &StepFile{doc: doc, broken: true}, problems.err()
	}
	var file struct {
		APIVersion        string `json:"apiVersion,omitempty"`
		Kind              string `json:"kind,omitempty"`
		tektonv1.TaskSpec `json:",inline"`
	}
	if !decode(doc, &file, api.ReasonInvalidStep, problems) {
		return &StepFile{doc: doc, broken: true}, problems.err()
	}
	if file.Kind != "" && file.Kind != "TaskSpec" {
		problems.add(doc.place("kind").Fault(api.ReasonInvalidStep,
			fmt.Sprintf("is %q, not TaskSpec", file.Kind), "store the content of spec: of the Task, with or without kind: TaskSpec"))
	}
	if file.APIVersion != "" && !strings.HasPrefix(file.APIVersion, "tekton.dev/") {
		problems.add(doc.place("apiVersion").Fault(api.ReasonInvalidStep,
			fmt.Sprintf("is %q", file.APIVersion), "use tekton.dev/v1, or leave apiVersion and kind out"))
	}
	step := &StepFile{Task: file.TaskSpec, doc: doc, refers: refersToTasks(file.TaskSpec)}
	if len(problems.found) == 0 {
		checkTask(step, problems)
	}
	step.broken = len(problems.found) > 0
	return step, problems.err()
}

// otherKeys lists the keys that a ConfigMap has instead of the one sought.
func otherKeys(cm ConfigMap) string {
	if len(cm.Data) == 0 {
		return " (it has no data)"
	}
	return fmt.Sprintf(" (it has %s)", strings.Join(sortedKeys(cm.Data), ", "))
}

var dnsLabel = krm.Pattern(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// decode reads doc into a value and reports unknown fields, doubled keys and
// wrong types with their lines. It is false when nothing can be read.
func decode(doc *document, into any, reason string, problems *findings) bool {
	var root yamlv3.Node
	if err := yamlv3.Unmarshal([]byte(doc.body), &root); err != nil {
		where, message := doc.place(""), strings.TrimPrefix(err.Error(), "yaml: ")
		if m := yamlLine().FindStringSubmatch(message); m != nil {
			where.KeyLine, _ = strconv.Atoi(m[1])
			message = strings.TrimPrefix(message, m[0])
		}
		problems.add(where.Fault(reason, "cannot be read: "+message, "fix the YAML; tabs and unclosed quotes are common causes"))
		return false
	}
	doc.root = &root
	if len(root.Content) == 0 || root.Content[0].Kind != yamlv3.MappingNode {
		problems.add(doc.place("").Fault(reason, "is not a mapping of fields", "see docs/builds.md for the format"))
		return false
	}
	data, err := yaml.YAMLToJSONStrict([]byte(doc.body))
	if err != nil {
		where, message := doc.place(""), strings.ReplaceAll(err.Error(), "\n", " ")
		if m := anyLine().FindStringSubmatch(message); m != nil {
			where.KeyLine, _ = strconv.Atoi(m[1])
		}
		problems.add(where.Fault(reason, message, "fix the YAML: each key occurs once, and anchors are few"))
		return false
	}
	unknown, err := kjson.UnmarshalStrict(data, into)
	if err != nil {
		field, message := "", err.Error()
		if m := wrongType().FindStringSubmatch(message); m != nil {
			field, message = m[2], fmt.Sprintf("is %s; want %s", m[1], m[3])
		}
		problems.add(doc.place(field).Fault(reason, message, "give the field the type that docs/builds.md says"))
		return false
	}
	for _, u := range unknown {
		field := ""
		if at, ok := u.(interface{ FieldPath() string }); ok {
			field = at.FieldPath()
		}
		problems.add(doc.place(field).Fault(reason, "is not a known field", "correct the spelling or remove it"))
	}
	return true
}

var (
	yamlLine = krm.Pattern(`^line (\d+): `)
	anyLine  = krm.Pattern(`line (\d+)`)
	// wrongType cuts the decoder's sentence: value, field, Go type.
	wrongType = krm.Pattern(`cannot unmarshal (.+) into Go struct field [^.]*\.(\S+) of type (\S+)`)
)

// fingerprint of the texts that shape a pipeline, in a stable order.
func fingerprint(parts ...string) string {
	sum := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(sum, "%d:%s\n", len(p), p)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

func sha256Hex(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
