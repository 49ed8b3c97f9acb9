package controller

import (
	"context"
	"strconv"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/render/deliver/flux/api"
)

// chain is a cluster in which each RenderedSource renders what the next one publishes.
type chain struct {
	client.Reader
	length, reads int
}

func (c *chain) Get(_ context.Context, key client.ObjectKey, into client.Object,
	_ ...client.GetOption) error {
	c.reads++
	n, err := strconv.Atoi(key.Name)
	if err != nil || n == c.length {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	source := into.(*api.RenderedSource)
	source.Namespace, source.Name = key.Namespace, key.Name
	source.Spec.SourceRef = api.SourceReference{Kind: externalArtifact, Name: strconv.Itoa(n + 1)}
	return nil
}

// A tenant decides how many RenderedSources render each other, and each reconcile reads them all.
func TestChainsAreBounded(t *testing.T) {
	const long = "refer to an earlier source"
	for length, want := range map[int]string{1: "", maxChain: "", maxChain + 1: long, 5000: long} {
		c := &chain{length: length}
		first, key := &api.RenderedSource{}, client.ObjectKey{Namespace: "team1", Name: "0"}
		if err := c.Get(t.Context(), key, first); err != nil {
			t.Fatal(err)
		}
		r := &Reconciler{Live: c}
		message := ""
		if failed := r.cycle(t.Context(), first); failed != nil {
			message = failed.Error()
		}
		if !strings.HasSuffix(message, want) || (want == "") != (message == "") ||
			c.reads > maxChain+1 {
			t.Errorf("%d in a row: %q after %d reads, want %q", length, message, c.reads, want)
		}
	}
}
