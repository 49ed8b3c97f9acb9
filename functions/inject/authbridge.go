package inject

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/profile"
)

// This file is what AuthBridge asks of the agent's containers, as of rossoctl/cortex da955ea.

// proxyVariables lead an application to the forward proxy.
var proxyVariables = []string{"HTTP_PROXY", "HTTPS_PROXY"}

const noProxy = "127.0.0.1,localhost"

// authBridge appends the variables by which an application finds its port and the
// forward proxy, and records them. A variable that the author set stays.
func (r *record) authBridge(env []byte, c krm.Node, s *identity.Settings, pod krm.PodTemplate) []byte {
	if !s.On(profile.AuthBridgeProxy) {
		return env
	}
	name, own := c.Get("name").Text(), c.Get("env")
	add := func(variable, value string) {
		if itemNamed(own, variable).Exists() {
			return
		}
		env = append(env, "- name: "+variable+"\n  value: \""+value+"\"\n"...)
		r.variable(name, variable)
	}
	if movesAgent(c, s, pod) {
		add("PORT", strconv.Itoa(s.Inbound.TargetPort))
	}
	if s.Outbound.Enabled {
		for _, variable := range proxyVariables {
			add(variable, "http://127.0.0.1:"+strconv.Itoa(s.AuthBridge.ForwardPort))
		}
		add("NO_PROXY", noProxy)
	}
	return env
}

// movesAgent reports whether a container is the agent's, and listens where the
// variable PORT says.
func movesAgent(c krm.Node, s *identity.Settings, pod krm.PodTemplate) bool {
	return s.On(profile.AuthBridgeProxy) && s.Inbound.Enabled && c.Get("name").Text() == identity.AgentContainer(pod).Get("name").Text()
}

// overwritePort gives the author's variable PORT the value of the agent's new port.
func (r *record) overwritePort(o *krm.Object, port krm.Node, container string, s *identity.Settings) error {
	value, target := port.Get("value"), strconv.Itoa(s.Inbound.TargetPort)
	if from := port.Get("valueFrom"); from.Exists() {
		value = from
	} else if value.Is(target) && value.IsText() {
		return nil
	}
	return r.setField(o, port, value, field{At: envPath + container, Value: target}, "value")
}

// authBridgeValue reports whether a variable's value is one that authBridge gives.
func authBridgeValue(variable, value string) bool {
	switch {
	case variable == "PORT":
		_, err := strconv.Atoi(value)
		return err == nil
	case variable == "NO_PROXY":
		return value == noProxy
	}
	return slices.Contains(proxyVariables, variable) && strings.HasPrefix(value, "http://127.0.0.1:")
}

// checkAuthBridge finds what keeps an agent from moving to another port, and its
// requests from the forward proxy.
func checkAuthBridge(o *krm.Object, pod krm.PodTemplate, s *identity.Settings) (findings []krm.Finding) {
	if !s.On(profile.AuthBridgeProxy) {
		return nil
	}
	if s.Inbound.Enabled {
		findings = checkAgentPort(o, identity.AgentContainer(pod), s)
	}
	if !s.Outbound.Enabled {
		return findings
	}
	for c := range pod.Spec().Get("containers").Items() {
		for v := range c.Get("env").Items() {
			if name := v.Get("name").Text(); slices.Contains(proxyVariables, strings.ToUpper(name)) {
				findings = append(findings, o.Finding(krm.Warning, "inject/own-proxy", v.Get("name"),
					fmt.Sprintf("the application sets %s itself, so that its requests do not pass AuthBridge's forward proxy and their tokens are not exchanged", name), "leave the variable out"))
			}
		}
	}
	return findings
}

// checkAgentPort finds an agent that goes on listening where the reverse proxy does.
func checkAgentPort(o *krm.Object, agent krm.Node, s *identity.Settings) (findings []krm.Finding) {
	in := strconv.Itoa(s.Inbound.Port)
	if own := identity.PortVariable(agent); own.Get("value").Exists() && own.Get("valueFrom").Exists() {
		findings = append(findings, o.Finding(krm.Error, "inject/own-port", own,
			"the variable PORT has both a value and a valueFrom", "remove the one that does not count"))
	}
	for _, list := range [...]string{"command", "args"} {
		for word := range agent.Get(list).Items() {
			if namesPort(word.Text(), in) {
				findings = append(findings, o.Finding(krm.Error, "inject/port-in-arguments", word,
					fmt.Sprintf("the command line sets the port %s, which AuthBridge takes", in),
					fmt.Sprintf("write $(PORT) in place of %s, which Kubernetes replaces by %d; or leave the port to the agent: annotate %s/inbound-port: \"%d\", and lead Services to that port", in, s.Inbound.TargetPort, s.Prefix, s.Inbound.TargetPort)))
			}
		}
	}
	return findings
}

// namesPort reports whether a word of a command line, or one of a script in it, is a
// port or ends with one to listen on: 8080, :8080, 0.0.0.0:8080, --port=8080.
func namesPort(line, port string) bool {
	return slices.ContainsFunc(strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\r\n;&|()'\"", r) }), func(word string) bool {
		rest, found := strings.CutSuffix(word, port)
		host, address := strings.CutSuffix(rest, ":")
		if !found || !address {
			return found && (rest == "" || strings.HasSuffix(rest, "="))
		}
		host = host[strings.LastIndexAny(host, "=/")+1:]
		return strings.HasPrefix(host, "$") || slices.Contains([]string{"", "0.0.0.0", "127.0.0.1", "localhost", "*", "[::]", "[::1]"}, host)
	})
}
