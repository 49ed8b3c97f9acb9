package identity

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
)

// The containers of a pod share its network. A sidecar declares its ports in Sidecar.Ports.
// This file finds those that clash: with each other, with the agent's metrics, and with the
// ports that the author's containers declare.

// Port is a TCP port on which something in the pod listens.
type Port struct {
	Number int
	// ContainerPort is the port's name in the ports of the container, "" if the container
	// does not declare it.
	ContainerPort string
	// Name says what listens: "Envoy's outbound listener".
	Name string
	// Field is the setting that decides the port, and Key its annotation, "" where the
	// port is built into the program.
	Field, Key string
	// Agent says that the agent listens, Declared that its containers declare the port.
	Agent, Declared bool

	// Component is the sidecar that declares the port.
	Component string

	prefix string
}

// Annotation moves it to another port, with the label prefix. It is empty where the
// port is built into the program.
func (p Port) Annotation() string {
	if p.Key == "" {
		return ""
	}
	return p.prefix + "/" + p.Key
}

// ports are all ports of the pod, those that are built into programs first. s has been
// settled. The result may be that of other workloads.
func (s *Settings) ports() []Port {
	if s.shape != nil {
		return s.shape.ports
	}
	ports := make([]Port, 0, 8)
	for i := range s.Profile.Sidecars {
		x, from := &s.Profile.Sidecars[i], len(ports)
		if x.Ports == nil || !s.Components[i].Enabled {
			continue
		}
		ports = x.Ports(ports, s)
		for j := from; j < len(ports); j++ {
			ports[j].prefix, ports[j].Component = s.Prefix, x.Name
		}
	}
	ports = slices.DeleteFunc(ports, func(p Port) bool { return p.Number <= 0 })
	slices.SortStableFunc(ports, func(a, b Port) int {
		return min(1, len(a.Key)) - min(1, len(b.Key))
	})
	return ports
}

// InjectedPorts are the ports of the injected containers, which share them with
// the author's. s has been resolved.
func (s *Settings) InjectedPorts() []Port {
	return slices.DeleteFunc(slices.Clone(s.ports()), Port.authored)
}

// authored reports whether a container of the author's listens or declares the port.
func (p Port) authored() bool { return p.Agent || p.Declared }

// TargetPortAnnotation says where the agent listens.
func (s *Settings) TargetPortAnnotation() string { return s.Prefix + "/" + TargetPort }

// FreePort returns the first port from a given one on that nothing in the pod has.
func (s *Settings) FreePort(from int, declared []int) int {
	taken := s.ports()
	for port := from; ; port = port%65535 + 1 {
		if !slices.Contains(declared, port) &&
			!slices.ContainsFunc(taken, func(p Port) bool { return p.Number == port }) {
			return port
		}
	}
}

// portClashes finds settings that put two listeners on one port.
func (c *Checker) portClashes(s *Settings) {
	ports := s.ports()
	for i, a := range ports {
		for _, b := range ports[:i] {
			if a.Number != b.Number {
				continue
			}
			hint := "give one of them another port"
			if annotation := cmp.Or(a.Annotation(), b.Annotation()); annotation != "" {
				free := strconv.Itoa(s.FreePort(a.Number, nil))
				hint += fmt.Sprintf(", for one workload with the annotation %s: %q", annotation, free)
			}
			c.Error("identity/port-clash", a.Field,
				fmt.Sprintf("port %d is for %s and for %s", a.Number, b.Name, a.Name),
				hint+"; containers of a pod share their ports")
		}
	}
}

// metricsClash finds a clash of the agent's metrics with what is injected. An agent may
// serve its metrics where it serves everything else.
func (c *Checker) metricsClash(s *Settings) {
	metrics := s.Trace.Prometheus
	if !metrics.Enabled {
		return
	}
	for _, p := range s.ports() {
		if p.Number == metrics.Port && !p.Agent {
			c.Warning("identity/port-clash", metricsPort,
				fmt.Sprintf("the agent's metrics are on port %d, which %s uses", metrics.Port,
					p.Name),
				"serve metrics on another port, such as 9464")
			return
		}
	}
}

// CheckPorts compares the TCP ports that the author's containers declare with those of the
// sidecars.
func CheckPorts(o *krm.Object, pod krm.PodTemplate, s *Settings) (findings []finding.Finding) {
	var few [8]int // most pods have no more ports
	var fewNodes [8]krm.Node
	declared, nodes := few[:0], fewNodes[:0]
	for _, c := range pod.Containers() {
		for at, port := range tcpPorts(c) {
			if port > 0 {
				declared, nodes = append(declared, port), append(nodes, at)
			} else if f, unreadable := unreadablePort(o, at, s); unreadable {
				findings = append(findings, f)
			}
		}
	}

	ports := s.ports()
	for n, at := range nodes {
		if i := slices.IndexFunc(ports, func(p Port) bool {
			return p.Number == declared[n] && !p.authored()
		}); i >= 0 {
			findings = append(findings, o.Finding(finding.Error, "inject/port-clash", at,
				fmt.Sprintf("port %d belongs to %s", declared[n], ports[i].Name),
				portRemedy(ports[i], s, &declared)))
		}
	}

	if len(declared) == 0 || s.Profile.FollowsPorts || finding.Failed(findings) {
		return findings
	}
	for _, p := range ports {
		if p.Agent && !slices.Contains(declared, p.Number) {
			findings = append(findings,
				o.Finding(finding.Warning, "inject/target-port", pod.Spec().Get("containers"),
					fmt.Sprintf("%s forwards to port %d, which no container declares", p.Component,
						p.Number),
					fmt.Sprintf("annotate %s: \"%d\"", p.Annotation(), declared[0])))
		}
	}
	return findings
}

// tcpPorts yields the TCP ports that a container declares, with 0 for what is not a port.
func tcpPorts(container krm.Node) iter.Seq2[krm.Node, int] {
	return func(yield func(krm.Node, int) bool) {
		for p := range container.Get("ports").Items() {
			if protocol := p.Get("protocol"); protocol.Is("UDP") || protocol.Is("SCTP") {
				continue // which have ports of their own
			}
			at := p.Get("containerPort")
			port, ok := at.Int()
			if !at.Exists() {
				at, ok = p, false
			}
			if !ok || port < 0 || port >= 1<<16 {
				port = 0
			}
			if !yield(at, port) {
				return
			}
		}
	}
}

// unreadablePort finds a containerPort that is not a port. A variable that another program
// replaces after the render is accepted if annotations name the ports instead.
func unreadablePort(o *krm.Object, at krm.Node, s *Settings) (f finding.Finding, found bool) {
	hint := "write a number without quotes"
	if _, number := at.Int(); number {
		hint = "write a number from 1 to 65535"
	}
	if strings.Contains(at.Text(), "$") || strings.Contains(at.Text(), "{{") {
		target, inbound := s.TargetPortAnnotation(), s.Prefix+"/"+InboundPort
		_, named := o.Annotation(target)
		hint = "a render reads it before Flux or another program replaces the variable: write " +
			"the number, or annotate " + target
		if s.Profile.FollowsPorts {
			_, both := o.Annotation(inbound)
			named = named && both
			hint = fmt.Sprintf(
				"a render reads it before Flux or another program replaces the variable: write "+
					"the number, or annotate %s with the port of the agent's requests and %s "+
					"with the one on which it is to listen", inbound, target)
		}
		if named {
			return finding.Finding{}, false
		}
	}
	message := fmt.Sprintf("%q is not a number from 1 to 65535", text.Shown(at.Text()))
	if at.Key() != "containerPort" {
		message, hint = "it has no containerPort", "write it as - containerPort: 8080"
	}
	return o.Finding(finding.Error, "inject/unreadable-port", at, message, hint), true
}

// portRemedy says how an application keeps a port that it declares. A port that
// it returns away counts as declared from then on.
func portRemedy(p Port, s *Settings, declared *[]int) string {
	target := s.Inbound.TargetPort
	switch {
	case p.Annotation() == "":
		return fmt.Sprintf(
			"move the application to another port, because this one is built into the "+
				"injected program; or do without that program: annotate %s/%s: disabled", s.Prefix,
			p.Component)
	case p.Key == InboundPort && !slices.Contains(*declared, target): // which is free for it
		*declared = append(*declared, target)
		return fmt.Sprintf("annotate %s: \"%d\" and %s: \"%d\"", s.TargetPortAnnotation(), p.Number,
			p.Annotation(), target)
	}
	free := s.FreePort(p.Number, *declared)
	*declared = append(*declared, free)
	return fmt.Sprintf("annotate %s: \"%d\"", p.Annotation(), free)
}
