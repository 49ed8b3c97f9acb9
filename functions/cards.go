package functions

import (
	"fmt"
	"sync"

	"github.com/armature-dev/armature/functions/agentcard"
	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/krm"
)

// cardIndex finds the AgentCards whose selector matches a workload's pods.
// Many workloads may ask at once.
type cardIndex struct {
	cards []*custom[api.AgentCard]

	mu      sync.Mutex
	matched map[*custom[api.AgentCard]]bool
}

func (x *cardIndex) add(c *custom[api.AgentCard]) { x.cards = append(x.cards, c) }

func (x *cardIndex) any() bool { return len(x.cards) > 0 }

// match notes the cards that select pods of a template in a namespace.
func (x *cardIndex) match(namespace string, pod krm.PodTemplate) {
	for _, c := range x.cards {
		if c.Namespace == namespace && agentcard.Matches(c.value.Spec.Selector, pod.Label) {
			x.mu.Lock()
			if x.matched == nil {
				x.matched = make(map[*custom[api.AgentCard]]bool)
			}
			x.matched[c] = true
			x.mu.Unlock()
		}
	}
}

// Finish gives the findings that only the whole package shows, after its last
// object.
func (p *Package) Finish() (findings []krm.Finding) {
	for _, c := range p.cards.cards {
		if !p.cards.matched[c] {
			findings = append(findings, c.Finding(krm.Warning, "agent-card/no-target", c.Get("spec", "selector"),
				fmt.Sprintf("no workload of the package in the namespace of AgentCard %s has these pod labels", c.Name),
				"correct the labels, unless the workload is deployed from elsewhere"))
		}
	}
	return append(findings, p.overcommit.summary()...)
}
