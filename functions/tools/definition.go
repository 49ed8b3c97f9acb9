// Package tools compares the tools of tool servers with a lock. It does no input or output:
// catalog/ask queries the servers.
package tools

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/text"
)

// Definition is the definition of a tool for models, in the form of the MCP specification. It
// excludes icons, _meta and the order of tools.
type Definition struct {
	Name         string         `json:"name"`
	Title        string         `json:"title,omitempty"`
	Description  string         `json:"description,omitempty"`
	InputSchema  any            `json:"inputSchema,omitempty"`
	OutputSchema any            `json:"outputSchema,omitempty"`
	Annotations  map[string]any `json:"annotations,omitempty"`
}

// hints are the boolean annotations of the specification, with their defaults.
var hints = map[string]bool{"readOnlyHint": false, "idempotentHint": false, "destructiveHint": true,
	"openWorldHint": true}

// Read reads the JSON of a tool. An annotation with its default value counts as omitted, because
// programs differ on whether they write it.
func Read(document []byte) (d Definition, err error) {
	if err := json.Unmarshal(document, &d); err != nil {
		return d, fmt.Errorf("reading a tool: %w", err)
	}
	maps.DeleteFunc(d.Annotations, func(key string, value any) bool {
		usual, hint := hints[key]
		return hint && value == usual || value == nil || value == ""
	})
	if len(d.Annotations) == 0 {
		d.Annotations = nil
	}
	return d, nil
}

// Digest returns the SHA-256 of the definition in the canonical form of JSON (RFC 8785).
func (d *Definition) Digest() (string, error) { return digest(d) }

func digest(value any) (string, error) {
	written, err := json.Marshal(value)
	if err != nil {
		return "", err
	}
	if written, err = text.CanonicalJSON(written); err != nil {
		return "", err
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256(written)), nil
}

// SetDigest returns the combined digest of all tools of a server: that of the canonical JSON of an
// object with the digest of each tool under its name.
func SetDigest(digests map[string]string) (string, error) { return digest(digests) }

// Lock returns the entry of a lock for the tools of a server. The definitions have passed Check.
func Lock(server api.ToolServer, offered []Definition) (api.LockedToolServer, error) {
	locked := api.LockedToolServer{ToolServer: server}
	digests := make(map[string]string)
	for _, d := range offered {
		sum, err := d.Digest()
		if err != nil {
			return locked, fmt.Errorf("tool %s: %w", Visible(d.Name), err)
		}
		digests[d.Name] = sum
	}
	for _, name := range slices.Sorted(maps.Keys(digests)) {
		locked.Tools = append(locked.Tools, api.LockedTool{Name: name, Digest: digests[name]})
	}
	var err error
	locked.Digest, err = SetDigest(digests)
	return locked, err
}

// Limits of definitions that can be locked.
const (
	maxMembers = 1000 // of one object
	maxDepth   = 64   // of nested objects and lists
	maxName    = 256  // bytes
)

// Problem says why a definition cannot be locked.
type Problem struct {
	// Tool is its printable name; Field is a path such as inputSchema.properties.to.$ref.
	Tool, Field, Message, Hint string
}

// Check reports problems that prevent definitions from being locked: indistinguishable names,
// external schemas, and sizes that no tool needs.
func Check(offered []Definition) (problems []Problem) {
	seen := make(map[string]bool)
	for i := range offered {
		d := &offered[i]
		c := checker{tool: text.Cut(Visible(d.Name), maxName)}
		const name = "name"
		switch {
		case d.Name == "" || len(d.Name) > maxName:
			c.report(name, fmt.Sprintf("a tool's name has 1 to %d bytes", maxName),
				"rename the tool on the server")
		case len(Hidden(d.Name)) > 0:
			c.report(name, "it has invisible characters: "+Runes(Hidden(d.Name)),
				"rename the tool on the server")
		case seen[d.Name]:
			c.report(name, "the server has two tools of this name",
				"rename one of them on the server")
		}
		seen[d.Name] = true
		c.schema("inputSchema", d.InputSchema, 1, true)
		c.schema("outputSchema", d.OutputSchema, 1, true)
		c.schema("annotations", any(d.Annotations), 1, true)
		problems = append(problems, c.problems...)
	}
	return problems
}

type checker struct {
	tool     string
	problems []Problem
}

func (c *checker) report(field, message, hint string) {
	c.problems = append(c.problems, Problem{c.tool, text.Cut(Visible(field), 512), message, hint})
}

// schema reports references that lead out of the definition, and bounds its size. Values below
// enum, const, default and examples are not schemas, so that a reference in them is text. But a
// parameter may have one of these names, and then its value is a schema.
func (c *checker) schema(path string, value any, depth int, isSchema bool) {
	const simplify = "simplify the schema on the server"
	object, isObject := value.(map[string]any)
	list, _ := value.([]any)
	switch {
	case len(c.problems) > 8:
	case isObject && !isSchema && object["type"] != nil:
		c.schema(path, value, depth, true)
	case depth > maxDepth:
		c.report(path, fmt.Sprintf("it is more than %d levels deep", maxDepth), simplify)
	case len(object) > maxMembers:
		c.report(path, fmt.Sprintf("it has %d members, and %d at most can be locked", len(object),
			maxMembers), simplify)
	default:
		for _, key := range slices.Sorted(maps.Keys(object)) {
			at := path + "." + key
			to, isText := object[key].(string)
			if isSchema && isText && (key == "$ref" || key == "$dynamicRef") &&
				!strings.HasPrefix(to, "#") {
				c.report(at, fmt.Sprintf(
					"it refers to %s, which may change without the definition and is not fetched",
					text.Cut(Visible(to), 200)),
					"put that schema below $defs on the server, and refer to it as #/$defs/NAME")
			}
			c.schema(at, object[key], depth+1, isSchema && key != "enum" && key != "const" &&
				key != "default" && key != "examples")
		}
		for i, item := range list {
			c.schema(fmt.Sprintf("%s[%d]", path, i), item, depth+1, isSchema)
		}
	}
}

// Hidden returns the characters of a text that models read and people do not see: characters
// without a width, that change the direction of writing or are tags, and control characters. The
// result is sorted and has no duplicates.
func Hidden(text string) (found []rune) {
	for _, r := range text {
		if hidden(r) && !slices.Contains(found, r) {
			found = append(found, r)
		}
	}
	slices.Sort(found)
	return found
}

func hidden(r rune) bool {
	switch {
	case r == '\n', r == '\t', r == '\r':
		return false
	// fillers, separators
	case r == 0x034F, r == 0x115F, r == 0x1160, r == 0x3164, r == 0xFFA0, r == 0x2028, r == 0x2029:
		return true
	case 0xE0000 <= r && r <= 0xE0FFF: // tags, and variation selectors that stand for bytes
		return true
	}
	return unicode.Is(unicode.Cf, r) || unicode.IsControl(r)
}

// Visible returns a text with each hidden character as <U+202E>.
func Visible(text string) string {
	if !strings.ContainsFunc(text, hidden) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if hidden(r) {
			fmt.Fprintf(&b, "<U+%04X>", r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Runes returns the names of characters: "U+200B, U+202E".
func Runes(found []rune) string {
	var names []string
	for _, r := range found[:min(len(found), 8)] {
		names = append(names, fmt.Sprintf("U+%04X", r))
	}
	if len(found) > 8 {
		names = append(names, "…")
	}
	return strings.Join(names, ", ")
}

// File is the name of the file with the definitions, next to armature.lock.
const File = "armature.tools.lock"

// MaxFile is its maximum size, in bytes.
const MaxFile = 64 << 20

// rule is the rule of findings about the file.
const rule = "pin-images/tools"

// file is its content.
type file struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Servers    []Server `json:"servers"`
}

const kind = "ToolDefinitions"

// Format writes definitions as JSON that Git compares line by line. Hidden characters are escaped,
// so that they are visible in a pull request.
func Format(servers []Server) ([]byte, error) {
	servers = slices.Clone(servers)
	slices.SortFunc(servers, func(a, b Server) int { return a.ToolServer.Compare(b.ToolServer) })
	for i := range servers {
		servers[i].Tools = slices.SortedFunc(slices.Values(servers[i].Tools),
			func(a, b Definition) int { return strings.Compare(a.Name, b.Name) })
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(file{keys.V1alpha1, kind, servers}); err != nil {
		return nil, err
	}
	if !strings.ContainsFunc(text.String(), hidden) {
		return text.Bytes(), nil
	}
	var b bytes.Buffer
	for _, r := range text.String() {
		switch {
		case !hidden(r):
			b.WriteRune(r)
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.Bytes(), nil
}

// Parse reads definitions, and reports those that differ from the lock, because people must read
// the definitions that were locked.
func Parse(data []byte, name string, lock *api.ImageLock) ([]Server, []finding.Finding) {
	fail := func(message string) []finding.Finding {
		return []finding.Finding{{Rule: rule, Severity: finding.Error,
			Place: finding.Place{File: name}, Message: message,
			Hint: "run `armature tools pin` to write it again"}}
	}
	var f file
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return nil, fail("it cannot be read: " + err.Error())
	}
	// Fields that the decoder ignores or overwrites would mislead a reader.
	written, err := text.CanonicalJSON(data)
	read, err2 := json.Marshal(f)
	if err = cmp.Or(err, err2); err == nil {
		read, err = text.CanonicalJSON(read)
	}
	if err != nil {
		return nil, fail("it cannot be read: " + err.Error())
	}
	if !bytes.Equal(written, read) {
		return nil, fail("it has fields that are not part of the definitions")
	}
	if f.APIVersion != keys.V1alpha1 || f.Kind != kind {
		return nil, fail(fmt.Sprintf("it is not a %s of %s", kind, keys.V1alpha1))
	}
	var locked []api.LockedToolServer
	if lock != nil {
		locked = lock.Spec.Tools
	}
	for _, s := range f.Servers {
		is, err := Lock(s.ToolServer, s.Tools)
		if err != nil {
			return nil, fail(s.ToolServer.String() + ": " + err.Error())
		}
		if !slices.ContainsFunc(locked,
			func(l api.LockedToolServer) bool {
				return l.ToolServer == s.ToolServer &&
					l.Digest == is.Digest
			}) {
			return nil, fail(fmt.Sprintf("its tools of %s differ from armature.lock", s.ToolServer))
		}
	}
	return f.Servers, nil
}
