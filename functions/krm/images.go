package krm

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
)

// Image is an image that an object names.
type Image struct {
	// Ref is the image as it is written.
	Ref string
	// Group, Kind and Field are those of the object; Field is a path such as
	// spec.containers[0].image.
	Group, Kind, Field string
	// Guessed says that no row of the table has the field: its name and its value look
	// like those of an image.
	Guessed bool
	// Problem says why nobody can judge what runs; "" where Ref is an image.
	Problem string

	steps []any // Field as keys and indices
}

// node is where an object has the image, which is one of its Value.
func (i Image) node(o *Object) Node {
	n := o.Root()
	for _, step := range i.steps {
		switch step := step.(type) {
		case string:
			n = n.Get(step)
		case int:
			n = itemAt(n, step)
		}
	}
	return n
}

// ImageField is a field with an image that a row of the table knows.
type ImageField struct {
	Node
	// In is the mapping that has it.
	In Node
	// Known says that Changes can name the mapping: items of lists have names of their own.
	Known bool
}

// Images gives the fields of the object with images that run. Those that only look like
// images, and those with variables, are not among them.
func (o *Object) Images() (fields []ImageField) {
	add := func(n Node) {
		if !n.IsScalar() {
			return
		}
		in := Node{o, n.node().parent, true}
		known, missing := o.follow(steps(in))
		fields = append(fields, ImageField{n, in, missing == 0 && known.i == in.i})
	}
	pod, ok := o.PodTemplate()
	switch {
	case ok && ofKubernetes(o.Group()): // without a look at anything else
		for _, list := range [...]string{"initContainers", "containers", "ephemeralContainers"} {
			for c := range pod.Spec().Get(list).Items() {
				add(c.Get("image"))
			}
		}
		for v := range pod.Spec().Get("volumes").Items() {
			add(v.Get("image", "reference"))
		}
	case ok || !ofKubernetes(o.Group()) || o.Kind == "PodTemplate":
		value, err := o.Value()
		if err != nil {
			return nil // what the object is read for reports it
		}
		for _, i := range Images(value) {
			if !i.Guessed && i.Problem == "" {
				add(i.node(o))
			}
		}
	}
	return fields
}

// rowType is what a row says of a field.
type rowType int

const (
	isImage   rowType = iota // an image that runs
	isOpaque                 // it decides what runs, and cannot be judged
	isNothing                // no image, whatever its name is
)

// imageRow says what a field of a kind is.
type imageRow struct {
	group string // "*" is every group
	kind  string // "" is every kind of the group
	// path is keys that follow one another at any depth of the object, with any index of a
	// list between them. An image is at the end of it, anything else at or below it; "" is
	// the whole object.
	path string
	is   rowType
	why  string // of isOpaque
}

const elsewhere = "it runs what is elsewhere: a chart, a repository or a catalog"

// imageRows is the one table of fields with images. pin, lint and all that verifies images
// read it. The kinds of Kubernetes itself have images where a pod has them, and nowhere
// else; of other kinds a field that looks like an image is taken for one.
var imageRows = []imageRow{
	{group: "*", path: "containers.image"},
	{group: "*", path: "initContainers.image"},
	{group: "*", path: "ephemeralContainers.image"},
	{group: "*", path: "volumes.image.reference"},

	{group: "argoproj.io", path: "container.image"},
	{group: "argoproj.io", path: "script.image"},
	{group: "argoproj.io", path: "sidecars.image"},
	{group: "argoproj.io", path: "podSpecPatch", is: isOpaque, why: "it is text that changes pods"},
	{group: "argoproj.io", path: "resource.manifest", is: isOpaque, why: "it is the text of an object"},
	{group: "argoproj.io", kind: "Application", is: isOpaque, why: elsewhere},
	{group: "argoproj.io", kind: "ApplicationSet", is: isOpaque, why: elsewhere},
	{group: "tekton.dev", path: "steps.image"},
	{group: "tekton.dev", path: "sidecars.image"},
	{group: "tekton.dev", path: "stepTemplate.image"},
	{group: "tekton.dev", kind: "StepAction", path: "spec.image"},
	{group: "tekton.dev", path: "resolver", is: isOpaque, why: elsewhere},
	{group: "tekton.dev", path: "bundle", is: isOpaque, why: elsewhere},
	{group: "monitoring.coreos.com", path: "spec.image"},
	{group: "monitoring.coreos.com", path: "thanos.image"},
	{group: "monitoring.coreos.com", path: "baseImage", is: isOpaque, why: "tag and sha are added to it"},
	{group: "monitoring.coreos.com", kind: "PrometheusRule", is: isNothing},
	{group: "opentelemetry.io", path: "spec.image"},
	{group: "postgresql.cnpg.io", path: "spec.imageName"},
	{group: "pkg.crossplane.io", path: "spec.package"},
	{group: "operators.coreos.com", kind: "Subscription", is: isOpaque, why: elsewhere},
	{group: "helm.toolkit.fluxcd.io", is: isOpaque, why: elsewhere},
	{group: "kustomize.toolkit.fluxcd.io", is: isOpaque, why: elsewhere},
	{group: "helm.cattle.io", is: isOpaque, why: elsewhere},

	// Webhooks put the images of these annotations into pods.
	{group: "*", path: "annotations.sidecar.istio.io/proxyImage"},
	{group: "*", path: "annotations.vault.hashicorp.com/agent-image"},
	{group: "*", path: "annotations.config.linkerd.io/proxy-image", is: isOpaque, why: "a version is added to it"},

	{group: "agent.kagenti.dev", kind: "AgentBuild", is: isNothing}, // what it will push
	{group: keys.Group, is: isNothing},
	{group: "kustomize.config.k8s.io", is: isNothing}, // for tools
	{group: "kpt.dev", is: isNothing},
	{group: "config.kubernetes.io", is: isNothing},
	{group: "image.toolkit.fluxcd.io", is: isNothing}, // which tags exist
	{group: "kyverno.io", path: "validate", is: isNothing},
	{group: "kyverno.io", path: "verifyImages", is: isNothing},
	{group: "constraints.gatekeeper.sh", is: isNothing},
	{group: "infrastructure.cluster.x-k8s.io", is: isNothing}, // of machines
	{group: "metal3.io", is: isNothing},
}

// Images gives what an object, as plain Go values, names of images: the references, and what
// decides over images and cannot be judged. An object may contain others.
func Images(object any) []Image {
	var w imageWalk
	w.visit(object)
	return w.found
}

// imageWalk is a walk through one object.
type imageWalk struct {
	found []Image
	in    inside
	names []string // the keys that lead to where it is
	steps []any    // with the indices
}

// inside is what the objects that lead to a field say of it.
type inside struct {
	rows        []imageRow
	group, kind string // of the innermost
	guesses     bool
}

func (w *imageWalk) visit(value any) {
	depth := len(w.steps)
	switch value := value.(type) {
	case map[string]any:
		outer := w.in
		w.enter(value)
		for _, key := range slices.Sorted(maps.Keys(value)) {
			w.names, w.steps = append(w.names, key), append(w.steps, key)
			if w.field(value[key]) {
				w.visit(value[key])
			}
			w.names, w.steps = w.names[:len(w.names)-1], w.steps[:depth]
		}
		w.in = outer
	case []any:
		for i, item := range value {
			w.steps = append(w.steps, i)
			w.visit(item)
			w.steps = w.steps[:depth]
		}
	}
}

// enter takes the rows of an object, to those of the objects around it: nothing hides from
// the rows of an object in what looks like another one. An item of a list is an object of
// its own.
func (w *imageWalk) enter(object map[string]any) {
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
	now := inside{group: group, kind: kind, guesses: !ofKubernetes(group)}
	if !own {
		now.rows, now.guesses = slices.Clip(w.in.rows), now.guesses || w.in.guesses
	}
	for _, r := range imageRows {
		switch {
		case r.group != "*" && r.group != group || r.kind != "" && r.kind != kind || r.is == isNothing && !own:
		case r.path != "":
			now.rows = append(now.rows, r)
		case r.is == isNothing:
			w.in = inside{group: group, kind: kind}
			return
		default:
			w.found = append(w.found, Image{Group: group, Kind: kind, Field: fieldPath(w.steps), Problem: r.why})
		}
	}
	w.in = now
}

// ofKubernetes reports whether a group is of Kubernetes itself.
func ofKubernetes(group string) bool {
	switch group {
	case "", "apps", "batch", "autoscaling", "policy", "extensions":
		return true
	}
	return strings.HasSuffix(group, ".k8s.io")
}

// field judges the field where the walk is, and reports whether to look below it.
func (w *imageWalk) field(value any) (deeper bool) {
	text, isText := value.(string)
	for _, r := range w.in.rows {
		switch {
		case !endsWith(w.names, r.path):
		case r.is == isNothing, value == nil, isText && text == "":
			return false
		case r.is == isOpaque:
			w.add(Image{Problem: r.why})
			return false
		case isText:
			w.image(text, false)
			return false
		}
	}
	if w.in.guesses && w.looksLikeImage() {
		w.guess(value)
	}
	return true
}

// looksLikeImage judges the name of the field.
func (w *imageWalk) looksLikeImage() bool {
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

// reference is what distribution's grammar takes for the reference to an image.
var reference = Pattern(`^((\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+)(:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*` +
	`(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?(@[a-z0-9]+:[0-9a-f]+)?$`)

// guess takes what may be an image.
func (w *imageWalk) guess(value any) {
	switch value := value.(type) {
	case string:
		text := strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(value), "docker://"), "oci://")
		if reference().MatchString(text) || variable(text) {
			w.image(text, true)
		}
	case []any:
		for _, item := range value {
			if text, ok := item.(string); ok {
				w.guess(text)
			}
		}
	case map[string]any:
		if repository, _ := value["repository"].(string); repository != "" {
			w.add(Image{Ref: repository, Guessed: true, Problem: "it is in several fields"})
		}
	}
}

func (w *imageWalk) image(text string, guessed bool) {
	i := Image{Ref: text, Guessed: guessed}
	if variable(text) {
		i.Problem = "it has a variable"
	}
	w.add(i)
}

func (w *imageWalk) add(i Image) {
	i.Group, i.Kind, i.Field, i.steps = w.in.group, w.in.kind, fieldPath(w.steps), slices.Clone(w.steps)
	w.found = append(w.found, i)
}

func variable(text string) bool {
	return strings.Contains(text, "{{") || strings.Contains(text, "$(") || strings.Contains(text, "${")
}

// endsWith reports whether the keys that lead to a field end with those of a path. Keys of
// annotations have dots themselves.
func endsWith(names []string, path string) bool {
	end := len(path)
	for i := len(names) - 1; i >= 0; i-- {
		if end -= len(names[i]); end < 0 || path[end:end+len(names[i])] != names[i] {
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
