package agent

import (
	"cmp"
	"fmt"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/internal/node"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// servicePorts are the author's, or one for what the containers declare.
func (e *expander) servicePorts() []api.ServicePort {
	ports := e.agent.Spec.ServicePorts
	if len(ports) == 0 && e.generation.completes { // the operator does not look at the containers
		return []api.ServicePort{{Name: "http", Protocol: "TCP", Port: e.generation.port,
			TargetPort: e.generation.port}}
	}
	if len(ports) == 0 {
		port := e.generation.port
		for _, c := range node.Items(e.spec, "containers") {
			if declared := node.Items(c, "ports"); len(declared) > 0 {
				if n, ok := scalar.Int(node.Text(declared[0], "containerPort")); ok {
					port = n
				}
				break
			}
		}
		return []api.ServicePort{{Name: "http", Protocol: "TCP", Port: port, TargetPort: port}}
	}
	names := make(map[string]bool)
	for i := range ports {
		p := &ports[i]
		at := fmt.Sprintf("spec.servicePorts[%d]", i)
		if p.Port < 1 || p.Port > 65535 {
			e.error("port", at+".port", fmt.Sprintf("%d is not a port", p.Port), "use 1 to 65535")
		}
		if p.Name == "" && len(ports) > 1 {
			e.error("port", at, "one of several ports has no name", "name it: Kubernetes demands it")
		}
		if names[p.Name] {
			e.error("port", at+".name", fmt.Sprintf("a second port is named %q", p.Name), "rename one of the two")
		}
		names[p.Name] = true
		switch p.TargetPort.(type) {
		case nil, string, int64:
		default:
			e.error("port", at+".targetPort", "neither a number nor a name", "correct the value")
		}
	}
	return ports
}

// networkPolicy lets the pods of the namespace in, at the Service's ports, and
// nobody else.
func (e *expander) networkPolicy(ports []api.ServicePort) {
	var open []node.Fields
	for _, p := range ports {
		if p.TargetPort == nil {
			p.TargetPort = p.Port
		}
		open = append(open, node.Map("protocol", cmp.Or(p.Protocol, "TCP"), "port", p.TargetPort))
	}
	e.add("networking.k8s.io/v1", "NetworkPolicy", e.Name, nil, node.Map("spec", node.Map(
		"podSelector", node.Map("matchLabels", e.selector()), "policyTypes", []string{"Ingress"},
		"ingress", []node.Fields{node.Map(
			"from", []node.Fields{node.Map("podSelector", node.Fields{})}, "ports", open)})))
}
