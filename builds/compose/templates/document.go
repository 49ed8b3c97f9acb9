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

// Tenants write templates and steps, and the controller keeps what it parsed of them. A
// text is bounded before it is parsed, and again with its aliases written out. The
// largest shipped step has 16 KiB and 300 values.
const (
	maxText = 512 << 10
	// maxMarks bounds the punctuation, and with it the memory that parsing takes.
	maxMarks = 20000
	// maxNodes bounds the values: Tekton's own check takes 50 µs for each.
	maxNodes = 4000
	// MaxSteps and MaxStepValues are those of one build together. The API server stores no
	// run that is larger.
	MaxSteps, MaxStepValues = 1536 << 10, 5 * maxNodes
	// bytesOfNode is what one value takes at most, parsed, in a text that is valid.
	bytesOfNode = 512
)

// Document is the text of one key, with enough of its structure to say on which
// line a field is.
type Document struct {
	From   ConfigMap
	Body   string
	Values int // of the text

	key    string
	fields []field
}

// field of a mapping, or item of a list, which has no name.
type field struct {
	name  string
	line  int
	inner []field
}

// memory that the document and what was parsed from it take, at most.
func (d *Document) memory() int { return 2*len(d.Body) + bytesOfNode*d.Values }

// Memory that the template takes, in bytes, at most.
func (t *Template) Memory() int { return t.Doc.memory() }

// Memory that the step takes, in bytes, at most.
func (s *Step) Memory() int { return s.Doc.memory() }

// At is the place of a field such as "steps[1].image", or of the document.
func (d *Document) At(path string) finding.Place {
	where := d.From.Place().At(path)
	where.Key, where.KeyLine = d.key, d.line(path)
	return where
}

// line of path or of the nearest parent that exists; 0 when nothing is known.
func (d *Document) line(path string) int {
	inner, line := d.fields, 0
	// "steps[1].params[name].x" is cut into steps, 1, params, name, x.
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

// tooLarge says why a text is not parsed; empty means that it may be. Each value of YAML
// or JSON begins after one of these characters.
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

// outline counts what a text has with its aliases written out.
type outline struct{ nodes, bytes int }

func (o *outline) over() bool { return o.nodes > maxNodes || o.bytes > maxText }

// of a value: the lines of its fields. It ends once there are too many.
func (o *outline) of(n *yamlv3.Node) (out []field) {
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
			o.of(n.Content[i])
		}
		f.inner = o.of(n.Content[i+step-1])
		out = append(out, f)
	}
	return out
}

// reader reads the text of one key, and collects what is wrong with it.
type reader struct {
	*Document
	reason string
	found  []*finding.Finding
}

// bad notes what is wrong with a field.
func (r *reader) bad(field, hint, format string, args ...any) {
	r.found = append(r.found, r.At(field).Fault(r.reason, fmt.Sprintf(format, args...), hint))
}

func (r *reader) err() error { return findings.Error(r.found) }

// decode reads the text into a value and notes unknown fields, doubled keys and
// wrong types with their lines. It is false when nothing can be read.
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
	if r.fields = all.of(root.Content[0]); all.over() {
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

// YAMLHint is the hint for a text that is not YAML.
const YAMLHint = "fix the YAML; tabs and unclosed quotes are common causes"

// YAMLProblem returns the message of a text that is not YAML, and its line; 0 where that is not
// known.
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
	// wrongType cuts the decoder's sentence: value, field, Go type.
	wrongType = text.Pattern(
		`cannot unmarshal (.+) into Go struct field [^.]*\.(\S+) of type (\S+)`)
)
