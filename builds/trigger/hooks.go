package trigger

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/process"
)

const (
	// secretKeeps is how long the tokens of a webhook are cached.
	secretKeeps = 30 * time.Second
	// secretTime bounds the request for them.
	secretTime = 10 * time.Second
	// maxHooks bounds the cached webhooks. Each is kept for hookKeeps after its last delivery.
	maxHooks, hookKeeps = 10_000, 24 * time.Hour
)

// byHook is the index of builds by the Secret of their webhook.
const byHook = "hook"

func hookOf(o client.Object) []string {
	if t := o.(*api.AgentBuild).Spec.Trigger; t != nil && t.Webhook != nil {
		return []string{t.Webhook.Name}
	}
	return nil
}

// named returns the builds in a cache that name the Secret of a webhook. They are shared with the
// cache.
func named(from client.Reader, hook types.NamespacedName,
	options ...client.ListOption) []api.AgentBuild {
	var all api.AgentBuildList
	err := from.List(context.Background(), &all, append(options, client.UnsafeDisableDeepCopy,
		client.InNamespace(hook.Namespace), client.MatchingFields{byHook: hook.Name})...)
	if err != nil {
		return nil // reads of the cache fail only at shutdown
	}
	return all.Items
}

// hooks are the Secrets that builds name for webhooks.
type hooks struct {
	live, own client.Reader // the API server, and the builds of this shard
	others    client.Reader // the builds of other shards with a webhook; nil without shards

	mu     sync.Mutex
	recent *utilcache.LRUExpireCache // of *hook
}

func newHooks(live, own client.Reader) *hooks {
	return &hooks{live: live, own: own, recent: utilcache.NewLRUExpireCache(maxHooks)}
}

// known reports whether a build of any shard names a webhook.
func (h *hooks) known(hook types.NamespacedName) bool {
	return len(named(h.own, hook, client.Limit(1))) > 0 ||
		h.others != nil && len(named(h.others, hook, client.Limit(1))) > 0
}

// watchOthers watches the fields that webhooks need of the builds of all shards.
func (h *hooks) watchOthers(mgr ctrl.Manager, o process.Options) error {
	options := cache.Options{
		Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient(),
		DefaultNamespaces: map[string]cache.Config{},
	}
	for _, n := range o.Namespaces {
		options.DefaultNamespaces[n] = cache.Config{}
	}
	options.DefaultTransform = func(in any) (any, error) {
		b, ok := in.(*api.AgentBuild)
		if !ok {
			return in, nil
		}
		out := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{
			Namespace: b.Namespace, Name: b.Name, UID: b.UID, ResourceVersion: b.ResourceVersion,
			Labels: b.Labels,
		}}
		if hookOf(b) != nil && !o.Shard.Has(b) {
			out.Spec.Trigger = &api.SourceTrigger{Webhook: b.Spec.Trigger.Webhook}
		}
		return out, nil
	}
	others, err := cache.New(mgr.GetConfig(), options)
	if err == nil {
		err = others.IndexField(context.Background(), &api.AgentBuild{}, byHook, hookOf)
	}
	if err != nil {
		return err
	}
	h.others = others
	return mgr.Add(everywhere{others})
}

// everywhere runs a cache on each replica.
type everywhere struct{ cache.Cache }

func (everywhere) NeedLeaderElection() bool { return false }

// hook is the Secret of a webhook.
type hook struct {
	delivered atomic.Bool // whether this process got a delivery

	mu     sync.Mutex // held while the Secret is read
	next   time.Time  // of the next read
	tokens [][]byte
}

// one returns the webhook that a build names.
func (h *hooks) one(key types.NamespacedName) *hook {
	h.mu.Lock()
	defer h.mu.Unlock()
	found, ok := h.recent.Get(key)
	if !ok {
		found = &hook{}
	}
	h.recent.Add(key, found, hookKeeps)
	return found.(*hook)
}

// delivers reports whether the webhook of a build has delivered something.
func (h *hooks) delivers(b *api.AgentBuild) bool {
	for _, name := range hookOf(b) {
		one, ok := h.recent.Get(types.NamespacedName{Namespace: b.Namespace, Name: name})
		return ok && one.(*hook).delivered.Load()
	}
	return false
}

// secrets returns the secrets of a webhook. It reads them when a delivery arrives, unless they are
// cached.
func (h *hooks) secrets(ctx context.Context, key types.NamespacedName) [][]byte {
	one := h.one(key)
	one.mu.Lock()
	defer one.mu.Unlock()
	if time.Now().Before(one.next) {
		return one.tokens
	}
	ctx, cancel := context.WithTimeout(ctx, secretTime)
	defer cancel()
	var secret corev1.Secret
	if err := h.live.Get(ctx, key, &secret); err != nil && !apierrors.IsNotFound(err) {
		one.next = time.Now().Add(time.Second)
		return one.tokens // the last tokens are valid until the API server answers
	}
	one.next, one.tokens = time.Now().Add(secretKeeps), nil
	for _, name := range []string{"token", "previous"} {
		if token := strings.TrimSpace(string(secret.Data[name])); token != "" {
			one.tokens = append(one.tokens, []byte(token))
		}
	}
	return one.tokens
}

// hint makes the questions of builds with a webhook's Secret due, and records the delivery's trace.
func (t *Triggers) hint(key types.NamespacedName, trace string) {
	t.hooks.one(key).delivered.Store(true)
	limited, cancel := context.WithTimeout(context.Background(), secretTime)
	defer cancel()
	if t.hooks.others != nil {
		for _, b := range named(t.hooks.others, key) {
			delivered := map[string]string{
				keys.AnnotationHook: time.Now().UTC().Format(time.RFC3339Nano)}
			if err := t.annotate(limited, b.DeepCopy(), delivered); err != nil {
				t.Log.Error(err, "telling another shard of a webhook, whose branch it then polls",
					"build", client.ObjectKeyFromObject(&b))
			}
		}
	}
	due := map[reconcile.Request]*api.AgentBuild{}
	for _, b := range named(t.Client, key) {
		if q, ok := questionOf(&b); ok {
			due[requestFor(q)] = &b
		}
	}
	for request, b := range due {
		t.mu.Lock()
		if t.states[request] == nil {
			t.states[request] = &state{next: time.Now().Add(defaultPoll)}
		}
		t.states[request].hinted, t.states[request].trace = true, trace
		t.mu.Unlock()
		t.woken <- event.GenericEvent{Object: b}
	}
}
