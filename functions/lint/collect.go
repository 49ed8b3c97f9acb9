package lint

import (
	"strings"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/inject"
	"github.com/armature-dev/armature/functions/krm"
)

// makers are kinds that make a Secret or ConfigMap in the cluster, under the
// name at the first path that is there.
var makers = map[string]struct {
	makes string
	names [][]string
}{
	"ExternalSecret":    {"Secret", [][]string{{"spec", "target", "name"}, {"metadata", "name"}}},
	"SealedSecret":      {"Secret", [][]string{{"spec", "template", "metadata", "name"}, {"metadata", "name"}}},
	"Certificate":       {"Secret", [][]string{{"spec", "secretName"}}},
	"VaultStaticSecret": {"Secret", [][]string{{"spec", "destination", "name"}}},
	"Bundle":            {"ConfigMap", [][]string{{"metadata", "name"}}},
}

// Collect notes what other objects may ask of o.
func (p *Package) Collect(o *krm.Object) {
	facts := p.enter(id{o.Kind, o.Namespace, o.Name})
	switch o.Kind {
	case "ConfigMap":
		facts.add(o.Get("data"), o.Get("binaryData"))
	case "Secret":
		facts.add(o.Get("data"), o.Get("stringData"))
	case "Namespace":
		p.namespaces[o.Name] = readNamespace(o)
	case "HorizontalPodAutoscaler", "ScaledObject":
		target := scaled(o)
		p.scalers[target] = append(p.scalers[target], o.Ref)
	case "Service":
		for port := range o.Get("spec", "ports").Items() {
			if n := port.Get("nodePort"); n.IsScalar() && !n.Is("0") {
				key := number(n) + "/" + protocol(port)
				p.nodePorts[key] = append(p.nodePorts[key], o.Ref)
			}
		}
	}
	if m, ok := makers[o.Kind]; ok {
		for _, path := range m.names {
			if name := o.Get(path...).Text(); name != "" {
				p.enter(id{m.makes, o.Namespace, name}).open = true
				break
			}
		}
	}
	template, ok := o.PodTemplate()
	if !ok {
		return
	}
	facts.open = true
	pod := newPod(o, template)
	p.pods = append(p.pods, pod)
	for key, value := range pod.labels {
		l := label{o.Namespace, key, value}
		p.byLabel[l] = append(p.byLabel[l], pod)
	}
	for _, c := range pod.containers {
		p.images[c.node.Get("image").Text()]++
	}
	for r := range references(template) {
		p.unresolved[id{r.kind, o.Namespace, r.name.Text()}]++
	}
}

// Link ends the first pass: it finds what depends on all objects.
func (p *Package) Link() {
	for _, pod := range p.pods {
		for i := range pod.containers {
			pod.containers[i].node = krm.Node{} // the object's memory is used again
		}
	}
}

func (p *Package) enter(key id) *object {
	facts := p.objects[key]
	if facts == nil {
		facts = &object{keys: make(map[string]bool)}
		p.objects[key] = facts
	}
	return facts
}

func (facts *object) add(data ...krm.Node) {
	for _, d := range data {
		for key := range d.Fields() {
			facts.keys[key] = true
		}
	}
}

// has reports whether the package has an object.
func (p *Package) has(kind, namespace, name string) bool {
	return p.objects[id{kind, namespace, name}] != nil
}

func readNamespace(o *krm.Object) (ns namespace) {
	labels := o.Get("metadata", "labels")
	ns.enforce = labels.Get("pod-security.kubernetes.io/enforce").Text()
	switch {
	case labels.Get("istio-injection").Is("enabled"):
		ns.mesh = "istio-injection: enabled"
	case labels.Get("istio.io/rev").Text() != "":
		ns.mesh = "istio.io/rev: " + labels.Get("istio.io/rev").Text()
	case o.Get("metadata", "annotations", "linkerd.io/inject").Is("enabled"):
		ns.mesh = "linkerd.io/inject: enabled"
	}
	return ns
}

// scaled is the workload that an autoscaler is for.
func scaled(o *krm.Object) id {
	ref := o.Get("spec", "scaleTargetRef")
	kind := ref.Get("kind").Text()
	if kind == "" {
		kind = "Deployment" // a ScaledObject's default
	}
	return id{kind, o.Namespace, ref.Get("name").Text()}
}

// pod is what a pod template contains.
type pod struct {
	ref        krm.Ref
	labels     map[string]string
	containers []container
	injected   bool
	// authProxy is the port of auth-proxy, inbound that of Envoy for what comes
	// in; 0 where there is none. proxyUID is Envoy's user, "" without Envoy.
	authProxy, inbound int
	proxyUID           string
}

// container is one of a pod's.
type container struct {
	name  string
	node  krm.Node // while the object is at hand
	ports []port
	// runs says that it runs beside the others; an init container that ends
	// does not.
	runs bool
}

type port struct {
	name, protocol string
	number         int
}

func newPod(o *krm.Object, template krm.PodTemplate) *pod {
	p := &pod{ref: o.Ref, labels: make(map[string]string), injected: inject.Injected(o)}
	for key, value := range template.Template.Get("metadata", "labels").Fields() {
		p.labels[key] = value.Text()
	}
	for _, list := range [...]string{"initContainers", "containers"} {
		for n := range template.Spec().Get(list).Items() {
			c := container{name: n.Get("name").Text(), node: n, runs: list == "containers" || n.Get("restartPolicy").Is("Always")}
			for x := range n.Get("ports").Items() {
				number, _ := x.Get("containerPort").Int()
				c.ports = append(c.ports, port{x.Get("name").Text(), protocol(x), number})
			}
			p.containers = append(p.containers, c)
			if p.injected {
				p.proxies(&c)
			}
		}
	}
	return p
}

func (p *pod) proxies(c *container) {
	switch c.name {
	case identity.AuthProxy:
		p.authProxy = c.port("auth-proxy")
	case identity.EnvoyProxy:
		p.inbound = c.port("envoy-inbound")
		p.proxyUID = c.node.Get("securityContext", "runAsUser").Text()
	}
}

func (c *container) port(name string) int {
	for _, p := range c.ports {
		if p.name == name {
			return p.number
		}
	}
	return 0
}

func protocol(port krm.Node) string {
	if p := port.Get("protocol").Text(); p != "" {
		return p
	}
	return "TCP"
}

// selected gives the pods of a namespace that have all labels of a selector. An
// empty selector selects none.
func (p *Package) selected(namespace string, selector krm.Node) (found []*pod) {
	want := make(map[string]string)
	for key, value := range selector.Fields() {
		want[key] = value.Text()
	}
	for key, value := range want {
		for _, candidate := range p.byLabel[label{namespace, key, value}] {
			matches := true
			for k, v := range want {
				matches = matches && candidate.labels[k] == v
			}
			if matches {
				found = append(found, candidate)
			}
		}
		return found
	}
	return nil
}

// component reports whether a container is one of those that are injected.
func component(name string) bool {
	for _, c := range inject.ReservedContainers() {
		if c == name {
			return true
		}
	}
	return false
}

// more says how many more places there are: "" or " (and 3 more)".
func more(n int, what string) string {
	if n <= 1 {
		return ""
	}
	return strings.Join([]string{" (and ", itoa(n - 1), " more ", plural(n-1, what), ")"}, "")
}
