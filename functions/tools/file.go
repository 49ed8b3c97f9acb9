package tools

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
)

// File is the name of the definitions beside armature.lock.
const File = "armature.tools.lock"

// MaxFile is how large it may be, in bytes.
const MaxFile = 64 << 20

// rule is that of findings on the file.
const rule = "pin-images/tools"

// file is its content.
type file struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Servers    []Server `json:"servers"`
}

const kind = "ToolDefinitions"

// Format writes definitions as JSON that Git shows line by line. A hidden character is
// written as an escape, so that it is seen in a pull request.
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

// Parse reads definitions, and reports where they are not those of a lock: what a person
// reads in them has to be what was locked.
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
