package identity

import (
	"strconv"

	"github.com/armature-dev/armature/functions/krm"
)

// agentPorts reads the TCP ports that the containers of a pod declare, and the port
// that the author gives the agent with the variable PORT.
func agentPorts(pod krm.PodTemplate) (ports []int, env int) {
	for c := range pod.Spec().Get("containers").Items() {
		for _, port := range tcpPorts(c) {
			if port > 0 { // others are errors of the function inject
				ports = append(ports, port)
			}
		}
	}
	if text := PortVariable(AgentContainer(pod)).Get("value").Text(); validPort(text) {
		env, _ = strconv.Atoi(text)
	}
	return ports, env
}

// PortVariable is the variable of a container that says where it listens: of several
// the last, as for the kubelet.
func PortVariable(container krm.Node) (port krm.Node) {
	for v := range container.Get("env").Items() {
		if v.Get("name").Is("PORT") {
			port = v
		}
	}
	return port
}

// AgentContainer is the one whose port AuthBridge takes: the first with a TCP port,
// or the first at all.
func AgentContainer(pod krm.PodTemplate) (agent krm.Node) {
	for c := range pod.Spec().Get("containers").Items() {
		if !agent.Exists() {
			agent = c
		}
		for range tcpPorts(c) {
			return c
		}
	}
	return agent
}
