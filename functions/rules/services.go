package rules

import (
	"fmt"

	"github.com/armature-dev/armature/functions/api/keys"
)

// bypassAuthProxy looks at where the ports of a Service end. auth-proxy's port
// and Envoy's for what comes in are the ports that an injected pod is reached by.
func bypassAuthProxy(c *checker) {
	if c.Kind != "Service" {
		return
	}
	pods := c.selected(c.Namespace, c.Get("spec", "selector"))
	for p := range c.Get("spec", "ports").Items() {
		at := p.Get("targetPort")
		if !at.IsScalar() {
			at = p.Get("port")
		}
		for _, pod := range pods {
			if pod.authProxy == 0 {
				continue
			}
			number, owner, declared := pod.target(at.Text())
			if !declared {
				number, _ = at.Int()
				owner = "the application"
			}
			if number == 0 || number == pod.authProxy || number == pod.inbound {
				continue
			}
			c.report(at, fmt.Sprintf("leads to port %d of %s in %s, past auth-proxy", number, owner, pod.ref),
				fmt.Sprintf("set targetPort: auth-proxy (%d); where the port is meant to be open, such as one for metrics, annotate the Service %s: bypass-auth-proxy", pod.authProxy, keys.LintIgnore))
			break
		}
	}
}

// duplicateTarget finds objects that conflict over one workload, or where only
// one takes effect.
func duplicateTarget(c *checker) {
	switch c.Kind {
	case "HorizontalPodAutoscaler", "ScaledObject":
		target := scaled(c.Object)
		if first := c.collected.scalers[target][0]; first != c.Ref {
			c.report(c.Get("spec", "scaleTargetRef"), fmt.Sprintf("%s scales %s %s already", first, target.kind, target.name),
				"keep one: two autoscalers undo each other's work, and a ScaledObject makes an autoscaler of its own")
		}
	case "PodDisruptionBudget":
		labels := c.Get("spec", "selector", "matchLabels")
		for _, pod := range c.selected(c.Namespace, labels) {
			first, guarded := c.collected.guards[pod]
			if !guarded {
				first, c.collected.guards[pod] = c.Ref, c.Ref
			}
			if first != c.Ref {
				c.report(labels, fmt.Sprintf("%s guards %s already", first, pod.ref), "keep one: pods with two PodDisruptionBudgets cannot be evicted")
				return
			}
		}
	}
}
