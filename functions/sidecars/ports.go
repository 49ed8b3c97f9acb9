package sidecars

import (
	"fmt"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
)

// CheckPorts reports clashes of the TCP ports that the author's containers declare with those of
// the sidecars.
func CheckPorts(o *krm.Object, pod krm.PodTemplate, s *identity.Settings) (findings []finding.Finding) {
	var few [8]int // most pods have no more ports
	var fewNodes [8]krm.Node
	declared, nodes := few[:0], fewNodes[:0]
	for _, c := range pod.Containers() {
		for at, port := range identity.TCPPorts(c) {
			if port > 0 {
				declared, nodes = append(declared, port), append(nodes, at)
			} else if f, unreadable := unreadablePort(o, at, s); unreadable {
				findings = append(findings, f)
			}
		}
	}

	ports := s.Ports()
	for n, at := range nodes {
		if i := slices.IndexFunc(ports, func(p identity.Port) bool {
			return p.Number == declared[n] && !p.Authored()
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

// unreadablePort reports a containerPort that is not a port. It accepts a variable that another
// program replaces after the render if annotations name the ports instead.
func unreadablePort(o *krm.Object, at krm.Node, s *identity.Settings) (f finding.Finding, found bool) {
	hint := "write a number without quotes"
	if _, number := at.Int(); number {
		hint = "write a number from 1 to 65535"
	}
	if strings.Contains(at.Text(), "$") || strings.Contains(at.Text(), "{{") {
		target, inbound := s.TargetPortAnnotation(), s.Prefix+"/"+identity.InboundPort
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

// portRemedy returns the hint for an application whose declared port clashes. It adds a port that
// it proposes to declared.
func portRemedy(p identity.Port, s *identity.Settings, declared *[]int) string {
	target := s.Inbound.TargetPort
	switch {
	case p.Annotation() == "":
		return fmt.Sprintf(
			"move the application to another port, because this one is built into the "+
				"injected program; or do without that program: annotate %s/%s: disabled", s.Prefix,
			p.Component)
	case p.Key == identity.InboundPort && !slices.Contains(*declared, target): // the target port is free
		*declared = append(*declared, target)
		return fmt.Sprintf("annotate %s: \"%d\" and %s: \"%d\"", s.TargetPortAnnotation(), p.Number,
			p.Annotation(), target)
	}
	free := s.FreePort(p.Number, *declared)
	*declared = append(*declared, free)
	return fmt.Sprintf("annotate %s: \"%d\"", p.Annotation(), free)
}
