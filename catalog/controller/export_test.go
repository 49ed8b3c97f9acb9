package controller

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kagent2 "github.com/armature-dev/armature/catalog/api/kagent/v1alpha2"
)

// MayAsk reports whether the guard permits an address.
var MayAsk = mayAsk

// TimeoutOf is how long a discovery of a server may take.
func (r *Reconciler) TimeoutOf(ctx context.Context, s *kagent2.RemoteMCPServer) (time.Duration, error) {
	at, err := r.remote(ctx, s)
	return max(at.timeout, at.silence), err
}

// InTurns gives requests in the order in which a queue with all of them does.
func InTurns(requests ...reconcile.Request) (out []reconcile.Request) {
	q := &roundRobin{}
	for _, r := range requests {
		q.Push(r)
	}
	for q.Len() > 0 {
		out = append(out, q.Pop())
	}
	return out
}
