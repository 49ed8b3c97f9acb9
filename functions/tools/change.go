package tools

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pmezard/go-difflib/difflib"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/text"
)

// Server is a tool server with the definitions of its tools, sorted by name.
type Server struct {
	api.ToolServer `json:",inline"`
	Tools          []Definition `json:"tools"`
}

// Effects of changes.
const (
	Added   = "added"
	Removed = "removed"
	Changed = "changed"
)

// Change is the difference of a tool.
type Change struct {
	Server api.ToolServer `json:"server"`
	// Tool is "" for a whole server that is added or removed.
	Tool   string `json:"tool,omitempty"`
	Effect string `json:"effect"`
	// Fields are the fields that differ. For an added tool they are all texts.
	Fields []Field `json:"fields,omitempty"`
	// Warnings are facts for a reviewer: new required parameters, changed hints, hidden characters.
	Warnings []string `json:"warnings,omitempty"`
}

// Field is a value of a definition that differs.
type Field struct {
	// Path is a path such as description, or inputSchema.properties.to.type.
	Path string `json:"path"`
	// Words has the common words, [-removed-] and {+added+} words. Hidden characters are written as
	// <U+202E>.
	Words string `json:"words"`
}

// Side is one side of a comparison: the digests of a lock, and the definitions, as far as they are
// known.
type Side struct {
	Locked      []api.LockedToolServer
	Definitions []Server
}

// tool names a tool; its name is "" for the server itself.
type tool struct {
	server api.ToolServer
	name   string
}

func (s Side) digests() (map[tool]string, map[tool]Definition) {
	digests, definitions := make(map[tool]string), make(map[tool]Definition)
	for _, of := range s.Locked {
		digests[tool{of.ToolServer, ""}] = "server"
		for _, t := range of.Tools {
			digests[tool{of.ToolServer, t.Name}] = t.Digest
		}
	}
	for _, of := range s.Definitions {
		for _, d := range of.Tools {
			definitions[tool{of.ToolServer, d.Name}] = d
		}
	}
	return digests, definitions
}

// Compare returns the changes between two sides, by server and tool. The digests decide which tools
// differ, and the definitions show how.
func Compare(before, after Side) (changes []Change) {
	was, hadText := before.digests()
	is, hasText := after.digests()
	all := maps.Clone(was)
	maps.Copy(all, is)
	for _, of := range slices.SortedFunc(maps.Keys(all), func(a, b tool) int {
		return cmp.Or(a.server.Compare(b.server), strings.Compare(a.name, b.name))
	}) {
		c := Change{Server: of.server, Tool: of.name, Effect: Changed}
		switch {
		case was[of] == is[of]:
			continue
		case is[of] == "":
			c.Effect = Removed
		case was[of] == "":
			c.Effect = Added
		}
		old, hadOne := hadText[of]
		now, hasOne := hasText[of]
		if of.name != "" && hasOne && (hadOne || c.Effect == Added) {
			c.fields(old, now)
		}
		changes = append(changes, c)
	}
	return changes
}

// fields compares the values of two definitions by their paths.
func (c *Change) fields(was, is Definition) {
	before, after := values(was), values(is)
	all := maps.Clone(before)
	maps.Copy(all, after)
	var invisible []rune
	for _, path := range slices.Sorted(maps.Keys(all)) {
		old, now := before[path], after[path]
		if path == "name" || old == now {
			continue
		}
		c.Fields = append(c.Fields, Field{Visible(path), Words(old, now)})
		invisible = append(append(invisible, Hidden(path)...), Hidden(now)...)
		hint, isHint := strings.CutPrefix(path, "annotations.")
		if usual, known := hints[hint]; isHint && (known || strings.HasSuffix(hint, "Hint")) {
			c.Warnings = append(c.Warnings,
				fmt.Sprintf("%s was %s and is %s", Visible(hint), orDefault(old, usual),
					orDefault(now, usual)))
		}
	}
	if c.Effect == Changed {
		for _, name := range required(is.InputSchema) {
			if !slices.Contains(required(was.InputSchema), name) {
				c.Warnings = append(c.Warnings,
					fmt.Sprintf("the parameter %q is required now", Visible(name)))
			}
		}
	}
	if len(invisible) > 0 {
		slices.Sort(invisible)
		c.Warnings = append(c.Warnings,
			"invisible characters that models read: "+Runes(slices.Compact(invisible)))
	}
}

func orDefault(value string, usual bool) string {
	if value == "" {
		return fmt.Sprint(usual)
	}
	return Visible(value)
}

// required returns the names in required of a schema.
func required(schema any) (names []string) {
	object, _ := schema.(map[string]any)
	list, _ := object["required"].([]any)
	for _, item := range list {
		if name, ok := item.(string); ok {
			names = append(names, name)
		}
	}
	return names
}

// values returns the single values of a definition by their paths.
func values(d Definition) map[string]string {
	all := make(map[string]string)
	var fields map[string]any
	if data, err := json.Marshal(d); err == nil && json.Unmarshal(data, &fields) == nil {
		for name, value := range fields {
			flatten(all, name, value)
		}
	}
	return all
}

func flatten(all map[string]string, path string, value any) {
	switch value := value.(type) {
	case nil:
	case map[string]any:
		if len(value) == 0 {
			all[path] = "{}"
		}
		for key, item := range value {
			flatten(all, path+"."+key, item)
		}
	case []any:
		if texts, ok := list(value); ok { // in one line
			all[path] = texts
			return
		}
		for i, item := range value {
			flatten(all, fmt.Sprintf("%s[%d]", path, i), item)
		}
	case string:
		all[path] = value
		if value == "" {
			all[path] = `""`
		}
	default:
		all[path] = fmt.Sprint(value)
	}
}

// list returns a list of single values in one line.
func list(items []any) (string, bool) {
	var texts []string
	for _, item := range items {
		switch item.(type) {
		case map[string]any, []any:
			return "", false
		}
		texts = append(texts, fmt.Sprint(item))
	}
	return "[" + strings.Join(texts, ", ") + "]", true
}

// maxWords is the maximum number of words of each text that are compared, and maxShown the maximum
// length of the result in bytes.
const (
	maxWords = 2000
	maxShown = 8 << 10
)

// Words compares two texts word by word: "Search the web [-carefully-] {+and call send+}".
func Words(before, after string) string {
	was, is := strings.Fields(Visible(before)), strings.Fields(Visible(after))
	front := 0
	for front < min(len(was), len(is)) && was[front] == is[front] {
		front++
	}
	back := 0
	for back < min(len(was), len(is))-front && was[len(was)-1-back] == is[len(is)-1-back] {
		back++
	}
	var out []string
	mark := func(open, end string, words []string) {
		if len(words) > 0 {
			out = append(out, open+strings.Join(words, " ")+end)
		}
	}
	mark("", "", was[:front])
	a, b := was[front:len(was)-back], is[front:len(is)-back]
	steps := []difflib.OpCode{{Tag: 'r', I2: len(a), J2: len(b)}}
	if len(a) <= maxWords && len(b) <= maxWords {
		steps = difflib.NewMatcherWithJunk(a, b, false, nil).GetOpCodes()
	}
	for _, step := range steps {
		if step.Tag == 'e' {
			mark("", "", a[step.I1:step.I2])
			continue
		}
		mark("[-", "-]", a[step.I1:step.I2])
		mark("{+", "+}", b[step.J1:step.J2])
	}
	mark("", "", was[len(was)-back:])
	if len(a)+len(b) == 0 { // white space alone
		return fmt.Sprintf("[-%s-] {+%s+}", text.Cut(fmt.Sprintf("%q", before), maxShown),
			text.Cut(fmt.Sprintf("%q", after), maxShown))
	}
	return text.Cut(strings.Join(out, " "), maxShown)
}

// Lines returns the differences of a tool for people, one on each line.
func (c *Change) Lines() (lines []string) {
	for _, f := range c.Fields {
		lines = append(lines, f.Path+": "+f.Words)
	}
	for _, w := range c.Warnings {
		lines = append(lines, "! "+w)
	}
	return lines
}

// Headline returns the name of a tool with the effect of the change: "~ search".
func (c *Change) Headline() string {
	return map[string]string{Added: "+", Removed: "-", Changed: "~"}[c.Effect] + " " +
		cmp.Or(text.Cut(Visible(c.Tool), maxName), "the server")
}

// Text returns changes as text for people.
func Text(changes []Change) string {
	var b strings.Builder
	var of api.ToolServer
	for _, c := range changes {
		if c.Server != of {
			of = c.Server
			fmt.Fprintf(&b, "%s\n", of)
		}
		fmt.Fprintf(&b, "  %s\n", c.Headline())
		for _, line := range c.Lines() {
			fmt.Fprintf(&b, "      %s\n", line)
		}
	}
	return b.String()
}
