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
	webhookContainers = []string{"proxy-init", "spiffe-helper", "client-registration", "kagenti-client-registration", "auth-proxy", "envoy-proxy"}
	webhookVolumes    = []string{"shared-data", "svid-output", "spire-agent-socket", "spiffe-helper-config", "envoy-config", "authproxy-routes", "authproxy-routes-config"}
	webhookImages     = []string{"kagenti", "rossoctl", "spiffe-helper"}
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
	// Findings are about what could not be decided.
	Findings []krm.Finding
}

// Changed reports whether there is anything to write.
func (c *Cleaning) Changed() bool { return len(c.Fields) > 0 }

// Clean takes out what an admission webhook or a cluster put into an object.
// prefix is that of labels.
func Clean(o *krm.Object, prefix string) (c Cleaning, err error) {
	if err := c.metadata(o); err != nil {
		return c, err
	}
	pod, ok := o.PodTemplate()
	if !ok {
		return c, nil
	}
	injected, err := c.webhook(o, pod)
	if err != nil {
		return c, err
	}
	if err := c.overcommit(o, pod); err != nil {
		return c, err
	}
	if injected {
		c.Injected = true
		return c, c.optIn(o, prefix)
	}
	return c, nil
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
	return theirs && slices.Contains(webhookContainers, name)
}

// fromWebhook says why a container goes: because the webhook put it there.
func fromWebhook(n krm.Node) (reason string) {
	if !Injected(n.Get("name").Text(), n.Get("image").Text()) {
		return ""
	}
	return "injected by the webhook; a render injects it where the workload is labelled"
}

// webhook takes the identity containers out.
func (c *Cleaning) webhook(o *krm.Object, pod krm.PodTemplate) (injected bool, err error) {
	if _, ours := o.Annotation(keys.Injected); ours {
		return false, nil
	}
	spec := pod.Spec()
	mounted := make(map[string]bool)
	for _, list := range []string{"initContainers", "containers"} {
		for n := range spec.Get(list).Items() {
			if fromWebhook(n) != "" {
				injected = true
				continue
			}
			if name := n.Get("name").Text(); slices.Contains(webhookContainers, name) {
				c.Findings = append(c.Findings, o.Finding(krm.Warning, "migrate/unknown-container", n.Get("name"),
					fmt.Sprintf("%s has the name of an injected container, but an image of somebody else's: kept", name), "rename it, or remove it by hand"))
			}
			for m := range n.Get("volumeMounts").Items() {
				mounted[m.Get("name").Text()] = true
			}
		}
	}
	if !injected {
		return false, nil
	}
	for _, list := range []string{"initContainers", "containers"} {
		if err := c.remove(o, spec.Get(list), fromWebhook); err != nil {
			return false, err
		}
	}
	return true, c.remove(o, spec.Get("volumes"), func(n krm.Node) string {
		if name := n.Get("name").Text(); slices.Contains(webhookVolumes, name) && !mounted[name] {
			return "only the injected containers mount it"
		}
		return ""
	})
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

// optIn labels a workload that was injected.
func (c *Cleaning) optIn(o *krm.Object, prefix string) error {
	label := prefix + "/inject"
	if o.Get("metadata", "labels", label).Exists() {
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
