// Package expand is the contract of the functions that turn a custom resource
// into other objects: Agent, AsyncActor and others.
package expand

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/scalar"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
)

// Resource is a custom resource on its way to its objects. A function that expands it is pure: it
// reads the resource and the results of Find, and calls Add and Report.
type Resource struct {
	*krm.Object

	// Function is the one that expands it. Its name begins the rules of findings.
	Function string
	// Prefix is that of labels and annotations: "kagenti.io".
	Prefix string
	// Lookup finds another custom resource that expands, or that others read;
	// see Find.
	Lookup func(group, kind, namespace, name string) *krm.Object

	// Read reads an object of the core group as its author wrote it, such as a
	// ConfigMap; nil where the package does not have it.
	Read func(kind, namespace, name string) *krm.Object

	// Blame returns how a message about a field ends, nil for all alike.
	Blame func(field string) string

	Lock

	// Objects and Findings are the result.
	Objects  []Object
	Findings []finding.Finding
	// Misread are those of Decode. Findings that may only follow from them are not reported.
	Misread []finding.Finding
	// Used are the resources that Find gave, each once. A host may drop them
	// after a render, so they are remembered together with this one.
	Used []*krm.Object
	// Claims are what Claim was called with.
	Claims []string
}

// Lock is what the locks of a package say.
type Lock interface {
	// Built returns the image that an AgentBuild has made, with its digest.
	Built(namespace, name string) (image string, found bool)
	// Image returns an image with the digest that the lock has of it, or unchanged.
	Image(image string) string
	// SignCard puts the signatures of the lock into the text of an agent card. known is
	// false where the lock has signatures, and none of this card.
	SignCard(card []byte) (signed []byte, known bool, err error)
}

// Object is one that a resource generates. It is in the resource's namespace.
// One of a resource's objects bears the name of the resource: it remembers what
// it was made from.
type Object struct {
	APIVersion, Kind, Name string
	Labels, Annotations    map[string]string
	// Shared says that all resources of the kind in a namespace generate one object
	// of this name together. The first of them, by name, owns it.
	Shared bool
	// Body are the fields beside metadata: a struct with yaml tags, a map or a
	// *yaml.Node. nil is none.
	Body any
}

// Annotations are those of a custom resource that the objects made from it get as
// well: all but those that hosts, kubectl and Armature itself write. Where two maps
// have the same key, the last one wins.
func Annotations(from ...map[string]string) map[string]string {
	annotations := make(map[string]string)
	for _, m := range from {
		for key, value := range m {
			if !krm.HostAnnotation(key) && key != krm.LocalConfig && !strings.HasPrefix(key,
				"kubectl.kubernetes.io/") && !strings.HasPrefix(key, keys.Own) {
				annotations[key] = value
			}
		}
	}
	return annotations
}

// OptIn returns the labels of the resource by which its workload opts in. Where two maps have the
// same key, the last one wins.
func (r *Resource) OptIn(from ...map[string]string) map[string]string {
	labels := make(map[string]string)
	for _, m := range from {
		for _, name := range []string{"inject", "spiffe", "spire"} {
			if value, ok := m[r.Prefix+"/"+name]; ok {
				labels[r.Prefix+"/"+name] = value
			}
		}
	}
	return labels
}

// Find returns the custom resource of a kind in a namespace whose file is nearest,
// nil where the package has none.
func (r *Resource) Find(group, kind, namespace, name string) *krm.Object {
	o := r.Lookup(group, kind, namespace, name)
	if o != nil && !slices.Contains(r.Used, o) {
		r.Used = append(r.Used, o)
	}
	return o
}

// Decode reads the resource into a Go value with JSON tags. Unknown fields and
// wrong types are findings of the rule; ok is false where the rest could not be
// read either.
func (r *Resource) Decode(rule string, into any) (ok bool) {
	r.Misread = r.Object.Decode(r.Function+"/"+rule, into)
	r.Findings = append(r.Findings, r.Misread...)
	return !slices.ContainsFunc(r.Misread, func(f finding.Finding) bool { return f.Field == "" })
}

// Report adds a finding about a field such as spec.imageSource.image, or about the deepest value on
// the way to it. The texts in its message are shown without what may be secret in them.
func (r *Resource) Report(severity finding.Severity, rule, field, hint, message string,
	values ...any) {
	message = Sprintf(message, values...)
	if r.Blame != nil {
		message += r.Blame(field)
	}
	f := r.Finding(severity, rule, r.At(field), message, hint)
	f.Field = field
	r.Findings = append(r.Findings, f)
}

// Fail reports an error of a rule of the function.
func (r *Resource) Fail(rule, field, hint, message string, values ...any) {
	r.Report(finding.Error, r.Function+"/"+rule, field, hint, message, values...)
}

// FailIf calls Fail if something is wrong, and returns whether it is.
func (r *Resource) FailIf(wrong bool, rule, field, hint, message string, values ...any) bool {
	if wrong {
		r.Fail(rule, field, hint, message, values...)
	}
	return wrong
}

// Sprintf writes a message whose texts are shown without what may be secret in them.
func Sprintf(message string, values ...any) string {
	for i, value := range values {
		if s, ok := value.(string); ok {
			values[i] = text.Shown(s)
		}
	}
	return fmt.Sprintf(message, values...)
}

// CheckImage reports a value that is not an image.
func (r *Resource) CheckImage(field, image string) {
	r.FailIf(!identity.IsImage(image), "bad-image", field,
		"write it as registry/name:tag or registry/name@sha256:…", "%q is not an image", image)
}

// CheckReplicas reports a number of replicas below zero; nil is unset.
func (r *Resource) CheckReplicas(field string, n *int) {
	if n != nil && *n < 0 {
		r.Fail("out-of-range", field, "write 0 or more", "%d is less than 0", *n)
	}
}

// Failed reports whether a finding is an error.
func (r *Resource) Failed() bool { return finding.Failed(r.Findings) }

// Add adds an object.
func (r *Resource) Add(o Object) { r.Objects = append(r.Objects, o) }

// serviceName and labelValue are what the API server takes: DNS-1035 for the one.
var (
	serviceName = text.Pattern(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	labelValue  = text.Pattern(`^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$`)
)

// checkNames finds names of the resource after which objects would be named that the API
// server refuses.
func (r *Resource) checkNames() {
	refused := func(what, name, hint string) {
		r.Report(finding.Error, "package/bad-name", "metadata.name",
			hint, "the API server refuses %s %q, which is named after the %s", what, name, r.Kind)
	}
	for _, o := range r.Objects {
		longest := identity.MaxName - max(0, len(o.Name)-len(r.Name))
		switch {
		case o.Kind == "Service" && !serviceName().MatchString(o.Name):
			refused("the Service", o.Name, fmt.Sprintf("begin with a letter, "+
				"and use at most %d lower-case letters, digits and dashes", longest))
			return
		case !identity.ValidName(o.Name):
			refused("the "+o.Kind, o.Name,
				"use lower-case letters, digits and dashes, with a letter or digit at both ends")
			return
		}
		for _, key := range slices.Sorted(maps.Keys(o.Labels)) {
			if value := o.Labels[key]; !labelValue().MatchString(value) &&
				strings.Contains(value, r.Name) {
				refused("the label "+key, value, fmt.Sprintf("use at most %d characters",
					identity.MaxName-(len(value)-len(r.Name))))
				return
			}
		}
	}
}

// Claim says that no other resource of the package may have something that is in
// no namespace, such as a queue of a broker.
func (r *Resource) Claim(what string) { r.Claims = append(r.Claims, what) }

// maxSource is how much an object may remember: Kubernetes takes 256 KiB of
// annotations.
const maxSource = 200 << 10

// Text writes the resource's objects, each as a YAML document without
// separators.
func (r *Resource) Text() ([][]byte, error) {
	source, err := r.source()
	if err != nil {
		return nil, err
	}
	carrier := slices.IndexFunc(r.Objects, func(o Object) bool { return o.Name == r.Name })
	texts := make([][]byte, len(r.Objects))
	for i, o := range r.Objects {
		kept := ""
		if i == carrier {
			kept = source
		}
		if texts[i], err = r.append(nil, &o, kept); err != nil {
			return nil, fmt.Errorf("writing %s %s: %w", o.Kind, o.Name, err)
		}
	}
	return texts, nil
}

func (r *Resource) append(dst []byte, o *Object, source string) ([]byte, error) {
	pair := func(indent, key, value string) {
		dst = append(append(append(scalar.AppendPlain(append(dst, indent...), key), ": "...),
			scalar.AppendPlain(nil, value)...), '\n')
	}
	pair("", "apiVersion", o.APIVersion)
	pair("", "kind", o.Kind)
	dst = append(dst, "metadata:\n"...)
	pair("  ", "name", o.Name)
	if r.Namespace != "" {
		pair("  ", "namespace", r.Namespace)
	}
	dst = append(dst, "  labels:\n"...)
	labels := maps.Clone(o.Labels)
	if labels == nil {
		labels = make(map[string]string)
	}
	labels[identity.ManagedBy] = "armature"
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		pair("    ", key, labels[key])
	}
	dst = append(dst, "  annotations:\n"...)
	pair("    ", keys.RenderedFor, r.Kind+"/"+r.Name)
	if source != "" {
		dst = append(append(append(dst, "    "+keys.Source+": '"...), source...), "'\n"...)
	}
	for _, key := range slices.Sorted(maps.Keys(o.Annotations)) {
		pair("    ", key, o.Annotations[key])
	}
	if o.Body == nil {
		return dst, nil
	}
	var body yaml.Node
	if err := body.Encode(o.Body); err != nil {
		return nil, err
	}
	plain(&body)
	text, err := krm.BlockStyle(yaml.NewRNode(&body))
	return append(dst, text...), err
}

// plain drops the author's quotes, so that an object does not depend on how its
// resource was written.
func plain(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode {
		n.Tag = n.ShortTag()
		n.Style = 0
	}
	for _, c := range n.Content {
		plain(c)
	}
}

// source is the value of the Source annotation, inside single quotes.
func (r *Resource) source() (string, error) {
	var all []any
	for _, o := range append([]*krm.Object{r.Object}, r.Used...) {
		data, err := o.JSON()
		if err != nil {
			return "", err
		}
		value, err := exact(data)
		if err != nil {
			return "", err
		}
		krm.DropHostAnnotations(value)
		delete(value, "status")
		all = append(all, value)
	}
	data := appendJSON(nil, all)
	if len(all) == 1 {
		data = appendJSON(nil, all[0])
	}
	if len(data) > maxSource {
		return "", fmt.Errorf("%s has %d bytes as JSON, and the annotation "+
			"that records it holds %d: move long texts to ConfigMaps", r.Ref, len(data), maxSource)
	}
	// appendJSON has escaped all else that a reader of YAML could stumble over
	return strings.ReplaceAll(string(data), "'", "''"), nil
}

// exact reads an object of JSON, whose numbers stay as they are written.
func exact(data []byte) (object map[string]any, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	err = d.Decode(&object)
	return object, err
}

// appendJSON writes a value of JSON on one line. Its fields are sorted, as some hosts sort
// them, so that it is the same through all of them.
func appendJSON(dst []byte, value any) []byte {
	switch value := value.(type) {
	case map[string]any:
		dst = append(dst, '{')
		for i, key := range slices.Sorted(maps.Keys(value)) {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendJSON(append(scalar.AppendJSON(dst, key), ':'), value[key])
		}
		return append(dst, '}')
	case []any:
		dst = append(dst, '[')
		for i, item := range value {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendJSON(dst, item)
		}
		return append(dst, ']')
	case string:
		return scalar.AppendJSON(dst, value)
	case nil:
		return append(dst, "null"...)
	}
	return fmt.Append(dst, value) // a number, true or false
}
