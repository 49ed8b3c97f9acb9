package templates

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/failure/findings"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/text"
)

// Tenants write templates and steps, and the controller keeps them parsed. The size of a text is
// limited before it is parsed, and again with its aliases expanded. The largest shipped step has
// 16 KiB and 300 values.
const (
	maxText = 512 << 10
	// maxMarks limits the punctuation, and with it the memory of parsing.
	maxMarks = 20000
	// maxNodes limits the values: Tekton's validation takes 50 µs for each.
	maxNodes = 4000
	// MaxSteps and MaxStepValues limit the bytes and values of all steps of one build. The API
	// server stores no larger run.
	MaxSteps, MaxStepValues = 1536 << 10, 5 * maxNodes
	// bytesOfNode is the most memory that one parsed value of a valid text takes.
	bytesOfNode = 512
)

// Document is the text of one key of a ConfigMap, with the lines of its fields.
type Document struct {
	From   ConfigMap
	Body   string
	Values int // number of values in Body

	key    string
	fields []field
}

// field is a field of a mapping, or an item of a list, which has no name.
type field struct {
	name  string
	line  int
	inner []field
}

// memory returns the most bytes that the document takes, as text and parsed.
func (d *Document) memory() int { return 2*len(d.Body) + bytesOfNode*d.Values }

// Memory returns the most bytes that the template takes.
func (t *Template) Memory() int { return t.Doc.memory() }

// Memory returns the most bytes that the step takes.
func (s *Step) Memory() int { return s.Doc.memory() }

// At returns the place of a field such as "steps[1].image", or of the document.
func (d *Document) At(path string) finding.Place {
	where := d.From.Place().At(path)
	where.Key, where.KeyLine = d.key, d.line(path)
	return where
}

// line returns the line of path or of the nearest parent that exists; 0 if it is not known.
func (d *Document) line(path string) int {
	inner, line := d.fields, 0
	// "steps[1].params[name].x" has the parts steps, 1, params, name and x.
	for _, part := range strings.FieldsFunc(path,
		func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		at := slices.IndexFunc(inner, func(f field) bool { return f.name == part })
		if n, err := strconv.Atoi(part); err == nil && n >= 0 && n < len(inner) && inner[n].name == "" {
			at = n
		}
		if at < 0 {
			break
		}
		inner, line = inner[at].inner, inner[at].line
	}
	return line
}

// tooLarge returns the reason not to parse a text, or "". It counts the characters after which a
// value of YAML or JSON can begin.
func tooLarge(text string) string {
	if len(text) > maxText {
		return fmt.Sprintf("has %d KiB, and at most %d are read", (len(text)+1023)>>10, maxText>>10)
	}
	marks := 0
	for _, mark := range []string{",", "[", "{", ":", "-", "?", "\n"} {
		marks += strings.Count(text, mark)
	}
	if marks > maxMarks {
		return fmt.Sprintf("has %d lines and marks such as ',' and ':', and at most %d are read",
			marks, maxMarks)
	}
	return ""
}

// outline counts the values and bytes of a text with its aliases expanded.
type outline struct{ nodes, bytes int }

func (o *outline) over() bool { return o.nodes > maxNodes || o.bytes > maxText }

// fieldsOf returns the fields of a value with their lines. It stops if the text is over its limits.
func (o *outline) fieldsOf(n *yamlv3.Node) (out []field) {
	if n.Kind == yamlv3.AliasNode {
		n = n.Alias
	}
	o.nodes, o.bytes = o.nodes+1, o.bytes+len(n.Value)
	step := 1
	if n.Kind == yamlv3.MappingNode {
		step = 2
	}
	for i := 0; i+step <= len(n.Content) && !o.over(); i += step {
		f := field{line: n.Content[i].Line}
		if step == 2 {
			f.name = n.Content[i].Value
			o.fieldsOf(n.Content[i])
		}
		f.inner = o.fieldsOf(n.Content[i+step-1])
		out = append(out, f)
	}
	return out
}

// reader reads the text of one key and collects its problems.
type reader struct {
	*Document
	reason string
	found  []*finding.Finding
}

// bad adds a finding about a field.
func (r *reader) bad(field, hint, format string, args ...any) {
	r.found = append(r.found, r.At(field).Fault(r.reason, fmt.Sprintf(format, args...), hint))
}

func (r *reader) err() error { return findings.Error(r.found) }

// decode decodes the text and adds findings about unknown fields, duplicate keys and wrong types
// with their lines. It reports false if the text cannot be decoded.
func (r *reader) decode(into any) bool {
	atLine := func(line int, message, hint string) bool {
		where := r.At("")
		where.KeyLine = line
		r.found = append(r.found, where.Fault(r.reason, message, hint))
		return false
	}
	if problem := tooLarge(r.Body); problem != "" {
		return atLine(0, problem, "divide the step, or move scripts to the repository or the image")
	}
	var root yamlv3.Node
	if err := yamlv3.Unmarshal([]byte(r.Body), &root); err != nil {
		line, message := YAMLProblem(err)
		return atLine(line, message, YAMLHint)
	}
	if len(root.Content) == 0 || root.Content[0].Kind != yamlv3.MappingNode {
		return atLine(0, "is not a mapping of fields",
			"see docs/builds-templates.md for the format")
	}
	all := outline{}
	if r.fields = all.fieldsOf(root.Content[0]); all.over() {
		r.fields = nil
		r.bad("", "divide the step, or use fewer aliases",
			"has more than %d values, or %d KiB, with its aliases written out", maxNodes, maxText>>10)
		return false
	}
	r.Values = all.nodes
	data, err := yaml.YAMLToJSONStrict([]byte(r.Body))
	if err != nil {
		line, message := 0, strings.ReplaceAll(err.Error(), "\n", " ")
		if m := anyLine().FindStringSubmatch(message); m != nil {
			line, _ = strconv.Atoi(m[1])
		}
		return atLine(line, message, "fix the YAML: each key occurs once, and anchors are few")
	}
	unknown, err := kjson.UnmarshalStrict(data, into)
	if err != nil {
		field, message := "", err.Error()
		if m := wrongType().FindStringSubmatch(message); m != nil {
			want := m[3]
			if strings.HasPrefix(want, "[]") {
				want = "a list"
			}
			a := "a "
			if strings.IndexByte("aeio", m[1][0]) >= 0 {
				a = "an "
			}
			field, message = m[2], fmt.Sprintf("is %s%s; want %s", a, m[1], want)
		}
		r.bad(field, "use the type in docs/builds-templates.md", "%s", message)
		return false
	}
	for _, u := range unknown {
		field := ""
		if at, ok := u.(interface{ FieldPath() string }); ok {
			field = at.FieldPath()
		}
		r.bad(field, text.UnknownField(into, field, "correct the spelling or remove it"),
			"is not a known field")
	}
	return true
}

// YAMLHint is the remedy for a text that is not YAML.
const YAMLHint = "fix the YAML; tabs and unclosed quotes are common causes"

// YAMLProblem returns the line and the message of an error of the YAML library. The line is 0 if it
// is not known.
func YAMLProblem(err error) (line int, message string) {
	message = strings.TrimPrefix(err.Error(), "yaml: ")
	if m := yamlLine().FindStringSubmatch(message); m != nil {
		line, _ = strconv.Atoi(m[1])
		message = strings.TrimPrefix(message, m[0])
	}
	return line, "cannot be read: " + message
}

var (
	yamlLine = text.Pattern(`^line (\d+): `)
	anyLine  = text.Pattern(`line (\d+)`)
	// wrongType matches the decoder's message: value, field, Go type.
	wrongType = text.Pattern(
		`cannot unmarshal (.+) into Go struct field [^.]*\.(\S+) of type (\S+)`)
)
