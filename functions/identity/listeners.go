package identity

import "slices"

// Listener is a port on which something in the pod listens.
type Listener struct {
	Port int
	// Name says what listens: "Envoy's outbound listener".
	Name string
	// Field is the setting that decides the port, and Key its annotation, "" where the
	// port is built into the program.
	Field, Key string
	// Agent says that the agent listens, Declared that its containers declare the port.
	Agent, Declared bool

	// Component is the injected container that listens, "" for the agent.
	Component string

	prefix string
}

// Annotation moves it to another port, with the label prefix. It is empty where the
// port is built into the program.
func (l Listener) Annotation() string {
	if l.Key == "" {
		return ""
	}
	return l.prefix + "/" + l.Key
}

// InjectedPorts are the ports of the injected containers, which share them with
// the author's. s has been resolved.
func (s *Settings) InjectedPorts() []Listener {
	return slices.DeleteFunc(s.listeners(), func(l Listener) bool { return l.Agent || l.Declared })
}

// TargetPortAnnotation says where the agent listens.
func (s *Settings) TargetPortAnnotation() string { return s.Prefix + "/" + TargetPort }

// listeners are all that listens in the pod, what is built into programs first. s has
// been settled.
func (s *Settings) listeners() []Listener {
	ports := make([]Listener, 0, 7)
	for i := range s.Profile.Sidecars {
		x, from := &s.Profile.Sidecars[i], len(ports)
		if x.Ports == nil || !s.Components[i].Enabled {
			continue
		}
		ports = x.Ports(ports, s)
		for i := from; i < len(ports); i++ {
			if l := &ports[i]; !l.Agent {
				l.Component = x.Name
			}
			ports[i].prefix = s.Prefix
		}
	}
	ports = slices.DeleteFunc(ports, func(l Listener) bool { return l.Port <= 0 })
	slices.SortStableFunc(ports, func(a, b Listener) int { return min(1, len(a.Key)) - min(1, len(b.Key)) })
	return ports
}

// FreePort gives the first port from a given one on that nothing in the pod has.
func (s *Settings) FreePort(from int, declared []int) int {
	taken := s.listeners()
	for port := from; ; port = port%65535 + 1 {
		if !slices.Contains(declared, port) && !slices.ContainsFunc(taken, func(l Listener) bool { return l.Port == port }) {
			return port
		}
	}
}
