package trigger

import (
	"context"
	"maps"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// secretKeeps is how long the tokens of a webhook are used before they are read again.
	secretKeeps = 30 * time.Second
	// secretTime is how long the API server may take for them.
	secretTime = 10 * time.Second
)

// hooks are the Secrets that builds name for webhooks.
type hooks struct {
	live client.Reader
	// has builds of other shards that name it; nil without shards
	others func(namespace, name string) bool

	mu sync.Mutex
	of map[types.NamespacedName]*hook
}

// hook is one of them.
type hook struct {
	// delivered at least once to this process.
	delivered bool

	mu     sync.Mutex // while it is read
	next   time.Time  // when it is read again
	tokens [][]byte
}

// note those that the builds of a namespace name.
func (h *hooks) note(namespace string, named map[types.NamespacedName]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.of, func(key types.NamespacedName, _ *hook) bool {
		return key.Namespace == namespace && !named[key]
	})
	for key := range named {
		if h.of[key] == nil {
			h.of[key] = &hook{}
		}
	}
}

// one that a build names; nil for none.
func (h *hooks) one(namespace, name string) *hook {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := types.NamespacedName{Namespace: namespace, Name: name}
	if h.of[key] == nil && h.others != nil && h.others(namespace, name) {
		h.of[key] = &hook{}
	}
	return h.of[key]
}

func (h *hooks) known(namespace, name string) bool { return h.one(namespace, name) != nil }

// deliver notes a delivery, and delivers reports whether there was one.
func (h *hooks) deliver(namespace, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if one := h.of[types.NamespacedName{Namespace: namespace, Name: name}]; one != nil {
		one.delivered = true
	}
}

func (h *hooks) delivers(namespace, name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	one := h.of[types.NamespacedName{Namespace: namespace, Name: name}]
	return one != nil && one.delivered
}

// secrets of a webhook, which are read when a delivery comes, unless they just were.
func (h *hooks) secrets(ctx context.Context, namespace, name string) [][]byte {
	one := h.one(namespace, name)
	if one == nil {
		return nil
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	if time.Now().Before(one.next) {
		return one.tokens
	}
	ctx, cancel := context.WithTimeout(ctx, secretTime)
	defer cancel()
	var secret corev1.Secret
	if err := h.live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name},
		&secret); err != nil && !apierrors.IsNotFound(err) {
		one.next = time.Now().Add(time.Second)
		return one.tokens // what was read before counts until the API server answers
	}
	one.next, one.tokens = time.Now().Add(secretKeeps), nil
	for _, key := range []string{"token", "previous"} {
		if token := strings.TrimSpace(string(secret.Data[key])); token != "" {
			one.tokens = append(one.tokens, []byte(token))
		}
	}
	return one.tokens
}
