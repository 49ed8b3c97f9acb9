package controller

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/armature-dev/armature/catalog/api/kagent"
)

// MayAsk reports whether the guard permits an address.
var MayAsk = mayAsk

// SpecChanged reports whether an update wakes the catalog.
var SpecChanged = specChanged

// TimeoutOf is how long a discovery of a server may take.
func (r *Reconciler) TimeoutOf(ctx context.Context, s *kagent.RemoteMCPServer) (time.Duration, error) {
	at, err := remoteEndpoint(ctx, r.Live, s)
	return max(at.timeout, at.silence), err
}

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

// MaxDecoding is what decoding one answer may take.
const MaxDecoding = maxDecoding

// DecodingCost is what decoding a text takes.
func DecodingCost(text string) int64 {
	return (&metered{}).scan([]byte(text)) + int64(len(text))*byteCost
}
