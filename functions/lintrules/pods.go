package lintrules

import (
	"cmp"
	_ "embed"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/images"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
	"github.com/armature-dev/armature/functions/skills"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/functions/workload"
)

// number returns a port as the API server reads it; text that is not a number is returned
// unchanged.
func number(n krm.Node) string {
	if i, ok := n.Int(); ok {
		return strconv.Itoa(i)
	}
	return n.Text()
}

// portKey returns a port with its protocol: 8080/TCP.
func portKey(port krm.Node, field string) string {
	return number(port.Get(field)) + "/" + protocol(port)
}

func portClash(c *checker) {
	c.podPorts()
	if c.Kind != "Service" {
		return
	}
	taken := make(map[string]bool)
	for p := range c.Get("spec", "ports").Items() {
		key := portKey(p, "port")
		if taken[key] {
			c.report(p.Get("port"), "remove one of the two", "the Service has port %s twice", key)
		}
		taken[key] = true
		if n := p.Get("nodePort"); n.IsScalar() {
			for _, other := range c.collected.nodePorts[portKey(p, "nodePort")] {
				if other != c.Ref {
					c.report(n, "give one of the two another nodePort, or leave it to the cluster",
						"%s has this nodePort too", other)
				}
			}
		}
	}
}

// podPorts reports ports that two containers have, or one has twice.
func (c *checker) podPorts() {
	owner, host := make(map[string]string), make(map[string]string)
	for _, x := range c.facts.containers {
		listed := make(map[[2]string]bool)
		for p := range x.node.Get("ports").Items() {
			at, onNode := p.Get("containerPort"), p.Get("hostPort")
			key := portKey(p, "containerPort")
			entry := [2]string{key, number(onNode)}
			if listed[entry] {
				c.report(at,
					"remove one of the two entries, and name the other one in Services and probes",
					"%s lists port %s twice, and server-side apply refuses that", x.name, key)
			}
			listed[entry] = true
			if other, taken := owner[key]; taken && x.runs && other != x.name {
				c.report(at,
					"give one of the two another port: the containers of a pod share its network",
					"%s listens on port %s of the pod, and so does %s", x.name, number(at), other)
			} else if x.runs {
				owner[key] = x.name
			}
			if onNode.IsScalar() && !onNode.Is("0") {
				key := portKey(p, "hostPort")
				if other, taken := host[key]; taken {
					c.report(onNode, "give one of the two another hostPort", "%s takes port %s "+
						"of the node, and so does %s", x.name, number(onNode), other)
				}
				host[key] = x.name
			}
		}
	}
}

func reservedName(c *checker) {
	if c.facts.injected {
		return // a render refuses these names in an injected workload
	}
	for _, x := range c.facts.containers {
		if component(x.name) {
			c.report(x.node.Get("name"), "rename it; if a "+
				"webhook injected it, `armature migrate` removes it", "%q is the name of "+
				"an injected container, but nothing was injected by a render", x.name)
		}
	}
	for v := range c.pod.Spec().Get("volumes").Items() {
		// The published names are too common to be reported.
		if name := v.Get("name"); strings.HasPrefix(name.Text(), "armature-") &&
			slices.Contains(sidecars.ReservedVolumes(), name.Text()) {
			c.report(name, "rename it", "%q is the name of "+
				"an injected volume, but nothing was injected by a render", name.Text())
		}
	}
}

// meshProxies are the containers of other injectors that redirect a pod's traffic.
var meshProxies = []string{"istio-proxy", "linkerd-proxy", "consul-dataplane", "kuma-sidecar"}

// istioInject is Istio's label of pods.
const istioInject = "sidecar.istio.io/inject"

// meshSwitches are the labels and annotations with which pods, and for some meshes Namespaces, opt
// in to a mesh's proxy or out of it.
var meshSwitches = []struct{ key, on, off string }{
	{istioInject, "true", "false"},
	{"linkerd.io/inject", "enabled ingress", "disabled"},
	{"consul.hashicorp.com/connect-inject", "true 1", "false 0"},
	{"kuma.io/sidecar-injection", "enabled true", "disabled false"},
}

// meshSwitch finds the switch of a mesh, or of any mesh if key is "", that is on, or off, in the
// metadata of a pod or a Namespace.
func meshSwitch(metadata krm.Node, key string, on bool) (at krm.Node, found bool) {
	for _, x := range meshSwitches {
		values := x.off
		if on {
			values = x.on
		}
		for _, of := range [...]string{"labels", "annotations"} {
			if n := metadata.Get(of, x.key); (key == "" || x.key == key) &&
				n.IsScalar() && slices.Contains(strings.Fields(values), n.Text()) {
				return n, true
			}
		}
	}
	return krm.Node{}, false
}

func doubleInjection(c *checker) {
	if c.facts.redirects == "" {
		return
	}
	const hint = `leave traffic to one of them: switch the mesh off for this pod ` +
		`(sidecar.istio.io/inject: "false", linkerd.io/inject: disabled, ` +
		`consul.hashicorp.com/connect-inject: "false", kuma.io/sidecar-injection: disabled), or ` +
		`annotate <prefix>/proxy-init: disabled`
	remedy := strings.ReplaceAll(hint, "<prefix>", c.prefix)
	for _, x := range c.facts.containers {
		if slices.Contains(meshProxies, x.name) {
			c.report(x.node.Get("name"), remedy,
				"%s redirects the pod's traffic, and so does %s", x.name, c.facts.redirects)
			return
		}
	}
	metadata := c.pod.Template.Get("metadata")
	if n, on := meshSwitch(metadata, "", true); on {
		c.report(n, remedy, "%s: %s makes a mesh redirect the pod's traffic too", n.Key(), n.Text())
		return
	}
	ns := c.collected.namespaces[finding.Home(c.Namespace)]
	if _, off := meshSwitch(metadata, ns.by, false); ns.mesh != "" && !off {
		c.report(c.Get("metadata", "namespace"), remedy, "the Namespace %s is labelled %s, "+
			"so a mesh redirects the pod's traffic too", cmp.Or(c.Namespace, "default"), ns.mesh)
	}
}

func proxyUser(c *checker) {
	if c.facts.proxyUID == "" {
		return
	}
	ofPod := c.pod.Spec().Get("securityContext", "runAsUser")
	for _, x := range c.facts.containers {
		if component(x.name) {
			continue
		}
		uid := x.node.Get("securityContext", "runAsUser")
		if !uid.Exists() {
			uid = ofPod
		}
		if uid.Is(c.facts.proxyUID) {
			c.report(uid, fmt.Sprintf("give it another runAsUser, "+
				"or annotate %s/proxy-uid with a free one", c.prefix), "%s runs as user "+
				"%s, the proxy's, so none of its traffic is intercepted", x.name, c.facts.proxyUID)
		}
	}
}

// longRunning are programs other than the sidecars that run until they are stopped, by the name of
// their container or image.
//
//go:embed longrunning.txt
var longRunning string

func jobSidecar(c *checker) {
	if !workload.Ends(c.Kind) {
		return
	}
	list := c.pod.Spec().Get("containers")
	if list.Len() < 2 {
		return
	}
	for n := range list.Items() {
		name, image := n.Get("name").Text(), skills.Folder(n.Get("image").Text())
		runs := func(program string) bool {
			return component(program) && program != sidecars.ProxyInit ||
				slices.Contains(strings.Fields(longRunning), program)
		}
		if runs(name) || runs(image) {
			c.report(n.Get("name"),
				"move it to initContainers with restartPolicy: Always (Kubernetes 1.29 and later)",
				"%s keeps running after the others, so the %s never finishes", name, c.Kind)
		}
	}
}

// podSecurity checks a pod against the level that its namespace enforces.
func podSecurity(c *checker) {
	level := c.collected.namespaces[finding.Home(c.Namespace)].enforce
	namespace := cmp.Or(c.Namespace, "default")
	if !c.isPod || c.Evaluate == nil || level != "baseline" && level != "restricted" {
		return
	}
	c.Evaluate(level, c.Object, c.pod, func(container string, at krm.Node, message string) {
		hint := "change it, or relax the label pod-security.kubernetes.io/enforce of the Namespace " +
			namespace
		if container == sidecars.ProxyInit && c.facts.injected {
			hint = fmt.Sprintf("proxy-init needs root and NET_ADMIN: leave it out, "+
				"with spec.outbound.trafficInterception.enabled: false in a TokenExchange or "+
				"the annotation %s/proxy-init: disabled, or enforce privileged in the Namespace %s",
				c.prefix, namespace)
		}
		c.report(at, hint, "the Namespace %s enforces %s: %s", namespace, level, message)
	})
}

// koImage begins references that ko replaces by the images that it builds, with their digests.
const koImage = "ko://"

// eachImage calls visit for each image that runs, except those whose tag another tool writes.
func (c *checker) eachImage(visit func(at krm.Node, image string)) {
	for _, at := range images.Fields(c.Object, c.images...) {
		image := at.Ref
		if image != "" && !strings.HasPrefix(image, koImage) &&
			!images.HasVariable(path.Base(image)) {
			visit(at.Node, image)
		}
	}
}

// defaultAccount is the ServiceAccount that every namespace has.
const defaultAccount = "default"

func sharedIdentity(c *checker) {
	if c.facts.account != defaultAccount {
		return
	}
	for _, other := range c.collected.pods {
		if other.account == defaultAccount &&
			finding.Home(other.ref.Namespace) == finding.Home(c.Namespace) && other.ref != c.Ref {
			at := c.pod.Spec().Get("serviceAccountName")
			if !at.Exists() {
				at = c.pod.Spec().Get("serviceAccount")
			}
			hint := "remove the field, so that a render generates a separate ServiceAccount, " +
				"or name one"
			if c.Kind == "Pod" {
				hint = "name a ServiceAccount that no other agent uses"
			}
			c.report(at, hint, "%s has the ServiceAccount %s too, and therefore "+
				"the same SPIFFE ID: servers cannot distinguish the two", other.ref, defaultAccount)
			return
		}
	}
}

func floating(image string) bool {
	return !strings.Contains(image, "@") &&
		(!strings.Contains(path.Base(image), ":") || strings.HasSuffix(image, ":latest"))
}

func latestImage(c *checker) {
	c.eachImage(func(at krm.Node, image string) {
		if floating(image) {
			c.once(image, at, "name a version, and run `armature pin` for its digest",
				"%q may refer to another image at each start%s",
				text.Shown(image), more(c.collected.images[image], "container"))
		}
	})
}

func unpinnedImage(c *checker) {
	const hint = "run `armature pin` to write digests into armature.lock"
	c.eachImage(func(at krm.Node, image string) {
		switch {
		case strings.Contains(image, "@sha256:"),
			floating(image) && c.Severity("latest-image") != Off:
		case c.collected.added[image]: // one finding and one command for all of them
			var added []string
			for _, image := range slices.Sorted(maps.Keys(c.collected.added)) {
				added = append(added, text.Shown(image))
			}
			c.once("added", at, hint, "%s of injected containers without a digest: %s",
				text.Count(len(added), "image"), strings.Join(added, ", "))
		default:
			c.once(image, at, hint, "%q has no digest%s",
				text.Shown(image), more(c.collected.images[image], "container"))
		}
	})
}
