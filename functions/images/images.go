// Package images finds the images and other artifacts that objects name, by one table of
// fields. pin, lint and all that verifies images read it.
package images

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/krm"
)

// Image is an image that an object names.
type Image struct {
	// Is says what it is: an image, or another artifact that is fetched and run or read.
	Is Type
	// Ref is the image as it is written: a commit or a version where it is one of these.
	Ref string
	// Group, Kind and Field are those of the object; Field is a path such as
	// spec.containers[0].image.
	Group, Kind, Field string
	// Guessed says that no row of the table has the field: its name and its value look
	// like those of an image.
	Guessed bool
	// Unknown says that it is an object of a kind that the table does not have, given by
	// Judged alone. Field is that of the object, "" for the whole.
	Unknown bool
	// Problem says why nobody can judge what runs; "" where Ref is an image.
	Problem string

	steps []any // Field as keys and indices
}

// Pinned reports whether what runs cannot change while the object stays.
func (i Image) Pinned() bool {
	switch i.Is {
	case IsCommit:
		return commitForm().MatchString(i.Ref)
	case IsVersion:
		return i.Ref != ""
	}
	return strings.Contains(i.Ref, "@sha256:")
}

// Skill is the name of a skill, where an annotation has it.
func (i Image) Skill() string {
	if n := len(i.steps); n > 0 {
		if key, ok := i.steps[n-1].(string); ok && strings.HasPrefix(key, keys.SkillPrefix) {
			return key[len(keys.SkillPrefix):]
		}
	}
	return ""
}

var commitForm = krm.Pattern(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// Path is the field without indices, as rows and exemptions name it.
func (i Image) Path() string { return indices().ReplaceAllString(i.Field, "") }

var indices = krm.Pattern(`\[[0-9]+\]`)

// LooksQualified reports whether a reference has more than a word, so that hardly anything
// else is written like it.
func (i Image) LooksQualified() bool { return strings.ContainsAny(i.Ref, "/:@") }

// At is where an object has the image, which is one of its Value; the nearest field above it
// where it is missing.
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

// Field is a field with an image that a row of the table knows.
type Field struct {
	krm.Node
	// Ref is the image without the scheme oci:// of an artifact.
	Ref string
	// In is the mapping that has it.
	In krm.Node
	// Known says that Changes can name the mapping: items of lists have names of their own.
	Known bool
}

// Fields gives the fields of an object with images that run, and with artifacts that are
// written as images are. Those that only look like images, and those with variables, are
// not among them. own are rows of a RenderConfig.
func Fields(o *krm.Object, own ...Row) (fields []Field) {
	add := func(n krm.Node) {
		if n.IsScalar() {
			in, known := krm.ParentOf(n)
			fields = append(fields, Field{n, strings.TrimPrefix(n.Text(), Scheme), in, known && in.IsMap()})
		}
	}
	pod, ok := o.PodTemplate()
	switch {
	case ok && OfKubernetes(o.Group()) && !o.Contains(keys.SkillPrefix): // without a look at anything else
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
			return nil // what the object is read for reports it
		}
		for _, i := range In(value, own...) {
			if at := i.At(o); !i.Guessed && i.Problem == "" && (i.Is == IsImage || i.Is.artifact()) && strings.TrimPrefix(at.Text(), Scheme) == i.Ref {
				add(at)
			}
		}
	}
	return fields
}

// Type is what a row says of a field.
type Type string

// Types of fields. A commit or a version is the last key of a row's path; the keys before it
// lead to the source that has to have it.
const (
	IsImage    Type = "image"    // an image that runs
	IsArtifact Type = "artifact" // an OCI artifact; oci:// may be before it
	IsSkill    Type = "skill"    // likewise, with the folder of a skill
	IsCommit   Type = "commit"   // a commit of a Git repository
	IsVersion  Type = "version"  // a version of an object in a bucket
	isOpaque   Type = "opaque"   // it decides what runs, and cannot be judged
	isNothing  Type = "nothing"  // no image, whatever its name is
)

// Scheme may be before the reference of an artifact.
const Scheme = "oci://"

func (t Type) artifact() bool { return t == IsArtifact || t == IsSkill }

// Types are those that a RenderConfig may give a field.
func Types() []string {
	return []string{string(IsImage), string(IsArtifact), string(IsCommit), string(IsVersion)}
}

// Rows are the rows of spec.images of a RenderConfig, and what is wrong with them. They
// come after the table: a field that it knows stays what it is, and no row takes a field
// out of a judgement.
func Rows(config *api.RenderConfig) (rows []Row, findings []krm.Finding) {
	if config == nil {
		return nil, nil
	}
	for n, f := range config.Spec.Images {
		r := Row{group: f.Group, kind: f.Kind, path: f.Path, is: Type(f.Is)}
		if f.Is == "" {
			r.is = IsImage
		}
		field := fmt.Sprintf("spec.images[%d]", n)
		report := func(message, hint string) {
			findings = append(findings, krm.Finding{Rule: "config/images", Severity: krm.Error, Message: message, Hint: hint, Place: krm.Place{
				File: config.Origin.File, Line: config.Origin.LineOf(field), Field: field, Object: krm.Ref{APIVersion: api.RenderV1alpha1, Kind: "RenderConfig", Name: config.Name}}})
		}
		switch source := r.is == IsCommit || r.is == IsVersion; {
		case f.Group == "" || f.Kind == "" || f.Path == "":
			report("a field needs group, kind and path", "write them as in {group: example.com, kind: Fleet, path: spec.runner.image}")
		case !slices.Contains(Types(), string(r.is)):
			report(fmt.Sprintf("%q is not a type of a field", f.Is), "write "+strings.Join(Types(), ", "))
		case source && !strings.Contains(f.Path, "."):
			report("the path of a "+f.Is+" needs the source before it", "write it as in spec.source.git.commit")
		default:
			rows = append(rows, r)
		}
	}
	return rows, findings
}

// Row says what a field of a kind is.
type Row struct {
	group string // "*" is every group
	kind  string // "" is every kind of the group
	// path is keys that follow one another at any depth of the object, with any index of a
	// list between them. An image is at the end of it, anything else at or below it; "" is
	// the whole object. A path that ends with / is of annotations: any name follows.
	path string
	is   Type   // "" is IsImage
	why  string // of isOpaque
}

const (
	elsewhere = "it runs content from elsewhere: a chart, a repository or a catalog"
	parts     = "the image is in several fields"
	mutates   = "it changes other objects, and may change their images"
)

// table is the one table of fields with images. pin, lint and all that verifies images
// read it. The kinds of Kubernetes itself have images where a pod has them, and nowhere
// else; of other kinds a field that looks like an image is taken for one.
var table = []Row{
	{group: "*", path: "containers.image"},
	{group: "*", path: "initContainers.image"},
	{group: "*", path: "ephemeralContainers.image"},
	{group: "*", path: "volumes.image.reference"},

	// Workflows and pipelines.
	{group: "argoproj.io", kind: "ArgoCD", is: isOpaque, why: parts},
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
	{group: "sparkoperator.k8s.io", path: "spec.image"},
	{group: "sparkoperator.k8s.io", path: "driver.image"},
	{group: "sparkoperator.k8s.io", path: "executor.image"},
	{group: "flink.apache.org", path: "spec.image"},
	{group: "flinkoperator.k8s.io", path: "image.name"},

	// Observability.
	{group: "monitoring.coreos.com", path: "spec.image"},
	{group: "monitoring.coreos.com", path: "thanos.image"},
	{group: "monitoring.coreos.com", path: "baseImage", is: isOpaque, why: "tag and sha are added to it"},
	{group: "monitoring.coreos.com", kind: "PrometheusRule", is: isNothing},
	{group: "opentelemetry.io", path: "spec.image"},
	{group: "opentelemetry.io", path: "targetAllocator.image"},
	{group: "opentelemetry.io", path: "java.image"},
	{group: "opentelemetry.io", path: "nodejs.image"},
	{group: "opentelemetry.io", path: "python.image"},
	{group: "opentelemetry.io", path: "dotnet.image"},
	{group: "opentelemetry.io", path: "go.image"},
	{group: "opentelemetry.io", path: "apacheHttpd.image"},
	{group: "opentelemetry.io", path: "nginx.image"},
	{group: "jaegertracing.io", kind: "Jaeger", path: "image"},

	// Databases and queues.
	{group: "postgresql.cnpg.io", path: "spec.imageName"},
	{group: "postgresql.cnpg.io", path: "spec.images.image"},
	{group: "postgresql.cnpg.io", path: "extensions.image.reference"},
	{group: "acid.zalan.do", path: "spec.dockerImage"},
	{group: "k8s.mariadb.com", path: "spec.image"},
	{group: "mongodb.com", path: "spec.image"},
	{group: "psmdb.percona.com", path: "image"},
	{group: "pxc.percona.com", path: "image"},
	{group: "elasticsearch.k8s.elastic.co", path: "spec.image"},
	{group: "kibana.k8s.elastic.co", path: "spec.image"},
	{group: "kafka.strimzi.io", path: "build.output.image", is: isNothing}, // what it will push
	{group: "kafka.strimzi.io", path: "image"},
	{group: "rabbitmq.com", kind: "RabbitmqCluster", path: "spec.image"},
	{group: "redis.redis.opstreelabs.in", path: "image"},

	// Packages, charts and catalogs.
	{group: "pkg.crossplane.io", path: "spec.package"},
	{group: "operators.coreos.com", kind: "CatalogSource", path: "spec.image"},
	{group: "operators.coreos.com", kind: "ClusterServiceVersion", path: "relatedImages.image"},
	{group: "operators.coreos.com", kind: "Subscription", is: isOpaque, why: elsewhere},
	{group: "olm.operatorframework.io", kind: "ClusterCatalog", path: "image.ref"},
	{group: "olm.operatorframework.io", kind: "ClusterExtension", is: isOpaque, why: elsewhere},
	{group: "helm.toolkit.fluxcd.io", is: isOpaque, why: elsewhere},
	{group: "kustomize.toolkit.fluxcd.io", is: isOpaque, why: elsewhere},
	{group: "helm.cattle.io", is: isOpaque, why: elsewhere},
	{group: "fleet.cattle.io", is: isOpaque, why: elsewhere},
	{group: "kappctrl.k14s.io", is: isOpaque, why: elsewhere},
	{group: "packaging.carvel.dev", is: isOpaque, why: elsewhere},
	{group: "data.packaging.carvel.dev", is: isOpaque, why: elsewhere},
	{group: "configsync.gke.io", is: isOpaque, why: elsewhere},
	{group: "configmanagement.gke.io", is: isOpaque, why: elsewhere},
	{group: "helm.crossplane.io", is: isOpaque, why: elsewhere},
	{group: "helm.m.crossplane.io", is: isOpaque, why: elsewhere},

	// What changes other objects: at admission, or when it composes them.
	{group: "admissionregistration.k8s.io", kind: "MutatingAdmissionPolicy", is: isOpaque, why: mutates},
	{group: "admissionregistration.k8s.io", kind: "MutatingAdmissionPolicyBinding", is: isOpaque, why: mutates},
	{group: "admissionregistration.k8s.io", kind: "MutatingWebhookConfiguration", is: isOpaque, why: mutates},
	{group: "kyverno.io", path: "mutate", is: isOpaque, why: mutates},
	{group: "kyverno.io", path: "generate", is: isOpaque, why: mutates},
	{group: "policies.kyverno.io", kind: "MutatingPolicy", is: isOpaque, why: mutates},
	{group: "policies.kyverno.io", kind: "NamespacedMutatingPolicy", is: isOpaque, why: mutates},
	{group: "policies.kyverno.io", kind: "GeneratingPolicy", is: isOpaque, why: mutates},
	{group: "policies.kyverno.io", kind: "NamespacedGeneratingPolicy", is: isOpaque, why: mutates},
	{group: "mutations.gatekeeper.sh", is: isOpaque, why: mutates},
	{group: "expansion.gatekeeper.sh", is: isNothing}, // what is validated, not created
	{group: "apiextensions.crossplane.io", kind: "Composition", is: isOpaque, why: mutates},
	{group: "kubernetes.crossplane.io", path: "patchesFrom", is: isOpaque, why: mutates},
	{group: "kubernetes.m.crossplane.io", path: "patchesFrom", is: isOpaque, why: mutates},
	{group: "kuma.io", kind: "ContainerPatch", is: isOpaque, why: mutates},

	// Meshes, models and machines.
	{group: "extensions.istio.io", kind: "WasmPlugin", path: "spec.url", is: IsArtifact},
	{group: "serving.kserve.io", path: "storageUri", is: IsArtifact},
	{group: "kaito.sh", path: "presetOptions.image"},
	{group: "nvidia.com", is: isOpaque, why: parts},
	{group: "kubevirt.io", path: "containerDisk.image"},

	// Agents and their tools. Sources of skills and plugins are images, commits or versions.
	{group: "*", path: "annotations." + keys.SkillPrefix, is: IsSkill},
	{group: "agent.kagenti.dev", kind: "Agent", path: "imageSource.image"},
	{group: "agent.kagenti.dev", kind: "Agent", path: "skills.ref", is: IsSkill},
	{group: "toolhive.stacklok.dev", path: "spec.image"},
	{group: "kagent.dev", path: "deployment.image"},
	{group: "kagent.dev", path: "initContainer.image"},
	{group: "kagent.dev", kind: "Agent", path: "skills.refs", is: IsSkill},
	{group: "kagent.dev", kind: "Agent", path: "skills.gitRefs.ref", is: IsCommit},
	{group: "kagent.dev", kind: "Agent", path: "skills.s3Refs.versionId", is: IsVersion},
	{group: "api.kagent.dev", path: "workload.image"},
	{group: "api.kagent.dev", path: "source.oci", is: IsArtifact},
	{group: "api.kagent.dev", path: "source.git.commit", is: IsCommit},
	{group: "api.kagent.dev", path: "source.bucket.s3.versionId", is: IsVersion},

	// Webhooks put the images of these annotations into pods.
	{group: "*", path: "annotations.sidecar.istio.io/proxyImage"},
	{group: "*", path: "annotations.vault.hashicorp.com/agent-image"},
	{group: "*", path: "annotations.dapr.io/sidecar-image"},
	{group: "*", path: "annotations.config.linkerd.io/proxy-image", is: isOpaque, why: "a version is added to it"},
	{group: "*", path: "annotations.config.linkerd.io/init-image", is: isOpaque, why: "a version is added to it"},
	{group: "*", path: "annotations.config.linkerd.io/debug-image", is: isOpaque, why: "a version is added to it"},

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

// In gives what an object, as plain Go values, names of images: the references, and what
// decides over images and cannot be judged. An object may contain others.
func In(object any, own ...Row) []Image {
	w := walk{own: own}
	w.visit(object)
	return w.found
}

// Judged gives what In gives, and each object of a kind that the table does not have, for
// policies that refuse those. Rows of a RenderConfig make no kind known: the author of the
// package writes them, not the one of the policy.
func Judged(object any, own ...Row) []Image {
	w := walk{own: own}
	w.visit(object)
	return append(w.found, w.unknown...)
}

// walk is a walk through one object.
type walk struct {
	own     []Row
	found   []Image
	unknown []Image
	in      inside
	names   []string // the keys that lead to where it is
	steps   []any    // with the indices
}

// inside is what the objects that lead to a field say of it.
type inside struct {
	rows        []Row
	group, kind string // of the innermost
	guesses     bool
}

func (w *walk) visit(value any) {
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
	if _, isObject := object["metadata"].(map[string]any); (isObject || len(w.steps) == 0) && !known(group, kind) {
		w.unknown = append(w.unknown, Image{Group: group, Kind: kind, Field: fieldPath(w.steps), Unknown: true,
			Problem: "the policy refuses unknown kinds"})
	}
	if !own {
		now.rows, now.guesses = slices.Clip(w.in.rows), now.guesses || w.in.guesses
	}
	for _, rows := range [...][]Row{table, w.own} {
		for _, r := range rows {
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
	}
	w.in = now
}

// OfKubernetes reports whether a group is of Kubernetes itself. Others end in .k8s.io, too:
// theirs are those of projects with images of their own.
func OfKubernetes(group string) bool { return slices.Contains(kubernetes[:], group) }

var kubernetes = [...]string{
	"", "apps", "batch", "autoscaling", "policy", "extensions",
	"rbac.authorization.k8s.io", "networking.k8s.io", "gateway.networking.k8s.io", "storage.k8s.io", "apiextensions.k8s.io",
	"admissionregistration.k8s.io", "apiregistration.k8s.io", "authentication.k8s.io", "authorization.k8s.io",
	"certificates.k8s.io", "coordination.k8s.io", "discovery.k8s.io", "events.k8s.io", "flowcontrol.apiserver.k8s.io",
	"internal.apiserver.k8s.io", "node.k8s.io", "resource.k8s.io", "scheduling.k8s.io", "storagemigration.k8s.io",
	"snapshot.storage.k8s.io", "metrics.k8s.io", "policy.networking.k8s.io",
}

// known reports whether the table has the kind of an object.
func known(group, kind string) bool {
	return OfKubernetes(group) || slices.ContainsFunc(table, func(r Row) bool {
		return r.group == group && (r.kind == "" || r.kind == kind)
	})
}

// field judges the field where the walk is, and reports whether to look below it.
func (w *walk) field(value any) (deeper bool) {
	text, isText := value.(string)
	for _, r := range w.in.rows {
		if source, item, pinned := r.source(); pinned {
			if endsWith(w.names, source) {
				w.sources(r.is, item, value)
			}
			continue
		}
		switch {
		case !endsWith(w.names, r.path):
		case r.is == isNothing, value == nil, isText && text == "":
			return false
		case r.is == isOpaque:
			w.add(Image{Problem: r.why})
			return false
		case isText:
			w.image(r.is, text, false)
			return false
		default:
			if items, isList := value.([]any); isList && w.items(r.is, items) {
				return false
			}
		}
	}
	if w.in.guesses && w.looksLikeImage() {
		w.guess(value)
	}
	return true
}

// source divides the path of a commit or version.
func (r Row) source() (source, item string, ok bool) {
	if r.is != IsCommit && r.is != IsVersion {
		return "", "", false
	}
	at := strings.LastIndexByte(r.path, '.')
	return r.path[:at], r.path[at+1:], true
}

// sources notes the commit or version of a source, or of each in a list. One that is missing
// is noted, too.
func (w *walk) sources(is Type, item string, value any) {
	depth := len(w.steps)
	switch value := value.(type) {
	case map[string]any:
		text, _ := value[item].(string)
		w.steps = append(w.steps, item)
		w.image(is, text, false)
	case []any:
		for i, one := range value {
			w.steps = append(w.steps, i)
			if _, isMap := one.(map[string]any); isMap {
				w.sources(is, item, one)
			}
			w.steps = w.steps[:depth]
		}
	}
	w.steps = w.steps[:depth]
}

// items notes a list of texts. It reports whether it is one.
func (w *walk) items(is Type, items []any) bool {
	depth := len(w.steps)
	for i, item := range items {
		text, isText := item.(string)
		if !isText {
			return false
		}
		w.steps = append(w.steps, i)
		w.image(is, text, false)
		w.steps = w.steps[:depth]
	}
	return true
}

// looksLikeImage judges the name of the field.
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

// reference is what distribution's grammar takes for the reference to an image.
var reference = krm.Pattern(`^((\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+)(:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*` +
	`(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?(@[a-z0-9]+:[0-9a-f]+)?$`)

// guess takes what may be an image.
func (w *walk) guess(value any) {
	switch value := value.(type) {
	case string:
		text := strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(value), "docker://"), "oci://")
		if reference().MatchString(text) || variable(text) {
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
			w.add(Image{Is: IsImage, Ref: repository, Guessed: true, Problem: "it is in several fields"})
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
	case variable(text):
		i.Problem = "it has a variable"
	case is == IsCommit:
		i.Problem = "it is from Git, and no image"
	case is == IsVersion:
		i.Problem = "it is from a bucket, and no image"
	}
	w.add(i)
}

func (w *walk) add(i Image) {
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
