// Package images finds the images and other artifacts that objects name, with one table of fields,
// which pin, lint and the verification of images share.
package images

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
)

// Image is an image that an object names.
type Image struct {
	// Is is the type: an image, or another artifact that is fetched and run or read.
	Is Type
	// Ref is the image, commit or version as it is written.
	Ref string
	// Group and Kind are those of the object; Field is a path such as spec.containers[0].image.
	Group, Kind, Field string
	// Guessed says that no row of the table has the field, but its name and its value look like
	// those of an image.
	Guessed bool
	// Unknown says that this is an object of a kind that the table does not have, which only Judged
	// returns. Field is the path of the object, "" for the whole.
	Unknown bool
	// Problem says why the running content cannot be judged; it is "" if Ref is an image.
	Problem string

	steps []any // Field as keys and indices
}

// Pinned reports whether the running content cannot change while the object stays.
func (i Image) Pinned() bool {
	switch i.Is {
	case IsCommit:
		return commitForm().MatchString(i.Ref)
	case IsVersion:
		return i.Ref != ""
	}
	return strings.Contains(i.Ref, "@sha256:")
}

// Skill returns the name of a skill in an annotation, or "".
func (i Image) Skill() string {
	if n := len(i.steps); n > 0 {
		if key, ok := i.steps[n-1].(string); ok && strings.HasPrefix(key, keys.SkillPrefix) {
			return key[len(keys.SkillPrefix):]
		}
	}
	return ""
}

var commitForm = text.Pattern(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// Path returns the field without indices, as rows and exemptions name it.
func (i Image) Path() string { return indices().ReplaceAllString(i.Field, "") }

var indices = text.Pattern(`\[[0-9]+\]`)

// LooksQualified reports whether a reference has more than one word, so that hardly anything else
// has its form.
func (i Image) LooksQualified() bool { return strings.ContainsAny(i.Ref, "/:@") }

// At returns the node of the image in the object whose Value has it, or the nearest field above it
// that exists.
func (i Image) At(o *krm.Object) krm.Node {
	n := o.Root()
	for _, step := range i.steps {
		switch step := step.(type) {
		case string:
			if !n.Get(step).Exists() {
				return n
			}
			n = n.Get(step)
		case int:
			n = krm.ItemAt(n, step)
		}
	}
	return n
}

// Field is a field with an image that a row of the table has.
type Field struct {
	krm.Node
	// Ref is the image without the scheme oci:// of an artifact.
	Ref string
	// In is the mapping that has it.
	In krm.Node
	// Known says that Changes can name the mapping: items of lists on the way have unique names.
	Known bool
}

// Fields returns the fields of an object with images that run, and with artifacts in the form of
// images. It omits guessed images, and images with variables. own are rows of a RenderConfig.
func Fields(o *krm.Object, own ...Row) (fields []Field) {
	add := func(n krm.Node) {
		if n.IsScalar() {
			in, known := krm.ParentOf(n)
			fields = append(fields,
				Field{n, strings.TrimPrefix(n.Text(), Scheme), in, known && in.IsMap()})
		}
	}
	pod, ok := o.PodTemplate()
	switch {
	case ok && OfKubernetes(o.Group()) && !o.Contains(keys.SkillPrefix):
		// Other fields of these objects have no images.
		for _, list := range [...]string{"initContainers", "containers", "ephemeralContainers"} {
			for c := range pod.Spec().Get(list).Items() {
				add(c.Get("image"))
			}
		}
		for v := range pod.Spec().Get("volumes").Items() {
			add(v.Get("image", "reference"))
		}
	case ok || !OfKubernetes(o.Group()) || o.Kind == "PodTemplate" || o.Contains(keys.SkillPrefix):
		value, err := o.Value()
		if err != nil {
			return nil // other readers of the object report it
		}
		for _, i := range In(value, own...) {
			if at := i.At(o); !i.Guessed && i.Problem == "" &&
				(i.Is == IsImage || i.Is.artifact()) &&
				strings.TrimPrefix(at.Text(), Scheme) == i.Ref {
				add(at)
			}
		}
	}
	return fields
}

// Type is the type of a field according to its row.
type Type string

// Types of fields. A commit or a version is the last key of a row's path; the preceding keys lead
// to the source that has to have it.
const (
	IsImage    Type = "image"    // an image that runs
	IsArtifact Type = "artifact" // an OCI artifact, with an optional oci://
	IsSkill    Type = "skill"    // an artifact with the folder of a skill
	IsCommit   Type = "commit"   // a commit of a Git repository
	IsVersion  Type = "version"  // a version of an object in a bucket
	isOpaque   Type = "opaque"   // decides what runs, but cannot be judged
	isNothing  Type = "nothing"  // not an image, whatever its name is
)

// Scheme is the optional scheme of the reference of an artifact.
const Scheme = "oci://"

func (t Type) artifact() bool { return t == IsArtifact || t == IsSkill }

// Types returns the types that a RenderConfig may assign to a field.
func Types() []string {
	return []string{string(IsImage), string(IsArtifact), string(IsCommit), string(IsVersion)}
}

// Rows returns the rows of spec.images of a RenderConfig, and the findings about them. They follow
// the table: they cannot change the type of its fields, and no row removes a field from a
// judgement.
func Rows(config *api.RenderConfig) (rows []Row, findings []finding.Finding) {
	if config == nil {
		return nil, nil
	}
	for n, f := range config.Spec.Images {
		r := Row{Group: f.Group, Kind: f.Kind, Path: f.Path, Is: Type(f.Is)}
		if f.Is == "" {
			r.Is = IsImage
		}
		field := fmt.Sprintf("spec.images[%d]", n)
		report := func(message, hint string) {
			findings = append(findings,
				finding.Finding{Rule: "config/images", Severity: finding.Error, Message: message,
					Hint: hint,
					Place: finding.Place{
						File: config.Origin.File, Line: config.Origin.LineOf(field), Field: field,
						Object: finding.Ref{APIVersion: api.RenderV1alpha1, Kind: "RenderConfig",
							Name: config.Name}}})
		}
		switch source := r.Is == IsCommit || r.Is == IsVersion; {
		case f.Group == "" || f.Kind == "" || f.Path == "":
			report("a field needs group, kind and path",
				"write them as in {group: example.com, kind: Fleet, path: spec.runner.image}")
		case !slices.Contains(Types(), string(r.Is)):
			report(fmt.Sprintf("%q is not a type of a field", f.Is),
				"write "+strings.Join(Types(), ", "))
		case source && !strings.Contains(f.Path, "."):
			report("the path of a "+f.Is+" needs the source before it",
				"write it as in spec.source.git.commit")
		default:
			rows = append(rows, r)
		}
	}
	return rows, findings
}

// Row defines the type of a field of a kind. table.yaml explains its fields.
type Row struct {
	Group, Kind, Path string
	Is                Type   // "" is IsImage
	Why               string // of isOpaque
}

// table is the only table of fields with images.
var table = sync.OnceValue(func() (rows []Row) {
	if err := yaml.Unmarshal(tableText, &rows); err != nil {
		panic(err) // a test reads it
	}
	return rows
})

//go:embed table.yaml
var tableText []byte

// In returns the images that an object names, as plain Go values: the references, and fields that
// decide about images and cannot be judged. An object may contain others.
func In(object any, own ...Row) []Image {
	w := walk{own: own}
	w.visit(object)
	return w.found
}

// Judged returns the result of In, and each object of a kind that the table does not have, for
// policies that refuse those. Rows of a RenderConfig do not make a kind known, because the author
// of the package writes them, not the author of the policy.
func Judged(object any, own ...Row) []Image {
	w := walk{own: own}
	w.visit(object)
	return append(w.found, w.unknown...)
}

// walk is the state of a walk through one object.
type walk struct {
	own     []Row
	found   []Image
	unknown []Image
	in      inside
	names   []string // the keys that lead to the current value
	steps   []any    // the same with indices
}

// inside holds the context of a field from the objects around it.
type inside struct {
	rows        []Row
	group, kind string // of the innermost
	guesses     bool
}

func (w *walk) visit(value any) {
	switch value := value.(type) {
	case map[string]any:
		outer := w.in
		w.enter(value)
		for _, key := range slices.Sorted(maps.Keys(value)) {
			w.names = append(w.names, key)
			w.step(key, func() {
				if w.field(value[key]) {
					w.visit(value[key])
				}
			})
			w.names = w.names[:len(w.names)-1]
		}
		w.in = outer
	case []any:
		for i, item := range value {
			w.step(i, func() { w.visit(item) })
		}
	}
}

// enter adds the rows of an object to those of the objects around it, so that a nested object
// cannot hide fields from the rows of the outer one. An item of a list is an object of its own.
func (w *walk) enter(object map[string]any) {
	version, _ := object["apiVersion"].(string)
	kind, _ := object["kind"].(string)
	if version == "" || kind == "" {
		return
	}
	own := w.in.kind == "" || strings.HasSuffix(w.in.kind, "List") && !w.in.guesses
	group, _, grouped := strings.Cut(version, "/")
	if !grouped {
		group = ""
	}
	now := inside{group: group, kind: kind, guesses: !OfKubernetes(group)}
	if _, isObject := object["metadata"].(map[string]any); (isObject || len(w.steps) == 0) &&
		!known(group, kind) {
		w.unknown = append(w.unknown, Image{Group: group, Kind: kind, Field: fieldPath(w.steps),
			Unknown: true, Problem: "the policy refuses unknown kinds"})
	}
	if !own {
		now.rows, now.guesses = slices.Clip(w.in.rows), now.guesses || w.in.guesses
	}
	for _, rows := range [...][]Row{table(), w.own} {
		for _, r := range rows {
			switch {
			case r.Group != "*" && r.Group != group || r.Kind != "" && r.Kind != kind ||
				r.Is == isNothing &&
					!own:
			case r.Path != "":
				now.rows = append(now.rows, r)
			case r.Is == isNothing:
				w.in = inside{group: group, kind: kind}
				return
			default:
				w.found = append(w.found,
					Image{Group: group, Kind: kind, Field: fieldPath(w.steps), Problem: r.Why})
			}
		}
	}
	w.in = now
}

// OfKubernetes reports whether a group belongs to Kubernetes itself. Other projects, with images of
// their own, also have groups that end in .k8s.io.
func OfKubernetes(group string) bool { return group == "" || slices.Contains(kubernetes(), group) }

var kubernetes = sync.OnceValue(func() []string { return strings.Fields(kubernetesText) })

//go:embed kubernetes.txt
var kubernetesText string

// known reports whether the table has the kind of an object.
func known(group, kind string) bool {
	return OfKubernetes(group) || slices.ContainsFunc(table(), func(r Row) bool {
		return r.Group == group && (r.Kind == "" || r.Kind == kind)
	})
}

// field judges the current field, and reports whether to visit its values.
func (w *walk) field(value any) (deeper bool) {
	text, isText := value.(string)
	for _, r := range w.in.rows {
		if source, item, pinned := r.source(); pinned {
			if endsWith(w.names, source) {
				w.sources(r.Is, item, value)
			}
			continue
		}
		switch {
		case !endsWith(w.names, r.Path):
		case r.Is == isNothing, value == nil, isText && text == "":
			return false
		case r.Is == isOpaque:
			w.add(Image{Problem: r.Why})
			return false
		case isText:
			w.image(r.Is, text, false)
			return false
		default:
			if items, isList := value.([]any); isList && w.items(r.Is, items) {
				return false
			}
		}
	}
	if w.in.guesses && w.looksLikeImage() {
		w.guess(value)
	}
	return true
}

// source splits the path of a commit or version.
func (r Row) source() (source, item string, ok bool) {
	if r.Is != IsCommit && r.Is != IsVersion {
		return "", "", false
	}
	at := strings.LastIndexByte(r.Path, '.')
	return r.Path[:at], r.Path[at+1:], true
}

// sources records the commit or version of a source, or of each in a list, including missing ones.
func (w *walk) sources(is Type, item string, value any) {
	switch value := value.(type) {
	case map[string]any:
		text, _ := value[item].(string)
		w.step(item, func() { w.image(is, text, false) })
	case []any:
		for i, one := range value {
			if _, isMap := one.(map[string]any); isMap {
				w.step(i, func() { w.sources(is, item, one) })
			}
		}
	}
}

// step visits the value of a key or an index below the current one.
func (w *walk) step(to any, visit func()) {
	w.steps = append(w.steps, to)
	visit()
	w.steps = w.steps[:len(w.steps)-1]
}

// items records a list of texts. It reports whether it is one.
func (w *walk) items(is Type, items []any) bool {
	for i, item := range items {
		text, isText := item.(string)
		if !isText {
			return false
		}
		w.step(i, func() { w.image(is, text, false) })
	}
	return true
}

// looksLikeImage reports whether the name of the field looks like an image's.
func (w *walk) looksLikeImage() bool {
	n := len(w.names)
	if n > 2 && w.names[n-3] == "metadata" {
		return false // a label or annotation
	}
	name := strings.ToLower(w.names[n-1])
	for _, end := range [...]string{"name", "reference", "ref", "uri", "url", "s"} {
		name = strings.TrimSuffix(name, end)
	}
	return strings.HasSuffix(name, "image")
}

// reference matches a reference to an image according to distribution's grammar.
var reference = text.Pattern(
	`^((\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+)(:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*` +
		`(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?(@[a-z0-9]+:[0-9a-f]+)?$`)

// guess records a value that may be an image.
func (w *walk) guess(value any) {
	switch value := value.(type) {
	case string:
		text := strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(value), "docker://"), "oci://")
		if reference().MatchString(text) || HasVariable(text) {
			w.image(IsImage, text, true)
		}
	case []any:
		for _, item := range value {
			if text, ok := item.(string); ok {
				w.guess(text)
			}
		}
	case map[string]any:
		if repository, _ := value["repository"].(string); repository != "" {
			w.add(Image{Is: IsImage, Ref: repository, Guessed: true,
				Problem: "it is in several fields"})
		}
	}
}

func (w *walk) image(is Type, text string, guessed bool) {
	if is == "" {
		is = IsImage
	}
	i := Image{Is: is, Ref: text, Guessed: guessed}
	if is.artifact() {
		i.Ref = strings.TrimPrefix(text, Scheme)
		if strings.Contains(i.Ref, "://") {
			return // it is in a bucket, or on a web server
		}
	}
	switch {
	case HasVariable(text):
		i.Problem = "it has a variable"
	case is == IsCommit:
		i.Problem = "it is from Git, and no image"
	case is == IsVersion:
		i.Problem = "it is from a bucket, and no image"
	}
	w.add(i)
}

func (w *walk) add(i Image) {
	i.Group, i.Kind, i.Field, i.steps =
		w.in.group, w.in.kind, fieldPath(w.steps), slices.Clone(w.steps)
	w.found = append(w.found, i)
}

// HasVariable reports whether a text has a variable of kustomize, envsubst or a template, which
// another tool replaces.
func HasVariable(text string) bool {
	return strings.Contains(text, "{{") || strings.Contains(text, "$(") || strings.Contains(text, "${")
}

// endsWith reports whether the keys that lead to a field end with those of a path. Keys of
// annotations contain dots.
func endsWith(names []string, path string) bool {
	end := len(path)
	for i := len(names) - 1; i >= 0; i-- {
		name := names[i]
		if i == len(names)-1 && strings.HasSuffix(path, "/") {
			name = name[:strings.IndexByte(name, '/')+1]
		}
		if end -= len(name); end < 0 || path[end:end+len(name)] != name {
			return false
		}
		if end == 0 {
			return true
		}
		if end--; path[end] != '.' {
			return false
		}
	}
	return false
}

func fieldPath(steps []any) string {
	var b strings.Builder
	for _, step := range steps {
		switch step := step.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", step)
		case string:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(step)
		}
	}
	return b.String()
}
