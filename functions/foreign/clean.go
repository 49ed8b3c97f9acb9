package foreign

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/skills"
	"github.com/armature-dev/armature/functions/text"
)

// webhookContainers and webhookVolumes are injected by the published kagenti webhook. A container
// counts only if its image is also the platform's.
var (
	webhookContainers = []string{"proxy-init", "spiffe-helper", "client-registration",
		"kagenti-client-registration", "auth-proxy", "envoy-proxy", "authbridge-proxy"}
	webhookVolumes = []string{"shared-data", "svid-output", "spire-agent-socket",
		"spiffe-helper-config", "envoy-config", "authproxy-routes", "authproxy-routes-config"}
	webhookImages = []string{"kagenti", "rossoctl", "spiffe-helper"}
	// sidecarImages are the names of the platform's sidecars in any registry, including one for
	// local builds.
	sidecarImages = []string{"proxy-init", "spiffe-helper", "client-registration", "auth-proxy",
		"envoy-with-processor", "authbridge", "authbridge-envoy", "authbridge-lite", "authbridge-unified"}
)

const overcommitPrefix = "overcommit.inditex.dev/"

// OvercommitApplied is the annotation of Pods whose requests an OvercommitClass computed.
const OvercommitApplied = overcommitPrefix + "applied"

// Cleaning is an object without the additions of webhooks and clusters. The edits wait in the
// object until Append.
type Cleaning struct {
	// Fields are the dropped and added fields.
	Fields []Field
	// Injected says that the webhook's containers were removed.
	Injected bool
	// Ports are the TCP ports that the author's containers declare.
	Ports []int
	// Findings are about undecidable cases.
	Findings []finding.Finding
	// Removed are the injected containers.
	Removed []Container

	object *krm.Object
	prefix string // of labels
	err    error
}

// Container is a removed container with its literal settings.
type Container struct {
	Name string
	// Settings are its image, arguments, resources, and variables and mounts by name.
	Settings map[string]string
}

// ContainerOf reads a container.
func ContainerOf(n krm.Node) Container {
	c := Container{Name: strings.TrimPrefix(n.Get("name").Text(), "kagenti-"),
		Settings: make(map[string]string)}
	c.Settings["image"] = n.Get("image").Text()
	for _, list := range [...]string{"command", "args"} {
		for item := range n.Get(list).Items() {
			c.Settings[list] += item.Text() + "\n"
		}
	}
	for _, kind := range [...]string{"requests", "limits"} {
		for resource, quantity := range n.Get("resources", kind).Fields() {
			c.Settings["resources."+kind+"."+resource] = quantity.Text()
		}
	}
	for v := range n.Get("env").Items() {
		if value := v.Get("value"); value.Exists() {
			c.Settings["variable "+v.Get("name").Text()] = value.Text()
		}
	}
	for m := range n.Get("volumeMounts").Items() {
		c.Settings["mount "+m.Get("mountPath").Text()] = ""
	}
	return c
}

// noSPIFFE reports whether the removed containers ran without SPIRE.
func (c *Cleaning) noSPIFFE() bool {
	off := true
	for _, r := range c.Removed {
		value, set := r.Settings["variable SPIRE_ENABLED"]
		switch {
		case value == "false":
			return true
		case set || r.Name == "spiffe-helper":
			off = false
		}
		for name := range r.Settings {
			// The mount is the agent's socket.
			if strings.HasPrefix(name, "mount ") && strings.Contains(name, "spi") {
				off = false
			}
		}
	}
	return off
}

// Changed reports whether there is anything to write.
func (c *Cleaning) Changed() bool { return len(c.Fields) > 0 }

// Clean removes the additions of an admission webhook or a cluster from an object. prefix is the
// prefix of labels. It adds annotations that the author has not set.
func Clean(o *krm.Object, prefix string, annotations []Annotation) (Cleaning, error) {
	c := Cleaning{object: o, prefix: prefix}
	c.metadata()
	pod, ok := o.PodTemplate()
	if !ok {
		return c, c.err
	}
	c.Injected = c.webhook(pod)
	c.overcommit(pod)
	c.add("annotations", slices.DeleteFunc(slices.Clone(annotations), func(a Annotation) bool {
		return o.Get("metadata", "annotations", a.Key).Exists()
	}))
	if c.Injected {
		c.add("labels", c.optIn(pod))
	}
	return c, c.err
}

// failed keeps the first error.
func (c *Cleaning) failed(err error) { c.err = cmp.Or(c.err, err) }

// Annotation is an annotation or label that the migration adds, with the reason.
type Annotation struct{ Key, Value, Reason string }

// add adds entries to the labels or annotations of an object.
func (c *Cleaning) add(to string, entries []Annotation) {
	var text []byte
	for _, a := range entries {
		c.Fields = append(c.Fields, Field{Path: "metadata." + to + "[" + a.Key + "]",
			Fate: Added, Reason: a.Reason})
		value := a.Value
		if to == "annotations" {
			value = strconv.Quote(value)
		}
		text = fmt.Appendf(text, "%s: %s\n", a.Key, value)
	}
	if len(text) > 0 {
		_, err := c.object.Insert(c.object.Get("metadata"), []string{to}, text, false)
		c.failed(err)
	}
}

// remove deletes the entries of a collection for which why returns a reason, and the collection if
// no entry is left.
func (c *Cleaning) remove(collection krm.Node, why func(krm.Node) (reason string)) {
	var entries []krm.Node
	for _, n := range collection.Fields() {
		entries = append(entries, n)
	}
	entries = slices.AppendSeq(entries, collection.Items())
	removed := 0
	for _, n := range entries {
		if reason := why(n); reason != "" {
			c.Fields = append(c.Fields, Field{Path: n.Path(), Fate: Dropped, Reason: reason})
			removed++
		}
	}
	switch removed {
	case 0:
	case len(entries):
		c.failed(c.object.RemoveField(collection))
	default:
		_, err := c.object.Remove(collection, func(n krm.Node) bool { return why(n) != "" })
		c.failed(err)
	}
}

// metadata drops fields that a cluster adds to every object.
func (c *Cleaning) metadata() {
	rules := rulesOf(objectRules)
	drop := func(n krm.Node) string {
		for _, r := range rules {
			if r.Fate == Dropped && r.Path == n.Path() {
				return r.Reason
			}
		}
		if strings.HasPrefix(n.Key(), overcommitPrefix) {
			return "an annotation of the webhook; armature's overcommit writes its own"
		}
		return ""
	}
	for _, keys := range [][]string{nil, {"metadata"}, {"metadata", "annotations"}} {
		c.remove(c.object.Get(keys...), drop)
	}
}

// Injected reports whether the webhook injected a container of this name and image into a pod.
func Injected(name, image string) bool {
	platform := slices.ContainsFunc(webhookImages,
		func(part string) bool { return strings.Contains(image, part) })
	return (platform || slices.Contains(sidecarImages, skills.Folder(image))) &&
		slices.Contains(webhookContainers, name)
}

// fromWebhook returns the reason for removing a container if the webhook injected it, or "".
func fromWebhook(n krm.Node) (reason string) {
	if !Injected(n.Get("name").Text(), n.Get("image").Text()) {
		return ""
	}
	return "injected by the webhook; a render injects it if the workload is labelled"
}

// webhook removes the identity containers, and reports whether it did.
func (c *Cleaning) webhook(pod krm.PodTemplate) bool {
	if _, own := c.object.Annotation(keys.Injected); own {
		return false
	}
	spec, injected := pod.Spec(), false
	// mounted are the volumes of the remaining containers, removed those of the others, and reads
	// the ConfigMaps and Secrets of the others.
	mounted, removed := make(map[string]bool), make(map[string]bool)
	var reads []string
	var foreign []krm.Node
	applies := false // an application container remains
	for list, n := range pod.Containers() {
		volumes := mounted
		switch name := n.Get("name").Text(); {
		case fromWebhook(n) != "":
			injected, volumes = true, removed
			c.Removed = append(c.Removed, ContainerOf(n))
			reads = appendReads(reads, krm.EnvironmentReferences(n))
		case slices.Contains(webhookContainers, name):
			foreign = append(foreign, n.Get("name"))
			fallthrough
		default:
			applies = applies || list == "containers"
			for p := range n.Get("ports").Items() {
				port, ok := p.Get("containerPort").Int()
				if protocol := p.Get("protocol"); ok && !protocol.Is("UDP") && !protocol.Is("SCTP") {
					c.Ports = append(c.Ports, port)
				}
			}
		}
		for m := range n.Get("volumeMounts").Items() {
			volumes[m.Get("name").Text()] = true
		}
	}
	switch {
	case injected && c.optedOut(pod):
		c.report(finding.Warning, "opted-out", spec, "label it "+
			c.prefix+"/inject: enabled, and migrate again, to have a render inject them",
			"the workload has identity containers and opts out of injection: they stay as they are")
		return false
	case injected && !applies:
		c.report(finding.Warning, "only-sidecars", spec, "delete the workload if it was "+
			"a separate proxy: the sidecars of each workload replace it", "all containers belong "+
			"to the platform, and none is an application: they stay as they are")
		return false
	}
	c.unknown(foreign, injected)
	if !injected {
		return false
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
			reads = appendReads(reads, krm.VolumeReferences(v))
		}
	}
	c.remove(spec.Get("initContainers"), fromWebhook)
	c.remove(spec.Get("containers"), fromWebhook)
	c.remove(spec.Get("volumes"), left)
	if len(reads) > 0 {
		slices.Sort(reads)
		c.report(finding.Info, "left-configuration", spec, "write their settings as a TokenExchange, "+
			"or as spec.identity in armature.yaml, and delete the objects that nothing else reads",
			"the removed containers read %s", strings.Join(slices.Compact(reads), ", "))
	}
	return true
}

func (c *Cleaning) report(severity finding.Severity, rule string, at krm.Node, hint,
	message string, values ...any) {
	c.Findings = append(c.Findings,
		c.object.Finding(severity, "migrate/"+rule, at, fmt.Sprintf(message, values...), hint))
}

// optedOut reports whether labels of a workload or its pods opt out of injection.
func (c *Cleaning) optedOut(pod krm.PodTemplate) bool {
	label := c.prefix + "/inject"
	own, set := pod.Label(label)
	n := c.object.Get("metadata", "labels", label)
	return set && own != "enabled" || n.Exists() && !n.Is("enabled")
}

// unknown reports containers with the names of injected ones, but foreign images. Next to injected
// containers their origin is undecidable, and a pod that keeps only half of the sidecars does not
// work.
func (c *Cleaning) unknown(containers []krm.Node, injected bool) {
	for _, name := range containers {
		severity, what, hint := finding.Warning, "kept", "rename it, or remove it manually"
		if injected {
			severity, what = finding.Error, "it can neither be removed with the others nor stay"
			hint = "rename the container if it is yours; if it is the platform's container " +
				"with your own image, remove it manually"
		}
		c.report(severity, "unknown-container", name, hint,
			"%s has the name of an injected container, but another image: %s", name.Text(), what)
	}
}

// appendReads appends the ConfigMaps and Secrets of references.
func appendReads(reads []string, references []krm.Reference) []string {
	for _, r := range references {
		if name := r.Name.Text(); name != "" {
			reads = append(reads, r.Kind+" "+text.Shown(name))
		}
	}
	return reads
}

// overcommit drops the requests that a webhook computed from the limits of a Pod.
func (c *Cleaning) overcommit(pod krm.PodTemplate) {
	_, applied := pod.Annotation(OvercommitApplied)
	_, own := c.object.Annotation(OvercommitApplied)
	if !applied && !own {
		return
	}
	for _, n := range pod.Containers() {
		if fromWebhook(n) != "" {
			continue
		}
		limits := n.Get("resources", "limits")
		c.remove(n.Get("resources", "requests"), func(n krm.Node) string {
			if key := n.Key(); (key == "cpu" || key == "memory") && limits.Get(key).Exists() {
				return "computed from the limit by an OvercommitClass; a render computes it again"
			}
			return ""
		})
	}
}

// optIn returns the labels of a workload that was injected, unless it or its pods have them
// already, and a label against a SPIFFE identity if its sidecars did not use one.
func (c *Cleaning) optIn(pod krm.PodTemplate) (labels []Annotation) {
	says := func(names ...string) bool {
		return slices.ContainsFunc(names, func(name string) bool {
			_, set := pod.Label(c.prefix + name)
			return set || c.object.Get("metadata", "labels", c.prefix+name).Exists()
		})
	}
	if !says("/inject") {
		labels = append(labels, Annotation{c.prefix + "/inject",
			"enabled", "the workload was injected, and a render injects it again"})
	}
	if c.noSPIFFE() && !says("/spiffe", "/spire") {
		labels = append(labels, Annotation{c.prefix + "/spiffe",
			"disabled", "the injected containers did not use SPIRE"})
	}
	return labels
}

// Owner returns the controller that made an object.
func Owner(o *krm.Object) (owner finding.Ref, owned bool) {
	for n := range o.Get("metadata", "ownerReferences").Items() {
		return finding.Ref{APIVersion: n.Get("apiVersion").Text(),
			Kind: n.Get("kind").Text(), Namespace: o.Namespace, Name: n.Get("name").Text()}, true
	}
	return finding.Ref{}, false
}
