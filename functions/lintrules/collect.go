package lintrules

import (
	"cmp"
	_ "embed"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
	"github.com/armature-dev/armature/functions/text"
)

// makers are kinds that create a Secret or ConfigMap in the cluster: the kind, the created kind,
// and the paths of its name, of which the first that exists counts.
//
//go:embed makers.txt
var makers string

// claimTemplate is the kind under which the claims of a StatefulSet are recorded, by the part of
// their names before the ordinal.
const claimTemplate = "volumeClaimTemplates"

// charts is the kind under which namespaces are recorded into which a chart installs objects. The
// name is empty.
const charts = "charts"

// Collect records the facts about o that checks of other objects need.
func (p *Package) Collect(o *krm.Object) {
	facts := p.enter(key(o.Kind, o.Namespace, o.Name))
	facts.anywhere = facts.anywhere || o.Namespace == ""
	switch o.Kind {
	case "ConfigMap":
		facts.add(o.Get("data"), o.Get("binaryData"))
		facts.guarded = guardedPort(o.Get("data", sidecars.AuthBridgeYAML).Text())
	case "Secret":
		facts.add(o.Get("data"), o.Get("stringData"))
	case "Namespace":
		p.collected.namespaces[finding.Home(o.Name)] = readNamespace(o)
	case "HelmRelease", "HelmChart", "Application":
		if into, ok := installs(o); ok {
			p.enter(key(charts, into, ""))
		}
	case "HorizontalPodAutoscaler", "ScaledObject":
		target := scaled(o)
		p.collected.scalers[target] = append(p.collected.scalers[target], o.Ref)
	case "StatefulSet":
		for v := range o.Get("spec", "volumeClaimTemplates").Items() {
			p.enter(key(claimTemplate, o.Namespace, v.Get("metadata", "name").Text()+"-"+o.Name))
		}
	case "Service":
		for port := range o.Get("spec", "ports").Items() {
			if n := port.Get("nodePort"); n.IsScalar() && !n.Is("0") {
				key := portKey(port, "nodePort")
				p.collected.nodePorts[key] = append(p.collected.nodePorts[key], o.Ref)
			}
		}
	}
	for line := range strings.Lines(makers) {
		words := strings.Fields(line)
		for i := 2; words[0] == o.Kind && i < len(words); i++ {
			if name := o.Get(strings.Split(words[i], ".")...).Text(); name != "" {
				p.enter(key(words[1], o.Namespace, name)).open = true
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
	p.collected.pods = append(p.collected.pods, pod)
	for key, value := range pod.labels {
		l := label{finding.Home(o.Namespace), key, value}
		p.collected.byLabel[l] = append(p.collected.byLabel[l], pod)
	}
	for _, r := range template.References() {
		p.collected.unresolved[key(r.Kind, o.Namespace, r.Name.Text())]++
	}
}

// Link ends the first pass: it computes facts that depend on all objects.
func (p *Package) Link() {
	for _, pod := range p.collected.pods {
		for i := range pod.containers {
			image := pod.containers[i].image
			if p.collected.images[image]++; pod.injected && component(pod.containers[i].name) &&
				!strings.Contains(image, "@sha256:") {
				p.collected.added[image] = true
			}
			pod.containers[i].node = krm.Node{} // the object's memory is used again
		}
	}
}

func (p *Package) enter(key id) *object {
	facts := p.collected.objects[key]
	if facts == nil {
		facts = &object{keys: make(map[string]bool)}
		p.collected.objects[key] = facts
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
	return p.collected.objects[key(kind, namespace, name)] != nil
}

func readNamespace(o *krm.Object) (ns namespace) {
	labels := o.Get("metadata", "labels")
	ns.enforce = labels.Get("pod-security.kubernetes.io/enforce").Text()
	if at, on := meshSwitch(o.Get("metadata"), "", true); on {
		ns.mesh, ns.by = at.Key()+": "+at.Text(), at.Key()
		return ns
	}
	revision := labels.Get("istio.io/rev").Text()
	switch {
	case labels.Get("istio-injection").Is("enabled"):
		ns.mesh, ns.by = "istio-injection: enabled", istioInject
	case revision != "":
		ns.mesh, ns.by = "istio.io/rev: "+revision, istioInject
	}
	return ns
}

// installs returns the namespace into which an object of Flux, k3s or Argo CD installs a chart.
func installs(o *krm.Object) (namespace string, ok bool) {
	spec := o.Get("spec")
	switch o.Kind {
	case "HelmRelease":
		ok = true
	case "HelmChart": // Flux's are only fetched
		ok = o.Group() == "helm.cattle.io"
	case "Application":
		ok = spec.Get("source", "chart").Exists()
		each(spec, "sources[].chart", func(chart krm.Node) { ok = ok || chart.Exists() })
	}
	return cmp.Or(spec.Get("targetNamespace").Text(),
		spec.Get("destination", "namespace").Text(), o.Namespace), ok
}

// charted reports whether a chart may hold objects of a namespace: of this package, if the author
// left the namespace to Flux or kubectl -n.
func (c *checker) charted(namespace string) bool {
	return c.has(charts, namespace, "") || namespace != "" && slices.ContainsFunc(c.Beside,
		func(p *Package) bool { return p.has(charts, namespace, "") })
}

// scaled returns the workload of an autoscaler.
func scaled(o *krm.Object) id {
	ref := o.Get("spec", "scaleTargetRef")
	// Deployment is a ScaledObject's default.
	return id{cmp.Or(ref.Get("kind").Text(), "Deployment"), o.Namespace, ref.Get("name").Text()}
}

// pod holds the contents of a pod template.
type pod struct {
	ref        finding.Ref
	labels     map[string]string
	containers []container
	injected   bool
	// account is the ServiceAccount of an injected pod that has a SPIFFE ID.
	account string
	// authProxy is the port of auth-proxy, inbound that of Envoy for inbound requests; 0 means that
	// there is none.
	authProxy, inbound int
	// config is the ConfigMap that AuthBridge's own proxy reads, or "".
	config string
	// redirects is the proxy that gets traffic from iptables, proxyUID its user; both are ""
	// without iptables. open are the inbound ports that iptables do not redirect.
	redirects, proxyUID string
	open                []int
}

// container is a container of a pod.
type container struct {
	name  string
	image string
	node  krm.Node // valid while the object is checked
	ports []port
	// runs says that it runs at the same time as the others, unlike an init container that ends.
	runs bool
}

type port struct {
	name, protocol string
	number         int
}

func newPod(o *krm.Object, template krm.PodTemplate) *pod {
	p := &pod{ref: o.Ref, labels: make(map[string]string), injected: identity.Injected(o)}
	for key, value := range template.Template.Get("metadata", "labels").Fields() {
		p.labels[key] = value.Text()
	}
	if p.injected && template.Spec().Get("volumes").Named("name", sidecars.SocketVolume).Exists() {
		p.account = cmp.Or(template.Spec().Get("serviceAccountName").Text(),
			template.Spec().Get("serviceAccount").Text(), defaultAccount)
	}
	switch o.Kind { // add the labels that a controller sets
	case "StatefulSet":
		p.labels[podName], p.labels[podIndex] = anyOrdinal(o.Name+"-0"), "*"
	case "Job":
		p.labels["job-name"], p.labels["batch.kubernetes.io/job-name"] = o.Name, o.Name
	}
	for list, n := range template.Containers() {
		c := container{name: n.Get("name").Text(), image: n.Get("image").Text(), node: n,
			runs: list == "containers" || n.Get("restartPolicy").Is("Always")}
		for x := range n.Get("ports").Items() {
			number, _ := x.Get("containerPort").Int()
			c.ports = append(c.ports, port{x.Get("name").Text(), protocol(x), number})
		}
		p.containers = append(p.containers, c)
		if p.injected {
			p.proxies(&c)
		}
	}
	if p.redirects == sidecars.AuthBridgeProxy {
		p.config = template.Spec().Get("volumes").Named("name",
			sidecars.ConfigVolume).Get("configMap", "name").Text()
	}
	if !slices.ContainsFunc(p.containers,
		func(c container) bool { return c.name == sidecars.ProxyInit }) {
		p.redirects, p.proxyUID = "", ""
	}
	return p
}

func (p *pod) proxies(c *container) {
	switch c.name {
	case sidecars.AuthProxy:
		p.authProxy = c.port("auth-proxy")
	case sidecars.ProxyInit:
		for number := range strings.SplitSeq(
			c.node.Get("env").Named("name", "INBOUND_PORTS_EXCLUDE").Get("value").Text(), ",") {
			if port, err := strconv.Atoi(number); err == nil {
				p.open = append(p.open, port)
			}
		}
	case sidecars.EnvoyProxy, sidecars.AuthBridgeProxy:
		p.inbound = c.port("envoy-inbound")
		p.redirects, p.proxyUID = c.name, c.node.Get("securityContext", "runAsUser").Text()
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
	return cmp.Or(port.Get("protocol").Text(), "TCP")
}

// Labels that the controller of StatefulSets sets on each pod.
const (
	podName  = "statefulset.kubernetes.io/pod-name"
	podIndex = "apps.kubernetes.io/pod-index"
)

// anyOrdinal replaces the number at the end of the name of a StatefulSet's pod or claim by *; other
// names are unchanged.
func anyOrdinal(name string) string {
	if front := strings.TrimRight(name, "0123456789"); len(front) < len(name) &&
		strings.HasSuffix(front, "-") {
		return front + "*"
	}
	return name
}

// wanted reads a selector. A selector of a pod by its number selects every pod of the StatefulSet.
func wanted(selector krm.Node) map[string]string {
	want := make(map[string]string)
	for key, value := range selector.Fields() {
		switch key {
		case podName:
			want[key] = anyOrdinal(value.Text())
		case podIndex:
			want[key] = "*"
		default:
			want[key] = value.Text()
		}
	}
	return want
}

func (p *pod) matches(want map[string]string) bool {
	for key, value := range want {
		if p.labels[key] != value {
			return false
		}
	}
	return len(want) > 0
}

// selected returns the pods of a namespace that have all labels of a selector. An
// empty selector selects none.
func (p *Package) selected(namespace string, selector krm.Node) (found []*pod) {
	want := wanted(selector)
	var fewest []*pod // with one of the labels; all pods of a package may have another one
	for key, value := range want {
		of := p.collected.byLabel[label{finding.Home(namespace), key, value}]
		if len(of) == 0 {
			return nil
		}
		if fewest == nil || len(of) < len(fewest) {
			fewest = of
		}
	}
	for _, candidate := range fewest {
		if candidate.matches(want) {
			found = append(found, candidate)
		}
	}
	return found
}

// selectsNone reports whether a selector selects no pod: of the package and those beside it, of
// every cluster, or possibly of charts and unreadable files.
func (c *checker) selectsNone(selector krm.Node) bool {
	for _, p := range append(c.Beside, c.Package) {
		if len(p.selected(c.Namespace, selector)) > 0 {
			return false
		}
	}
	want := wanted(selector)
	dns := c.Namespace == "kube-system" && len(want) == 1 && want["k8s-app"] == "kube-dns"
	return !c.Open && !dns && !c.charted(c.Namespace) && !c.mayHold(want)
}

// mayHold reports whether an unreadable text has lines with each of the fields.
func (p *Package) mayHold(fields map[string]string) bool {
	for _, text := range p.Unread {
		left := len(fields)
		for key, value := range fields {
			for line := range strings.Lines(text) {
				k, v, _ := strings.Cut(strings.TrimLeft(strings.TrimSpace(line), "- {"), ":")
				if unquoted(k) == key && unquoted(v) == value {
					left--
					break
				}
			}
		}
		if left == 0 {
			return true
		}
	}
	return false
}

func unquoted(s string) string {
	s, _, _ = strings.Cut(s, " #")
	return strings.Trim(strings.TrimRight(strings.TrimSpace(s), ",}"), `"'`)
}

// component reports whether a container has the name of an injected one.
func component(name string) bool {
	return slices.Contains(sidecars.All().Sidecars(), name)
}

// more returns the number of further places: "" or " (and 3 more)".
func more(n int, what string) string {
	if n <= 1 {
		return ""
	}
	return " (and " + text.Count(n-1, "more "+what) + ")"
}
