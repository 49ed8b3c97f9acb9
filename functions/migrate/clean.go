package migrate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/krm"
)

// webhookContainers and webhookVolumes are what the published kagenti webhook
// puts into pods. A container counts where its image is the platform's too.
var (
	webhookContainers = []string{"proxy-init", "spiffe-helper", "client-registration", "kagenti-client-registration", "auth-proxy", "envoy-proxy", "authbridge-proxy"}
	webhookVolumes    = []string{"shared-data", "svid-output", "spire-agent-socket", "spiffe-helper-config", "envoy-config", "authproxy-routes", "authproxy-routes-config"}
	webhookImages     = []string{"kagenti", "rossoctl", "spiffe-helper"}
	// sidecarImages are the names of the platform's sidecars in any registry, such as
	// that of the machine that built them.
	sidecarImages = []string{"proxy-init", "spiffe-helper", "client-registration", "auth-proxy", "envoy-with-processor", "authbridge", "authbridge-envoy", "authbridge-lite", "authbridge-unified"}
)

const overcommitPrefix = "overcommit.inditex.dev/"

// OvercommitApplied is the annotation of Pods whose requests an OvercommitClass
// computed.
const OvercommitApplied = overcommitPrefix + "applied"

// Cleaning is an object without what webhooks and clusters put into it. The
// edits wait in the object, for its Append.
type Cleaning struct {
	// Fields are those that were dropped or added.
	Fields []Field
	// Injected says that the webhook's containers were removed.
	Injected bool
	// Ports are the TCP ports that the author's containers declare.
	Ports []int
	// Findings are about what could not be decided.
	Findings []krm.Finding
}

// Changed reports whether there is anything to write.
func (c *Cleaning) Changed() bool { return len(c.Fields) > 0 }

// Clean takes out what an admission webhook or a cluster put into an object.
// prefix is that of labels. annotations are added, where the author has not set
// them.
func Clean(o *krm.Object, prefix string, annotations []Annotation) (c Cleaning, err error) {
	if err := c.metadata(o); err != nil {
		return c, err
	}
	pod, ok := o.PodTemplate()
	if !ok {
		return c, nil
	}
	injected, err := c.webhook(o, pod, prefix)
	if err != nil {
		return c, err
	}
	if err := c.overcommit(o, pod); err != nil {
		return c, err
	}
	if err := c.annotate(o, annotations); err != nil {
		return c, err
	}
	if injected {
		c.Injected = true
		return c, c.optIn(o, pod, prefix)
	}
	return c, nil
}

// Annotation is one that migrating adds, and why.
type Annotation struct{ Key, Value, Reason string }

// annotate adds annotations, but for those that the author has.
func (c *Cleaning) annotate(o *krm.Object, annotations []Annotation) error {
	var text []byte
	for _, a := range annotations {
		if o.Get("metadata", "annotations", a.Key).Exists() {
			continue
		}
		c.Fields = append(c.Fields, Field{"metadata.annotations[" + a.Key + "]", Added, "", a.Reason})
		text = fmt.Appendf(text, "%s: %q\n", a.Key, a.Value)
	}
	if len(text) == 0 {
		return nil
	}
	_, err := o.Insert(o.Get("metadata"), []string{"annotations"}, krm.Entries{Text: text}, false)
	return err
}

func (c *Cleaning) drop(n krm.Node, reason string) {
	c.Fields = append(c.Fields, Field{n.Path(), Dropped, "", reason})
}

// remove drops the entries of a collection for which why gives a reason, and the
// collection where none is left.
func (c *Cleaning) remove(o *krm.Object, collection krm.Node, why func(krm.Node) (reason string)) error {
	var gone int
	entries := func(yield func(krm.Node) bool) {
		for _, n := range collection.Fields() {
			if !yield(n) {
				return
			}
		}
		for n := range collection.Items() {
			if !yield(n) {
				return
			}
		}
	}
	for n := range entries {
		if reason := why(n); reason != "" {
			c.drop(n, reason)
			gone++
		}
	}
	if gone == 0 {
		return nil
	}
	if gone == collection.Len() {
		return o.RemoveField(collection)
	}
	_, err := o.Remove(collection, func(n krm.Node) bool { return why(n) != "" })
	return err
}

// metadata drops what a cluster adds to every object.
func (c *Cleaning) metadata(o *krm.Object) error {
	books := func(n krm.Node) string {
		for _, r := range metadata {
			if r.Fate == Dropped && r.Path == n.Path() {
				return r.Reason
			}
		}
		if strings.HasPrefix(n.Key(), overcommitPrefix) {
			return "the webhook's note; armature's overcommit writes its own"
		}
		return ""
	}
	for _, collection := range []krm.Node{o.Root(), o.Get("metadata"), o.Get("metadata", "annotations")} {
		if err := c.remove(o, collection, books); err != nil {
			return err
		}
	}
	return nil
}

// Injected reports whether the webhook put a container of this name and image
// into a pod.
func Injected(name, image string) bool {
	theirs := slices.ContainsFunc(webhookImages, func(part string) bool { return strings.Contains(image, part) })
	return (theirs || slices.Contains(sidecarImages, imageName(image))) && slices.Contains(webhookContainers, name)
}

// imageName is the last part of an image's repository.
func imageName(image string) string {
	image, _, _ = strings.Cut(image, "@")
	name := image[strings.LastIndexByte(image, '/')+1:]
	name, _, _ = strings.Cut(name, ":")
	return name
}

// fromWebhook says why a container goes: because the webhook put it there.
func fromWebhook(n krm.Node) (reason string) {
	if !Injected(n.Get("name").Text(), n.Get("image").Text()) {
		return ""
	}
	return "injected by the webhook; a render injects it where the workload is labelled"
}

// webhook takes the identity containers out.
func (c *Cleaning) webhook(o *krm.Object, pod krm.PodTemplate, prefix string) (injected bool, err error) {
	if _, ours := o.Annotation(keys.Injected); ours {
		return false, nil
	}
	spec := pod.Spec()
	mounted, removed := make(map[string]bool), make(map[string]bool) // volumes of those that stay, and of those that go
	var reads []string                                               // ConfigMaps and Secrets of those that go
	var foreign []krm.Node
	applies := false // something is left
	for _, list := range []string{"initContainers", "containers"} {
		for n := range spec.Get(list).Items() {
			volumes := mounted
			switch name := n.Get("name").Text(); {
			case fromWebhook(n) != "":
				injected, volumes = true, removed
				reads = appendReads(reads, n)
			case slices.Contains(webhookContainers, name):
				foreign = append(foreign, n.Get("name"))
				fallthrough
			default:
				applies = applies || list == "containers"
				c.Ports = appendPorts(c.Ports, n)
			}
			for m := range n.Get("volumeMounts").Items() {
				volumes[m.Get("name").Text()] = true
			}
		}
	}
	if injected && optedOut(o, pod, prefix) {
		c.Findings = append(c.Findings, o.Finding(krm.Warning, "migrate/opted-out", spec,
			"the workload has identity containers and opts out of injection: they stay as they are", "label it "+prefix+"/inject: enabled, and migrate again, to have a render inject them"))
		return false, nil
	}
	if injected && !applies {
		c.Findings = append(c.Findings, o.Finding(krm.Warning, "migrate/only-sidecars", spec,
			"every container is one of the platform's, and none is an application: they stay as they are", "delete the workload if it was a proxy of its own, whose work the sidecars of each workload do"))
		return false, nil
	}
	c.unknown(o, foreign, injected)
	if !injected {
		return false, nil
	}
	left := func(n krm.Node) string {
		name := n.Get("name").Text()
		if !mounted[name] && (removed[name] || slices.Contains(webhookVolumes, name)) {
			return "only the injected containers mount it"
		}
		return ""
	}
	for v := range spec.Get("volumes").Items() {
		if left(v) != "" {
			reads = appendVolume(reads, v)
		}
	}
	for _, list := range []string{"initContainers", "containers"} {
		if err := c.remove(o, spec.Get(list), fromWebhook); err != nil {
			return false, err
		}
	}
	if len(reads) > 0 {
		slices.Sort(reads)
		c.Findings = append(c.Findings, o.Finding(krm.Info, "migrate/left-configuration", spec,
			"the containers that are taken out read "+strings.Join(slices.Compact(reads), ", "),
			"write what they set as a TokenExchange, or as spec.identity in armature.yaml, and delete what nobody else reads"))
	}
	return true, c.remove(o, spec.Get("volumes"), left)
}

// optedOut reports whether a workload or its pods say that they are not to be
// injected.
func optedOut(o *krm.Object, pod krm.PodTemplate, prefix string) bool {
	label := prefix + "/inject"
	own, set := pod.Label(label)
	n := o.Get("metadata", "labels", label)
	return set && own != "enabled" || n.Exists() && !n.Is("enabled")
}

// unknown reports containers with the names of injected ones, but images of
// somebody else's. Beside injected ones nobody can say whose they are, and a pod
// that keeps one of two halves does not work.
func (c *Cleaning) unknown(o *krm.Object, containers []krm.Node, injected bool) {
	for _, name := range containers {
		severity, what, hint := krm.Warning, "kept", "rename it, or remove it by hand"
		if injected {
			severity, what = krm.Error, "it cannot be taken out with the others, nor stay"
			hint = "rename the container if it is yours; if it is one of the platform's with an image of your own, remove it by hand"
		}
		c.Findings = append(c.Findings, o.Finding(severity, "migrate/unknown-container", name,
			fmt.Sprintf("%s has the name of an injected container, but an image of somebody else's: %s", name.Text(), what), hint))
	}
}

// appendPorts appends the TCP ports that a container declares.
func appendPorts(ports []int, container krm.Node) []int {
	for p := range container.Get("ports").Items() {
		if protocol := p.Get("protocol"); protocol.Is("UDP") || protocol.Is("SCTP") {
			continue
		}
		if n, ok := p.Get("containerPort").Int(); ok {
			ports = append(ports, n)
		}
	}
	return ports
}

// appendReads appends the ConfigMaps and Secrets that a container's environment is
// from.
func appendReads(reads []string, container krm.Node) []string {
	add := func(kind string, name krm.Node) {
		if name.Text() != "" {
			reads = append(reads, kind+" "+krm.Shown(name.Text()))
		}
	}
	for v := range container.Get("env").Items() {
		add("ConfigMap", v.Get("valueFrom", "configMapKeyRef", "name"))
		add("Secret", v.Get("valueFrom", "secretKeyRef", "name"))
	}
	for v := range container.Get("envFrom").Items() {
		add("ConfigMap", v.Get("configMapRef", "name"))
		add("Secret", v.Get("secretRef", "name"))
	}
	return reads
}

// appendVolume appends the ConfigMap or Secret that a volume shows.
func appendVolume(reads []string, volume krm.Node) []string {
	if name := volume.Get("configMap", "name").Text(); name != "" {
		reads = append(reads, "ConfigMap "+krm.Shown(name))
	}
	if name := volume.Get("secret", "secretName").Text(); name != "" {
		reads = append(reads, "Secret "+krm.Shown(name))
	}
	return reads
}

// overcommit drops the requests that a webhook computed from the limits of a Pod.
func (c *Cleaning) overcommit(o *krm.Object, pod krm.PodTemplate) error {
	_, applied := pod.Annotation(OvercommitApplied)
	_, own := o.Annotation(OvercommitApplied)
	if !applied && !own {
		return nil
	}
	for _, list := range []string{"initContainers", "containers"} {
		for n := range pod.Spec().Get(list).Items() {
			if fromWebhook(n) != "" {
				continue
			}
			requests, limits := n.Get("resources", "requests"), n.Get("resources", "limits")
			err := c.remove(o, requests, func(n krm.Node) string {
				if key := n.Key(); (key == "cpu" || key == "memory") && limits.Get(key).Exists() {
					return "computed from the limit by an OvercommitClass; a render computes it again"
				}
				return ""
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// optIn labels a workload that was injected, unless it or its pods say whether
// they are to be.
func (c *Cleaning) optIn(o *krm.Object, pod krm.PodTemplate, prefix string) error {
	label := prefix + "/inject"
	if _, set := pod.Label(label); set || o.Get("metadata", "labels", label).Exists() {
		return nil
	}
	c.Fields = append(c.Fields, Field{"metadata.labels[" + label + "]", Added, "", "the workload was injected, and is to be again"})
	_, err := o.Insert(o.Get("metadata"), []string{"labels"}, krm.Entries{Text: []byte(label + ": enabled\n")}, false)
	return err
}

// Owner gives the controller that made an object.
func Owner(o *krm.Object) (owner krm.Ref, owned bool) {
	for n := range o.Get("metadata", "ownerReferences").Items() {
		return krm.Ref{APIVersion: n.Get("apiVersion").Text(), Kind: n.Get("kind").Text(), Namespace: o.Namespace, Name: n.Get("name").Text()}, true
	}
	return krm.Ref{}, false
}
