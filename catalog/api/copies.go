package api

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
)

// DeepCopyObject returns a copy that shares nothing with c. TestCopies fails for a field that is
// forgotten.
func (c *AgentCard) DeepCopyObject() runtime.Object {
	return &AgentCard{c.TypeMeta, *c.ObjectMeta.DeepCopy(), *c.Spec.DeepCopy(), *c.Status.DeepCopy()}
}

// DeepCopyObject returns a copy that shares nothing with l.
func (l *AgentCardList) DeepCopyObject() runtime.Object {
	out := &AgentCardList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopyObject().(*AgentCard))
	}
	return out
}

// DeepCopy returns a copy that shares nothing with s.
func (s *AgentCardSpec) DeepCopy() *AgentCardSpec {
	out := *s
	out.Selector = s.Selector.DeepCopy()
	out.TargetRef, out.Endpoint, out.IdentityBinding =
		copyOf(s.TargetRef), copyOf(s.Endpoint), copyOf(s.IdentityBinding)
	if out.Metadata = copyOf(s.Metadata); s.Metadata != nil {
		out.Metadata.Tags = slices.Clone(s.Metadata.Tags)
	}
	return &out
}

// DeepCopy returns a copy that shares nothing with s.
func (s *AgentCardStatus) DeepCopy() *AgentCardStatus {
	out := *s
	out.LastSyncTime, out.Card = s.LastSyncTime.DeepCopy(), s.Card.DeepCopy()
	out.Conditions, out.Cards = slices.Clone(s.Conditions), slices.Clone(s.Cards)
	for i := range out.Cards {
		c := &out.Cards[i]
		c.LastFetchTime, c.Card = c.LastFetchTime.DeepCopy(), c.Card.DeepCopy()
	}
	return &out
}

// copyOf returns a pointer to a copy of what p points to; nil for nil.
func copyOf[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}
