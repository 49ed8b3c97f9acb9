package agentcard

import (
	_ "embed"
	"fmt"
	"iter"
	"slices"
	"sync"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
)

//go:embed README.md
var page string

const function = "agent-card"

// Function compiles AgentCards.
func Function() contract.Function {
	return contract.Function{
		Name:    function,
		Summary: "compile the static part of AgentCard for discovery",
		Page:    page,
		Kinds: []contract.Kind{{
			Name: "AgentCard", Groups: append(contract.Pillars[:2:2], contract.Agents...),
			Versions: []string{"v1alpha1"}, Own: true,
		}},
		New: begin,
	}
}

// state holds the AgentCards of a package.
type state struct {
	pkg   *contract.Package
	cards []*card
	at    map[expand.Place][]*card

	// selecting are the cards that look for workloads by their labels, under one of these, or under
	// none if a card has only expressions. Workloads are matched concurrently.
	selecting map[label][]*card
	mu        sync.Mutex
}

type label struct{ namespace, key, value string }

type card struct {
	object  *krm.Object
	value   api.AgentCard
	matched bool // its selector selects a workload
}

func begin(p *contract.Package) contract.Steps {
	s := &state{pkg: p, at: make(map[expand.Place][]*card), selecting: make(map[label][]*card)}
	return contract.Steps{Collect: s.collect, Resolve: s.resolve, Run: s.run, Finish: s.finish}
}

func (s *state) collect(o *krm.Object) {
	c := &card{object: o}
	s.pkg.Report.Decode(o, function+"/field", &c.value)
	c.value.Origin = contract.OriginOf(o)
	s.pkg.Report.Add(Check(&c.value)...)
	s.cards = append(s.cards, c)
	at := expand.Place{Origin: o.Origin, Ref: o.Ref}
	s.at[at] = append(s.at[at], c)
}

func (s *state) resolve() {
	cards := make(map[label]int) // that name a label: all of a team may name one
	for _, c := range s.cards {
		for l := range c.labels() {
			cards[l]++
		}
	}
	for _, c := range s.cards {
		if ref := c.value.Spec.TargetRef; ref != nil {
			s.pkg.Target(function, c.object, *ref, true)
		} else if c.value.Spec.Selector != nil {
			rarest := label{namespace: c.object.Namespace}
			for l := range c.labels() {
				if rarest.key == "" || cards[l] < cards[rarest] {
					rarest = l
				}
			}
			s.selecting[rarest] = append(s.selecting[rarest], c)
		}
	}
}

// labels yields the labels of a card's selector.
func (c *card) labels() iter.Seq[label] {
	return func(yield func(label) bool) {
		if c.value.Spec.Selector == nil {
			return
		}
		for key, value := range c.value.Spec.Selector.MatchLabels {
			if !yield(label{c.object.Namespace, key, value}) {
				return
			}
		}
	}
}

func (s *state) run(u *contract.Unit) {
	o := u.Object
	if pod, ok := o.PodTemplate(); ok {
		s.match(label{namespace: o.Namespace}, pod)
		for key, value := range pod.Template.Get("metadata", "labels").Fields() {
			s.match(label{o.Namespace, key, value.Text()}, pod)
		}
	}
	for _, c := range s.at[expand.Place{Origin: o.Origin, Ref: o.Ref}] {
		u.Generate(Name(c.object.Name), AppendConfigMap(nil, &c.value))
	}
}

// match marks the cards that select a pod. A card needs to match once.
func (s *state) match(under label, pod krm.PodTemplate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cards := s.selecting[under]; len(cards) > 0 {
		s.selecting[under] = slices.DeleteFunc(cards, func(c *card) bool {
			c.matched = Matches(c.value.Spec.Selector, pod.Label)
			return c.matched
		})
	}
}

func (s *state) finish() (findings []finding.Finding) {
	for _, c := range s.cards {
		if c.value.Spec.Selector != nil && c.value.Spec.TargetRef == nil && !c.matched {
			findings = append(findings,
				c.object.Finding(finding.Warning, function+"/no-target",
					c.object.Get("spec", "selector"),
					fmt.Sprintf("no workload of the package in the namespace of AgentCard %s has "+
						"these pod labels", c.object.Name),
					"correct the labels, unless the workload is deployed from elsewhere"))
		}
	}
	return findings
}
