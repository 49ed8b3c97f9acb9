package contract

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/index"
	"github.com/armature-dev/armature/functions/internal/scalar"
	"github.com/armature-dev/armature/functions/krm"
)

// Generated is a YAML document that belongs behind an object.
type Generated struct{ text []byte }

// Document returns a generated document of its own.
func Document(text []byte) Generated { return Generated{text} }

// Append writes the document's lines with n more spaces before each, and with
// a line ending of the caller's.
func (g *Generated) Append(dst []byte, n int, eol string) []byte {
	return krm.AppendIndented(dst, g.text, n, eol)
}

// Text is the document alone.
func (g *Generated) Text() []byte { return g.text }

// ConfigMap is how a function writes the ConfigMap of a workload.
type ConfigMap struct {
	// Of is the function's name.
	Of string
	// Sidecars says that it is for the sidecars, so that a workload that gets the
	// tracing settings alone has none.
	Sidecars bool
	// Needed reports whether a workload gets it, nil for all.
	Needed func(*identity.Settings) bool
	// Name returns the name of the ConfigMap, Append its text.
	Name   func(*identity.Settings) string
	Append func([]byte, *identity.Settings) []byte
	// Beside returns another custom resource that a workload's ConfigMap is made from, or nil. A
	// nil Beside means that there is none.
	Beside func(index.ID) *krm.Object
}

// GenerateConfigMap generates the ConfigMap of an injected workload. from is the
// custom resource that it was made from, nil for none: the ConfigMap remembers it
// and the one beside it, so that another render of what a host kept comes to the
// same.
func (u *Unit) GenerateConfigMap(c *ConfigMap, from *krm.Object) {
	s := u.Settings()
	if u.taken(func() string { return c.Name(s) }) {
		return
	}
	var sources []string
	remember := func(from *krm.Object) {
		if from == nil {
			return
		}
		source, err := sourceJSON(from, u.Object.Name)
		if err != nil {
			u.Findings = append(u.Findings,
				from.Finding(finding.Error, "package/source", krm.Node{}, err.Error(),
					""))
			return
		}
		sources = append(sources, strings.TrimSpace(string(source)))
	}
	remember(from)
	if c.Beside != nil {
		remember(c.Beside(u.ID()))
	}
	var source []byte
	if len(sources) > 0 {
		text := sources[0]
		if len(sources) > 1 {
			text = "[" + strings.Join(sources, ",") + "]"
		}
		source = []byte("    " + keys.Source + ": '" + strings.ReplaceAll(text, "'", "''") + "'\n")
	}
	u.generate(c, source)
}

// GenerateAccount generates the ServiceAccount of an injected workload, unless its
// author wrote one of that name, which the workload has then. It reports whether it did.
func (u *Unit) GenerateAccount(account *ConfigMap) bool {
	s := u.Settings()
	_, authored := u.pkg.Index.Authored(index.Key{Kind: "ServiceAccount",
		Namespace: s.Subject.Namespace, Name: s.Subject.ServiceAccount}, u.Object.Origin.File)
	if !authored {
		u.generate(account, nil)
	}
	return !authored
}

// generate composes an object, with more lines of annotations.
func (u *Unit) generate(c *ConfigMap, annotations []byte) {
	text := c.Append(make([]byte, 0, 3<<10), u.Settings()) // most are not longer
	if annotations = append(u.phase(), annotations...); len(annotations) > 0 {
		lead := []byte("  annotations:\n")
		text = bytes.Replace(text, lead, append(lead, annotations...), 1)
	}
	u.Generated = append(u.Generated, Document(text))
}

// phase returns the lines of the workload's annotations by which Helm and Argo CD create
// an object before or after the rest of a release, or keep it when the release goes. Its
// ConfigMaps have to be there at the same time: a pod does not start without them.
func (u *Unit) phase() (lines []byte) {
	annotations := u.Object.Get("metadata", "annotations")
	if annotations.Len() == 0 {
		return nil
	}
	for _, key := range [...]string{
		"helm.sh/hook", "helm.sh/hook-weight", "helm.sh/hook-delete-policy",
		"helm.sh/resource-policy", "argocd.argoproj.io/hook",
		"argocd.argoproj.io/hook-delete-policy", "argocd.argoproj.io/sync-wave",
	} {
		if value := annotations.Get(key); value.Exists() {
			lines = append(append(append(lines, "    "...), key...), ": "...)
			lines = append(scalar.AppendYAML(lines, value.Text()), '\n')
		}
	}
	return lines
}

// Generate adds a ConfigMap, unless an author's has its name.
func (u *Unit) Generate(name string, text []byte) {
	if !u.taken(func() string { return name }) {
		u.Generated = append(u.Generated, Document(text))
	}
}

// taken reports whether a ConfigMap of an author's has a name.
func (u *Unit) taken(name func() string) bool {
	if !u.pkg.Index.HasAuthoredConfigMaps() {
		return false
	}
	place, taken := u.pkg.Index.Authored(index.Key{Kind: "ConfigMap", Namespace: u.Object.Namespace,
		Name: name()}, u.Object.Origin.File)
	if taken {
		u.Report(finding.Error, "package/name-taken", u.Object.Get("metadata", "name"),
			fmt.Sprintf("its ConfigMap %s already exists in %s", name(), place), "rename that object")
	}
	return taken
}

// sourceJSON is the resource with the name that its workload has by now, and
// without what a host says about the item that it came as.
func sourceJSON(c *krm.Object, workload string) ([]byte, error) {
	value, err := c.Value()
	if err != nil {
		return nil, err
	}
	krm.DropHostAnnotations(value)
	if object, ok := value.(map[string]any); ok {
		if spec, ok := object["spec"].(map[string]any); ok {
			if ref, ok := spec["targetRef"].(map[string]any); ok {
				ref["name"] = workload
			}
		}
	}
	return json.Marshal(value)
}
