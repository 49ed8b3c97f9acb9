package controller

import (
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// SpecChanged reports whether an update wakes the catalog.
var SpecChanged = specChanged

// InTurns gives requests in the order in which workers begin with them. Those that are
// begun end together, when no other can begin.
func InTurns(workers int, requests ...reconcile.Request) (out []reconcile.Request) {
	t := newTurns(workers)
	q := t.queue("test", retries())
	for _, r := range requests {
		q.Add(r)
	}
	for q.Len() > 0 {
		begun := len(out)
		for q.Len() > 0 {
			r, _ := q.Get()
			if t.begin(r) {
				out = append(out, r)
			}
			q.Done(r)
		}
		for _, r := range out[begun:] {
			t.end(r)
		}
	}
	return out
}
