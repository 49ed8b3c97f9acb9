package identity

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strconv"

	"github.com/armature-dev/armature/functions/krm"
)

// The containers of a pod share its network. A sidecar declares its ports in Sidecar.Ports.
// This file finds clashes between sidecars and with the agent's metrics; package sidecars compares
// them with the ports that the author's containers declare.

// Port is a TCP port on which a program in the pod listens.
type Port struct {
	Number int
	// ContainerPort is the port's name in the ports of the container, "" if the container
	// does not declare it.
	ContainerPort string
	// Name describes the listener: "Envoy's outbound listener".
	Name string
	// Field is the setting of the port, and Key its annotation, "" if the port is built into the
	// program.
	Field, Key string
	// Agent says that the agent listens, and Declared that its containers declare the port.
	Agent, Declared bool

	// Component is the sidecar that declares the port.
	Component string

	prefix string
}

// Annotation returns the annotation that moves the listener to another port. It is empty if the
// port is built into the program.
func (p Port) Annotation() string {
	if p.Key == "" {
		return ""
	}
	return p.prefix + "/" + p.Key
}

// Ports returns all ports of the pod, those that are built into programs first. It requires settled
// settings. Workloads may share the result.
func (s *Settings) Ports() []Port {
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

// InjectedPorts returns the ports of the injected containers, which share the network with the
// author's. It requires resolved settings.
func (s *Settings) InjectedPorts() []Port {
	return slices.DeleteFunc(slices.Clone(s.Ports()), Port.Authored)
}

// Authored reports whether a container of the author's listens or declares the port.
func (p Port) Authored() bool { return p.Agent || p.Declared }

// TargetPortAnnotation returns the annotation with the port of the agent.
func (s *Settings) TargetPortAnnotation() string { return s.Prefix + "/" + TargetPort }

// FreePort returns the first free port of the pod from a given one on, or the given one if none is
// free.
func (s *Settings) FreePort(from int, declared []int) int {
	taken, port := s.Ports(), from
	for range 1 << 16 {
		if !slices.Contains(declared, port) &&
			!slices.ContainsFunc(taken, func(p Port) bool { return p.Number == port }) {
			return port
		}
		port = port%65535 + 1
	}
	return from
}

// portClashes reports settings that put two listeners on one port.
func (c *Checker) portClashes(s *Settings) {
	ports := s.Ports()
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

// metricsClash reports a clash of the agent's metrics with an injected listener. An agent may serve
// its metrics on the port of its other requests.
func (c *Checker) metricsClash(s *Settings) {
	metrics := s.Trace.Prometheus
	if !metrics.Enabled {
		return
	}
	for _, p := range s.Ports() {
		if p.Number == metrics.Port && !p.Agent {
			c.Warning("identity/port-clash", metricsPort,
				fmt.Sprintf("the agent's metrics are on port %d, which %s uses", metrics.Port,
					p.Name),
				"serve metrics on another port, such as 9464")
			return
		}
	}
}

// TCPPorts yields the TCP ports that a container declares, with 0 for an invalid one.
func TCPPorts(container krm.Node) iter.Seq2[krm.Node, int] {
	return func(yield func(krm.Node, int) bool) {
		for p := range container.Get("ports").Items() {
			if protocol := p.Get("protocol"); protocol.Is("UDP") || protocol.Is("SCTP") {
				continue // these protocols have ports of their own
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
