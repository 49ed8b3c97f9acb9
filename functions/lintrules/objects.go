package lintrules

import (
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/images"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
)

func invalidField(c *checker) {
	if c.Schema == nil {
		return
	}
	c.Schema(c.Object, func(at krm.Node, message, hint string) {
		if !images.HasVariable(at.Text()) && !images.HasVariable(at.Key()) {
			c.report(at, hint, "%s", message)
		}
	})
}

// selectorMismatch compares the selector of a workload with the labels of its pod template.
func selectorMismatch(c *checker) {
	if !c.isPod || c.Group() != "apps" {
		return
	}
	selector, labels := c.Get("spec", "selector"), c.pod.Template.Get("metadata", "labels")
	const hint = "write the same label in spec.selector and in the pod template: the API " +
		"server refuses the object"
	for key, want := range selector.Get("matchLabels").Fields() {
		switch is := labels.Get(key); {
		case images.HasVariable(want.Text()) || images.HasVariable(is.Text()) || is.Is(want.Text()):
		case !is.Exists():
			c.report(want, hint, "the pod template has no label %s", key)
		default:
			c.report(want, hint, "the pod template has %s: %s", key, text.Shown(is.Text()))
		}
	}
	for e := range selector.Get("matchExpressions").Items() {
		is, among := labels.Get(e.Get("key").Text()), false
		for value := range e.Get("values").Items() {
			among = among || is.Is(value.Text()) ||
				images.HasVariable(value.Text()) || images.HasVariable(is.Text())
		}
		operator := e.Get("operator")
		if operator.Is("In") && !among || operator.Is("Exists") &&
			!is.Exists() || operator.Is("DoesNotExist") && is.Exists() {
			c.report(e, hint, "the labels of the pod template do not satisfy it")
		}
	}
}

// missingPort reports names of ports that do not exist. A number needs no declaration.
func missingPort(c *checker) {
	// A patch, which has no selector, does not list all ports.
	if c.Group() != "apps" || c.Get("spec", "selector").Len() > 0 {
		for _, x := range c.facts.containers {
			for _, at := range probePorts(x.node) {
				if named(at) && !slices.Contains(x.portNames(), at.Text()) {
					c.report(at, hintPort(at.Text(), x.portNames()),
						"the container %s has no port named %s", x.name, at.Text())
				}
			}
		}
	}
	if c.Kind != "Service" || c.Group() != "" || c.Get("spec", "type").Is("ExternalName") {
		return
	}
	pods := c.selected(c.Namespace, c.Get("spec", "selector"))
	for p := range c.Get("spec", "ports").Items() {
		target := p.Get("targetPort")
		has := func(pod *pod) bool { _, _, ok := pod.target(target.Text()); return ok }
		if named(target) && len(pods) > 0 && !slices.ContainsFunc(pods, has) {
			var names []string
			for _, x := range pods[0].containers {
				if x.runs {
					names = append(names, x.portNames()...)
				}
			}
			c.report(target, hintPort(target.Text(), names),
				"%s has no container port named %s", pods[0].ref, target.Text())
		}
	}
}

// probePorts returns the ports of a container's probes and hooks.
func probePorts(container krm.Node) (ports []krm.Node) {
	for _, probe := range [...]krm.Node{container.Get("livenessProbe"),
		container.Get("readinessProbe"), container.Get("startupProbe"),
		container.Get("lifecycle", "postStart"), container.Get("lifecycle", "preStop")} {
		ports = append(ports, probe.Get("httpGet", "port"), probe.Get("tcpSocket", "port"))
	}
	return ports
}

// named reports whether a port is given by its name.
func named(port krm.Node) bool {
	return port.IsText() && strings.Trim(port.Text(), "0123456789") != "" &&
		!images.HasVariable(port.Text())
}

func (x *container) portNames() (names []string) {
	for _, p := range x.ports {
		if p.name != "" {
			names = append(names, p.name)
		}
	}
	return names
}

func hintPort(name string, names []string) string {
	if near := text.Nearest(name, names); near != "" {
		return "did you mean " + near + "?"
	}
	if len(names) == 0 {
		return "name the port in the container's ports, or write its number"
	}
	return "write its number, or one of the names " + strings.Join(names, ", ")
}

// target resolves a Service's target port to a number and its container.
func (p *pod) target(name string) (number int, owner string, ok bool) {
	for _, c := range p.containers {
		for _, port := range c.ports {
			if c.runs && (port.name == name || strconv.Itoa(port.number) == name) {
				return port.number, c.name, true
			}
		}
	}
	return 0, "", false
}
