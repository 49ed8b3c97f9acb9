package identity

import (
	"cmp"
	"fmt"
	"net/url"
	"strconv"
)

// metrics finds a clash of the agent's metrics with what is injected.
func checkMetrics(c *Checker, s *Settings) {
	p := s.Trace.Prometheus
	if !p.Enabled {
		return
	}
	for _, l := range s.listeners() {
		// An agent may serve its metrics where it serves everything else.
		if l.Port == p.Port && !l.Agent {
			c.Warning("identity/port-clash", metricsPort,
				fmt.Sprintf("the agent's metrics are on port %d, which %s uses", p.Port, l.Name),
				"serve metrics on another port, such as 9464")
			return
		}
	}
}

// contradictions finds settings that are right each for itself and wrong
// together. s has been settled.
func (c *Checker) contradictions(s *Settings) {
	ports := s.listeners()
	for i, a := range ports {
		for _, b := range ports[:i] {
			if a.Port == b.Port {
				hint := "give one of them another port"
				if annotation := cmp.Or(a.Annotation(), b.Annotation()); annotation != "" {
					hint += fmt.Sprintf(", for one workload with the annotation %s: %q", annotation, strconv.Itoa(s.FreePort(a.Port, nil)))
				}
				c.Error("identity/port-clash", a.Field,
					fmt.Sprintf("port %d is for %s and for %s", a.Port, b.Name, a.Name),
					hint+"; containers of a pod share their ports")
			}
		}
	}
	if s.Profile.Rules.Contradictions != nil {
		s.Profile.Rules.Contradictions(c, s)
	}
}

// portOf returns the port of a URL, given or implied by the scheme; 0 for other schemes.
func portOf(raw string) int {
	u, err := url.Parse(raw)
	if err != nil {
		return 0
	}
	if n, err := strconv.Atoi(u.Port()); err == nil {
		return n
	}
	switch u.Scheme {
	case "http":
		return 80
	case "https":
		return 443
	}
	return 0
}
